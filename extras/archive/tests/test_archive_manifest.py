"""Finds recordings, and gives them ids."""

import json
import os
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow")

from extras.archive import storage
from extras.archive.manifest import Recording, identify, in_folder, in_manifest

MODELS = {"asr_model": "openai/whisper-large-v3@main", "assistant_model": None, "dtype": "auto"}


def test_a_folder_is_searched_by_endings_except_its_outputs(out):
    wanted = ["a b.wav", "sub/b.MP3", "sub/deep/c.webm", "d.e.ogg"]
    for name in [*wanted, "a.txt", "wav", ".hidden.wav", ".trash/a.wav", "out/x.wav"]:
        storage.write(storage.join(out, name), b"12345")
    found = in_folder(out, storage.join(out, "out"))
    assert {each.path for each in found} == {storage.join(out, name) for name in wanted}
    assert {each.size for each in found} == {5}
    assert all(each.modified for each in found)


def test_an_id_changes_with_whatever_changes_the_result():
    a, german = Recording("", "/in/a.wav", 10, 5), {"language": "de"}
    ids = [
        identify(recording, MODELS | models, parameters).id
        for recording, models, parameters in (
            (a, {}, {}),
            (replace(a, path="/in/b.wav"), {}, {}),
            (replace(a, size=11), {}, {}),
            (replace(a, modified=6), {}, {}),
            (replace(a, parameters=german), {}, {}),
            (a, {}, {"language": "en"}),
            (a, {"dtype": "float16"}, {}),
            (a, {"assistant_model": MODELS["asr_model"]}, {}),
            (replace(a, name="call-1"), {}, {}),
        )
    ]
    assert len(set(ids)) == len(ids)
    assert ids[-1].startswith("call-1-")
    own = replace(a, parameters=german)
    assert identify(own, MODELS, {"language": "en"}).id == identify(a, MODELS, german).id == ids[4]


def read(tmp_path, *lines, parameters=None, allowed=None):
    path = tmp_path / "list.jsonl"
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    path.write_text("\n".join(texts))
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
        ({"path": "http://host/a.wav"}, "http:// is none of"),
        ({"path": "../b.wav"}, "--allow"),
        ({"path": "a.wav", "name": "../a"}, "name: "),
        ({"path": "a.wav", "parameters": {"batchsize": 1}}, "'batchsize' is not a parameter"),
        ({"path": "a.wav", "parameters": {"num_speakers": 9}}, "num_speakers: contradicts"),
        ({"path": "caf\udce9.wav"}, "UTF-8"),
        ({"path": "a.wav", "size": 1, "modified": 2**63}, "size and modified"),
        ({"path": "first.wav"}, "the same recording and parameters as in line 1"),
        ({"path": "denied.wav"}, "access denied"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, monkeypatch, line, reason):
    def denied(address):
        if address.endswith("denied.wav"):
            raise PermissionError("access denied")

    monkeypatch.setattr(storage, "look", denied)
    with pytest.raises(ValueError, match=reason) as raised:
        read(tmp_path, {"path": "first.wav"}, line, parameters={"max_speakers": 3})
    assert str(raised.value).startswith("list.jsonl, line 2: ")
