"""The output place: what is found there again, in which order it is written, and attempts."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest

pytest.importorskip("pyarrow")

from extras.archive import storage
from extras.archive.manifest import Recording
from extras.archive.records import Record
from extras.archive.results import MOST_MARKS, Died, Results
from whosaid.answer.kept import Request, for_keeping

ANSWER = {"text": " ü", "duration": 2.0}
DONE = Record("a", "/in/talks/a.wav", duration=2.0, seconds=0.5, attempt=2, result="talks/a")
FAILED = Record("b", "/in/b.wav", "INVALID_AUDIO", "no audio stream found")


@pytest.fixture(params=["folder", "bucket"])
def out(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "out")
    return f"{request.getfixturevalue('bucket')[1]}/{tmp_path.name}"


def test_what_is_written_is_found(out):
    results = Results(out)
    assert (results.finished(), results.errors("ab"), results.find("a")) == (set(), [], None)
    assert results.write(DONE, {**ANSWER, "output": {"srt": "1\n"}}, "talks/a") == DONE
    results.write_error(FAILED)
    assert results.finished() == {"a", "b"}
    assert (results.find("a"), results.find("b"), results.errors("ab")) == (DONE, FAILED, [FAILED])
    written = json.loads(storage.read(storage.join(out, "results", "talks", "a.json")))
    assert written.pop("recording") == {**DONE.to_json(), "status": "done"}
    assert written == ANSWER
    assert storage.read(storage.join(out, "results", "talks", "a.srt")) == b"1\n"


def test_the_entry_of_the_index_is_written_last(out, monkeypatch):
    order = []
    monkeypatch.setattr(
        storage, "write", lambda address, _: order.append(address.removeprefix(f"{out}/"))
    )
    Results(out).write(DONE, {**ANSWER, "output": {"srt": "", "txt": ""}}, "b c")
    names = ["b c.srt", "b c.txt", "b c.json"]
    assert [storage.unquote(each) for each in order[:-1]] == [f"results/{name}" for name in names]
    assert order[-1] == "index/a.json"


def test_a_new_result_of_a_recording_takes_the_place_of_the_old_one(out):
    """Changed, or under other settings: what the old one had and the new one has not is gone, and
    so is its entry, which would tell that the new one's files are its own.
    """
    results = Results(out)
    results.write(DONE, {**ANSWER, "output": {"srt": "old", "vtt": "old"}}, "talks/a")
    newer = Record("new", DONE.path)
    assert (
        results.write(newer, {"text": "", "output": {"srt": "new"}}, "talks/a").result == "talks/a"
    )
    assert results.finished() == {"new"}
    found = {storage.name_of(each.address) for each in storage.find_files(f"{out}/results")}
    assert found == {"a.json", "a.srt"}
    assert storage.read(storage.join(out, "results", "talks", "a.srt")) == b"new"


@pytest.mark.parametrize("theirs", ["a result", "no result"])
def test_what_another_has_written_is_never_overwritten(out, theirs):
    """The recording of another source, called alike, or a file of somebody's own."""
    results = Results(out)
    content = b'{"mine": 1}'
    if theirs == "a result":
        results.write(DONE, ANSWER, "talks/a")
        content = storage.read(storage.join(out, "results", "talks", "a.json"))
    storage.write(storage.join(out, "results", "talks", "a.json"), content)
    other = Record(f"call-{'f' * 20}", "/elsewhere/talks/a.wav")
    written = results.write(other, {**ANSWER, "output": {"srt": "1"}}, "talks/a")
    assert written.result == f"talks/a-{'f' * 20}"
    assert results.find(other.id) == written
    assert storage.read(storage.join(out, "results", "talks", "a.json")) == content
    assert results.write(other, ANSWER, "talks/a") == written


def died(results: Results, id: str, run: str) -> tuple[int, str]:
    with pytest.raises(Died) as raised:
        results.begin(id, run)
    return raised.value.attempts, str(raised.value)


def test_attempts_are_counted_until_they_end(out):
    results = Results(out)
    assert [results.begin("a", "run") for _ in range(3)] == [1, 2, 3]
    assert died(results, "a", "run") == (3, "the process that computed it died 3 times")
    results.end("a", 3)
    assert results.begin("a", "run") == 1


def test_every_run_has_attempts_of_its_own(out):
    """A driver that is killed leaves a mark on all that is being computed."""
    results = Results(out)
    results.begin("a", "killed")
    results.begin("a", "killed too")
    assert [results.begin("a", "run") for _ in range(3)] == [3, 4, 5]
    assert died(results, "a", "run") == (5, "the process that computed it died 3 times")


def test_what_ends_every_run_is_named_in_the_end(out):
    results = Results(out)
    assert [results.begin("a", str(run)) for run in range(MOST_MARKS)] == [*range(1, 10)]
    assert died(results, "a", "run") == (9, "9 attempts in several runs came to no end")


def test_a_run_that_stops_takes_back_what_it_was_trying(out):
    results = Results(out)
    results.begin("a", "other")
    results.begin("a", "run")
    results.begin("b", "run")
    results.begin("c", "other")
    results.withdraw("run")
    assert [results.begin(id, "run") for id in "abc"] == [2, 1, 2]


def test_a_mark_that_is_gone_meanwhile_is_no_fault(tmp_path, monkeypatch):
    results = Results(str(tmp_path))
    results.begin("a", "run")
    results.begin("b", "run")
    read = storage.read

    def end_first(address: str) -> bytes:
        results.end("a", 1)
        return read(address)

    monkeypatch.setattr(storage, "read", end_first)
    results.withdraw("run")
    assert list((tmp_path / "attempts").iterdir()) == []


def test_errors_are_forgotten_with_their_attempts(out, monkeypatch):
    results = Results(out)
    results.write_error(FAILED)
    for id in "bcx":
        results.begin(id, "run")
    delete, deleted = storage.delete, []
    monkeypatch.setattr(
        storage, "delete", lambda address: (deleted.append(address), delete(address))
    )
    results.forget_errors(["b", "x", *map(str, range(999))])
    assert len(deleted) == 2
    assert results.finished() == set()
    assert [results.begin(id, "run") for id in "bcx"] == [1, 2, 2]


def test_what_has_a_result_or_is_tried_again_is_no_error(tmp_path, monkeypatch):
    results = Results(str(tmp_path))
    results.write(DONE, ANSWER, "a")
    for record in (Record("a", "/in/a.wav", "WORKER_DIED"), FAILED, Record("c", "/in", "X")):
        results.write_error(record)
    assert [each.id for each in results.errors("abx")] == ["b"]
    read = storage.read

    def gone(address: str) -> bytes:
        if address.endswith("b.json"):
            raise FileNotFoundError
        return read(address)

    monkeypatch.setattr(storage, "read", gone)
    assert [each.id for each in results.errors("abc")] == ["c"]


def test_a_result_is_reused_where_the_recording_is_the_same(out):
    """By its content, if it was touched; in a bucket, too."""
    recorded = storage.join(out, "in", "a.wav")
    storage.write(recorded, b"sound")
    record = Record("old", recorded, size=5, modified=7, sha256=sha256(b"sound").hexdigest())
    request = Request({}, for_keeping({"output": ["srt"]}))
    words = [{"word": " one", "timestamp": [0.0, 1.0], "probability": None}]
    chunks = [{"text": " one", "timestamp": [0.0, 1.0]}]
    answer = {"speakers": [], "chunks": chunks, "words": words, **ANSWER}
    results = Results(out)
    results.write(record, {"made_with": request.to_json(), **answer}, "a")
    touched = Recording("new", recorded, 5, 8, result="a")
    assert results.reuse(touched, Request({}, {**request.parameters, "language": "de"})) == (
        False,
        "was made with other parameters (language)",
    )
    assert results.reuse(touched, request) == (True, "")
    assert results.done() == {"new"}
    assert results.find("new") == replace(record, id="new", modified=8, result="a")
    subtitles = storage.read(storage.join(out, "results", "a.srt"))
    assert subtitles == b"1\n00:00:00,000 --> 00:00:01,000\none\n"
    storage.write(recorded, b"noise")
    changed = replace(touched, id="newer", modified=9)
    assert results.reuse(changed, request) == (False, "is of the recording before it changed")
    elsewhere = replace(touched, path=storage.join(out, "in", "b.wav"))
    assert results.reuse(elsewhere, request) == (False, "")


def test_for_shards_a_result_is_one_file(out):
    answer = {**ANSWER, "output": {"srt": "1\n"}}
    Results(out, in_shards=True).write(DONE, answer, "talks/a")
    (entry,) = storage.find_files(storage.join(out, "results"))
    written = json.loads(storage.read(entry.address))
    assert written["output"] == {"srt": "1\n"}
    assert Results(out).find("a") == DONE
