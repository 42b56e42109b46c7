"""Which recordings are found, under which ids, and how they are dealt out."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("pyarrow")

from extras.archive import manifest, storage
from extras.archive.manifest import Recording, deal, identify, in_folder, in_manifest

MODELS = {"asr_model": "openai/whisper-large-v3@main", "assistant_model": None, "dtype": "auto"}


def ids(recordings, parameters=None, **models):
    return [identify(each, MODELS | models, parameters or {}).id for each in recordings]


def test_a_folder_is_searched_by_endings_without_the_output_place(out):
    wanted = ["a b.wav", "sub/b.MP3", "sub/deep/c.webm", "d.e.ogg"]
    for name in [*wanted, "a.txt", "wav", ".hidden.wav", ".trash/a.wav", "out/x.wav"]:
        storage.write(storage.join(out, name), b"12345")
    found = in_folder(out, storage.join(out, "out"))
    assert {each.path for each in found} == {storage.join(out, name) for name in wanted}
    assert {each.size for each in found} == {5}
    assert all(each.modified for each in found)


def test_an_id_is_new_where_the_result_may_be():
    a = Recording("", "/in/a.wav", 10, 5)
    (id,) = ids([a])
    others = [
        ids([Recording("", "/in/b.wav", 10, 5)]),
        ids([Recording("", "/in/a.wav", 11, 5)]),
        ids([Recording("", "/in/a.wav", 10, 6)]),
        ids([Recording("", "/in/a.wav", 10, 5, parameters={"language": "de"})]),
        ids([a], {"language": "en"}),
        ids([a], dtype="float16"),
        ids([a], assistant_model=MODELS["asr_model"]),
        ids([Recording("", "/in/a.wav", 10, 5, name="call-1")]),
    ]
    assert len({id, *(each for (each,) in others)}) == 1 + len(others)
    assert others[-1][0].startswith("call-1-")
    own = Recording("", "/in/a.wav", 10, 5, parameters={"language": "de"})
    assert ids([own], {"language": "en"}) == ids([own]) == ids([a], {"language": "de"})


def read(tmp_path, *lines, parameters=None, allowed=None):
    path = tmp_path / "list.jsonl"
    path.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    )
    return list(in_manifest(str(path), parameters or {}, allowed or [str(tmp_path)]))


def test_a_users_manifest(tmp_path):
    """Files without a size are looked for, as many at once as there are threads."""
    names = [f"{number:02}.wav" for number in range(40)]
    for number, name in enumerate(names[:24]):
        (tmp_path / name).write_bytes(bytes(number))
    lines = [
        {"path": "00.wav", "name": "call-1", "parameters": {"language": "de"}},
        "",
        *({"path": name} for name in names[1:]),
        {"path": "s3://other/b.wav", "size": 7, "modified": 8, "duration": 9.5},
    ]
    found = read(tmp_path, *lines, allowed=[str(tmp_path), "s3://other"])
    assert (found[0].path, found[0].name) == (f"{tmp_path}/00.wav", "call-1")
    assert found[0].parameters == {"language": "de"}
    assert [each.size for each in found] == [*range(24), *[-1] * 16, 7]
    times = [os.stat(tmp_path / name).st_mtime_ns for name in names[:24]]
    assert [each.modified for each in found] == [*times, *[0] * 16, 8]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ({"file": "a.wav"}, "should be an object"),
        ({"path": "http://host/a.wav"}, "http:// is none of"),
        ({"path": "../b.wav"}, "--allow"),
        ({"path": "s3://bucket/a.wav", "size": 1}, "--allow"),
        ({"path": "a.wav", "name": "../a"}, "name: "),
        ({"path": "a.wav", "parameters": [1]}, "should be a JSON object"),
        ({"path": "a.wav", "parameters": {"batch_size": 0}}, "batch_size: "),
        ({"path": "a.wav", "parameters": {"batchsize": 1}}, "'batchsize' is not a parameter"),
        ({"path": "a.wav", "parameters": {"num_speakers": 9}}, "num_speakers: contradicts"),
        ({"path": "caf\udce9.wav"}, "UTF-8"),
        ({"path": "a.wav", "size": "7"}, "size and modified"),
        ({"path": "a.wav", "size": 1, "modified": 2**63}, "size and modified"),
        ({"path": "first.wav"}, "the same recording and parameters as in line 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        read(tmp_path, {"path": "first.wav"}, line, parameters={"max_speakers": 3})
    assert str(raised.value).startswith("list.jsonl, line 2: ")


def test_a_file_that_cannot_be_looked_for_is_named_by_its_line(tmp_path, monkeypatch):
    look = storage.look

    def denied(address):
        if address.endswith("b.wav"):
            raise PermissionError("access denied")
        return look(address)

    monkeypatch.setattr(storage, "look", denied)
    with pytest.raises(ValueError, match=r"list\.jsonl, line 2: access denied"):
        read(tmp_path, {"path": "a.wav"}, {"path": "b.wav"}, {"path": "c.wav"})


def test_blocks_hold_equal_shares_the_largest_first():
    recordings = [Recording(str(n), f"/{n}.wav", 10_000 * (n % 600), 1) for n in range(9000)]
    blocks = deal(recordings)
    dealt = [each for block in blocks for each in block]
    assert sorted(each.id for each in dealt) == sorted(each.id for each in recordings)
    assert max(sum(each.size for each in block) for block in blocks) <= manifest.BLOCK_BYTES
    assert max(map(len, blocks)) <= manifest.BLOCK_RECORDINGS
    sizes = [each.size for each in dealt]
    assert sizes == sorted(sizes, reverse=True)
    assert deal(reversed(recordings)) == blocks


def test_a_small_archive_has_work_for_all():
    recordings = [Recording(str(n), f"/{n}.wav", 8000, 1) for n in range(40)]
    assert len(deal(recordings)) == 40
    long = Recording("long", "/long.wav", 2**40, 1)
    assert deal([*recordings, long])[0] == [long]
    assert deal([]) == []
