"""The output place: the results that are found there again, and the order of writes."""

import base64
import json
from dataclasses import replace
from hashlib import sha256

import pytest

pytest.importorskip("pyarrow")

from extras.archive import storage
from extras.archive.manifest import Recording
from extras.archive.records import Record
from extras.archive.results import Results
from whosaid.answer.kept import RunRequest, for_keeping

ANSWER = {"text": " ü", "duration": 2.0}
DONE = Record("a", "/in/talks/a.wav", duration=2.0, seconds=0.5, attempt=2, result="talks/a")
FAILED = Record("b", "/in/b.wav", "INVALID_AUDIO", "no audio stream found")


@pytest.fixture
def results(out) -> Results:
    return Results(out)


def test_written_records_are_found(out, results):
    assert (results.finished(), results.errors("ab"), results.find("a")) == (set(), [], None)
    assert results.write(DONE, {**ANSWER, "output": {"srt": "1\n"}}, "talks/a") == DONE
    results.write_error(FAILED)
    assert results.finished() == {"a", "b"}
    assert (results.find("a"), results.find("b"), results.errors("ab")) == (DONE, FAILED, [FAILED])
    written = json.loads(storage.read(storage.join(out, "results", "talks", "a.json")))
    assert written.pop("recording") == {**DONE.to_json(), "status": "done"}
    assert written == {**ANSWER, "output": {"srt": "1\n"}}
    assert storage.read(storage.join(out, "results", "talks", "a.srt")) == b"1\n"
    results.write_error(replace(FAILED, id="a"))  # an error of a recording that has a result
    results.forget_errors("bx")
    assert (results.finished(), results.errors("ab")) == ({"a"}, [])


def test_a_file_of_the_user_is_not_overwritten(out, results):
    path = storage.join(out, "results", "talks", "a.srt")
    storage.write(path, b"mine")
    written = results.write(DONE, {**ANSWER, "output": {"srt": "1\n"}}, "talks/a")
    assert (written.result, storage.read(path)) == ("talks/a-a", b"mine")
    storage.write(path, b"1\n")  # as an interrupted run leaves it
    again = replace(DONE, id="c", path="/in/talks/c.wav")
    assert results.write(again, {**ANSWER, "output": {"srt": "1\n"}}, "talks/a").result == "talks/a"


def test_documents_are_written_as_bytes(out, results):
    answer = {**ANSWER, "output": {"docx": base64.b64encode(b"PK").decode()}}
    for _ in range(2):  # the second finds its own file
        assert results.write(DONE, answer, "talks/a").result == "talks/a"
    assert storage.read(storage.join(out, "results", "talks", "a.docx")) == b"PK"


def test_the_entry_of_the_index_is_written_last(out, results, monkeypatch):
    order = []
    monkeypatch.setattr(
        storage, "write", lambda address, _: order.append(address.removeprefix(f"{out}/"))
    )
    results.write(DONE, {**ANSWER, "output": {"srt": "", "txt": ""}}, "b c")
    assert order == [*(f"results/b c.{each}" for each in ("srt", "txt", "json")), "index/a.json"]


def test_a_new_result_replaces_the_old_one_and_its_entry(out, results):
    """The recording or the settings changed: files of the old result that the new one lacks are
    gone, and so is the old entry, which would claim the new files."""
    results.write(DONE, {**ANSWER, "output": {"srt": "old", "vtt": "old"}}, "talks/a")
    newer = Record("new", DONE.path)
    written = results.write(newer, {"text": "", "output": {"srt": "new"}}, "talks/a")
    assert written.result == "talks/a"
    assert results.finished() == {"new"}
    found = {storage.name_of(each.address) for each in storage.find_files(f"{out}/results")}
    assert found == {"a.json", "a.srt"}
    assert storage.read(storage.join(out, "results", "talks", "a.srt")) == b"new"


@pytest.mark.parametrize("theirs", ["a result", "no result"])
def test_results_and_files_of_others_are_never_overwritten(out, results, theirs):
    """Another source has a recording of the same name, or a user has a file there."""
    place, content = storage.join(out, "results", "talks", "a.json"), b'{"mine": 1}'
    if theirs == "a result":
        results.write(DONE, ANSWER, "talks/a")
        content = storage.read(place)
    storage.write(place, content)
    other = Record(f"call-{'f' * 20}", "/elsewhere/talks/a.wav")
    written = results.write(other, {**ANSWER, "output": {"srt": "1"}}, "talks/a")
    assert written.result == f"talks/a-{'f' * 20}"
    assert results.find(other.id) == written
    assert storage.read(place) == content
    assert results.write(other, ANSWER, "talks/a") == written


def test_a_result_is_reused_if_the_recording_is_unchanged(out, results):
    """The content decides if the file was touched, in a bucket too."""
    recorded = storage.join(out, "in", "a.wav")
    storage.write(recorded, b"sound")
    record = Record("old", recorded, size=5, modified=7, sha256=sha256(b"sound").hexdigest())
    request = RunRequest({}, for_keeping({"output": ["srt"]}))
    words = [{"word": " one", "timestamp": [0.0, 1.0], "probability": None}]
    chunks = [{"text": " one", "timestamp": [0.0, 1.0]}]
    answer = {"speakers": [], "chunks": chunks, "words": words, **ANSWER}
    results.write(record, {"made_with": request.to_json(), **answer}, "a")
    touched = Recording("new", recorded, 5, 8, result="a")
    german = RunRequest({}, {**request.parameters, "language": "de"})
    assert results.reuse(touched, german) == "was made with other parameters (language)"
    reused = replace(record, id="new", modified=8, result="a")
    assert results.reuse(touched, request) == reused
    assert results.finished() == {"new"}
    assert results.find("new") == reused
    subtitles = storage.read(storage.join(out, "results", "a.srt"))
    assert subtitles == b"1\n00:00:00,000 --> 00:00:01,000\none\n"
    storage.write(recorded, b"noise")
    changed = replace(touched, id="newer", modified=9)
    assert results.reuse(changed, request) == "is for an earlier version of the recording"
    elsewhere = replace(touched, path=storage.join(out, "in", "b.wav"))
    assert results.reuse(elsewhere, request) == ""
