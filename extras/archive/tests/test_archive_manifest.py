"""Which recordings are found, under which ids, and how they are dealt out."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("pyarrow")

from extras.archive import manifest, storage
from extras.archive.durations import LONGEST
from extras.archive.manifest import Recording, deal, identify, in_folder, in_manifest

MODELS = {
    "asr_model": "openai/whisper-large-v3@main",
    "assistant_model": None,
    "diarization_model": None,
    "dtype": "auto",
}


def ids(recordings, parameters=None, **models):
    return [identify(each, MODELS | models, parameters or {}).id for each in recordings]


def test_a_folder_is_searched_by_endings_without_the_output_place(tmp_path):
    wanted = ["a.wav", "sub/b.MP3", "sub/deep/c.webm", "d.e.ogg"]
    others = ["a.txt", "wav", ".hidden.wav", ".trash/a.wav", "out/x.wav"]
    for name in wanted + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    found = list(in_folder(str(tmp_path), str(tmp_path / "out")))
    assert sorted(each.path for each in found) == sorted(str(tmp_path / name) for name in wanted)
    assert {each.size for each in found} == {5}
    assert found[0].modified == os.stat(found[0].path).st_mtime_ns


def test_a_bucket_is_searched(bucket):
    client, address = bucket
    for key in ("in/a b.wav", "in/notes.txt", "in/sub/c.flac"):
        client.put_object(Bucket="calls", Key=key, Body=b"123")
    found = sorted(each.path for each in in_folder(f"{address}/in", f"{address}/out"))
    assert found == ["s3://calls/in/a%20b.wav", "s3://calls/in/sub/c.flac"]


def test_an_id_is_new_where_the_result_may_be():
    a = Recording("", "/in/a.wav", 10, 5)
    (id,) = ids([a])
    assert ids([Recording("", "/in/a.wav", 10, 5, duration=3.0)]) == [id]
    others = [
        ids([Recording("", "/in/b.wav", 10, 5)]),
        ids([Recording("", "/in/a.wav", 11, 5)]),
        ids([Recording("", "/in/a.wav", 10, 6)]),
        ids([Recording("", "/in/a.wav", 10, 5, parameters={"language": "de"})]),
        ids([a], {"language": "en"}),
        ids([a], dtype="float16"),
        ids([a], asr_model="openai/whisper-large-v3"),
        ids([a], assistant_model=MODELS["asr_model"]),
        ids([Recording("", "/in/a.wav", 10, 5, name="call-1")]),
    ]
    assert len({id, *(each for (each,) in others)}) == 1 + len(others)
    assert others[-1][0].startswith("call-1-")


def test_own_parameters_count_as_those_of_the_run_do():
    own = Recording("", "/in/a.wav", 10, 5, parameters={"language": "de"})
    assert (
        ids([own], {"language": "en"})
        == ids([own])
        == ids([Recording("", "/in/a.wav", 10, 5)], {"language": "de"})
    )


def read(tmp_path, *lines, parameters=None, allowed=None):
    path = tmp_path / "list.jsonl"
    path.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    )
    return list(in_manifest(str(path), parameters or {}, allowed or [str(tmp_path)]))


def test_a_users_manifest(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"123")
    lines = [
        {"path": "a.wav", "name": "call-1", "parameters": {"language": "de"}},
        "",
        {"path": f"{tmp_path}/missing.wav"},
        {"path": "s3://other/b.wav", "size": 7, "modified": 8, "duration": 9.5},
    ]
    first, second, third = read(tmp_path, *lines, allowed=[str(tmp_path), "s3://other"])
    assert (first.path, first.size, first.name) == (f"{tmp_path}/a.wav", 3, "call-1")
    assert first.parameters == {"language": "de"}
    assert (second.size, second.modified) == (-1, 0)
    assert (third.size, third.modified, third.duration) == (7, 8, 9.5)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "should be an object"),
        ({"file": "a.wav"}, "should be an object"),
        ({"path": "a.wav", "langauge": "de"}, "'langauge' is none of"),
        ({"path": "http://host/a.wav"}, "http:// is none of"),
        ({"path": "../b.wav"}, "--allow"),
        ({"path": "s3://bucket/a.wav", "size": 1}, "--allow"),
        ({"path": "a.wav", "name": "../a"}, "name: "),
        ({"path": "a.wav", "parameters": []}, None),
        ({"path": "a.wav", "parameters": [1]}, "should be a JSON object"),
        ({"path": "a.wav", "parameters": {"batch_size": 0}}, "batch_size: "),
        ({"path": "a.wav", "parameters": {"batchsize": 1}}, "'batchsize' is not a parameter"),
        ({"path": "a.wav", "parameters": {"num_speakers": 9}}, "num_speakers: contradicts"),
        pytest.param("[" * 100_000, "is not JSON", id="deep"),
        ({"path": "caf\udce9.wav"}, "UTF-8"),
        ({"path": "a.wav", "size": "7"}, "size and modified"),
        ({"path": "a.wav", "size": 2**63}, "size and modified"),
        ({"path": "a.wav", "size": 1, "modified": 2**63}, "size and modified"),
        ({"path": "a.wav", "duration": "7"}, "duration: "),
        ({"path": "a.wav", "duration": 1e12}, "duration: "),
        ('{"path": "a.wav", "duration": Infinity}', "duration: "),
        ('{"path": "a.wav", "duration": NaN}', "duration: "),
        ({"path": "first.wav"}, "the same recording and parameters as in line 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, reason):
    if reason is None:
        assert len(read(tmp_path, {"path": "first.wav"}, line)) == 2
        return
    with pytest.raises(ValueError, match=reason) as raised:
        read(tmp_path, {"path": "first.wav"}, line, parameters={"max_speakers": 3})
    assert str(raised.value).startswith("list.jsonl, line 2: ")


def test_blocks_hold_equal_audio_the_longest_first():
    recordings = [
        Recording(str(n), f"/{n}.wav", 1, 1, duration=float(n % 600)) for n in range(9000)
    ]
    blocks = deal(recordings)
    dealt = [each for block in blocks for each in block]
    assert sorted(each.id for each in dealt) == sorted(each.id for each in recordings)
    seconds = [sum(each.seconds for each in block) for block in blocks]
    assert max(seconds) <= manifest.BLOCK_SECONDS
    assert max(map(len, blocks)) <= manifest.BLOCK_RECORDINGS
    lengths = [each.seconds for each in dealt]
    assert lengths == sorted(lengths, reverse=True)
    assert deal(reversed(recordings)) == blocks


def test_a_small_archive_has_work_for_all():
    recordings = [Recording(str(n), f"/{n}.wav", 8000, 1) for n in range(40)]
    assert len(deal(recordings)) == 40
    long = Recording("long", "/long.wav", 1, 1, duration=7200.0)
    assert deal([*recordings, long])[0] == [long]
    assert deal([]) == []


def test_what_is_saved_is_loaded_and_may_be_handed_in(tmp_path):
    out = str(tmp_path / "out")
    assert manifest.load(out) == {}
    (tmp_path / "ü.wav").write_bytes(b"123")
    found = list(in_folder(str(tmp_path), out))
    made = identify(found[0], MODELS, {})
    manifest.save(out, [made])
    assert manifest.load(out) == {made.id: None}
    (again,) = in_manifest(f"{out}/manifest.jsonl", {}, [str(tmp_path)])
    assert ids([again]) == [made.id]


def test_a_line_ends_where_a_line_ends(tmp_path):
    """Names with what Unicode takes for the end of a line, as they are and as JSON escapes them."""
    names = [f"a{mark}b.wav" for mark in "\x85\u2028\u2029"]
    lines = [json.dumps({"path": name}, ensure_ascii=False) for name in names]
    path = tmp_path / "list.jsonl"
    path.write_bytes("\r\n".join(lines).encode())
    found = [identify(each, MODELS, {}) for each in in_manifest(str(path), {}, [str(tmp_path)])]
    assert [storage.name_of(each.path) for each in found] == names
    out = str(tmp_path / "out")
    manifest.save(out, found)
    assert manifest.load(out).keys() == {each.id for each in found}
    again = in_manifest(f"{out}/manifest.jsonl", {}, [str(tmp_path)])
    assert {each.path for each in again} == {each.path for each in found}


def test_files_without_a_size_are_looked_for(tmp_path):
    """As many are missing as there are threads, one of all has a size already."""
    names = [f"{number:02}.wav" for number in range(40)]
    for number, name in enumerate(names[:24]):
        (tmp_path / name).write_bytes(bytes(number))
    path = tmp_path / "list.jsonl"
    lines = [{"path": name} for name in names] + [{"path": "40.wav", "size": 3, "modified": 4}]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = in_manifest(str(path), {}, [str(tmp_path)])
    assert [storage.name_of(each.path) for each in found] == [*names, "40.wav"]
    assert [each.size for each in found] == [*range(24), *[-1] * 16, 3]
    times = [os.stat(tmp_path / name).st_mtime_ns for name in names[:24]]
    assert [each.modified for each in found] == [*times, *[0] * 16, 4]


def test_a_file_that_cannot_be_looked_for_is_named_by_its_line(tmp_path, monkeypatch):
    look = storage.look

    def denied(address):
        if address.endswith("b.wav"):
            raise PermissionError("access denied")
        return look(address)

    monkeypatch.setattr(storage, "look", denied)
    with pytest.raises(ValueError, match=r"list\.jsonl, line 2: access denied"):
        read(tmp_path, {"path": "a.wav"}, {"path": "b.wav"}, {"path": "c.wav"})


def test_a_size_that_tells_nothing_is_no_endless_recording():
    sizes = [Recording("", "/a.wav", size, 0).seconds for size in (-1, 0, 16_000, 2**63 - 1)]
    assert sizes == [0.0, 0.0, 2.0, LONGEST]


@pytest.mark.parametrize(
    "content",
    [
        b'{"path": "a.wav"}\n',
        b'{"id": 5}\n',
        b'{"id": "x", "duration": Infinity}\n',
        b'["id"]\n',
        b"5\n",
        b"\xff\xfe",
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_manifest_of_others_is_one_line(tmp_path, content):
    (tmp_path / "manifest.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match="is no manifest of an earlier run"):
        manifest.load(str(tmp_path))


def test_clips_of_known_speakers_are_not_written(tmp_path):
    clips = [{"name": "Zuse", "reference": "UklGRg=="}]
    own = {"language": "de", "known_speakers": clips}
    found = [Recording("", f"/{name}.wav", 1, 1, parameters=own, duration=2.0) for name in "ab"]
    identified = [identify(each, MODELS, {}) for each in found]
    manifest.save(str(tmp_path), identified)
    text = (tmp_path / "manifest.jsonl").read_text()
    assert "Zuse" not in text
    assert "Ukl" not in text
    lines = [json.loads(line)["parameters"] for line in text.splitlines()]
    assert lines[0] == lines[1]
    assert lines[0]["language"] == "de"
    assert [each.parameters for each in identified] == [own, own]
    assert len(manifest.load(str(tmp_path))) == 2
    with pytest.raises(ValueError, match="line 1: known_speakers: should be a list"):
        in_manifest(f"{tmp_path}/manifest.jsonl", {}, ["/"])
