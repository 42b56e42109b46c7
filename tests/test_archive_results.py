"""The output place: what is found there again, in which order it is written, and shards."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")

from archive import shards, storage
from archive.records import Record
from archive.results import Results

ANSWER = {"text": " ü", "duration": 2.0}
DONE = Record("a", "/in/a.wav", duration=2.0, seconds=0.5, attempt=2)
FAILED = Record("b", "/in/b.wav", "INVALID_AUDIO", "no audio stream found")


@pytest.fixture(params=["folder", "bucket"])
def out(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "out")
    return f"{request.getfixturevalue('bucket')[1]}/{tmp_path.name}"


def test_what_is_written_is_found(out):
    results = Results(out)
    assert (results.finished(), results.errors(), results.find("a")) == (set(), [], None)
    results.write(DONE, {**ANSWER, "output": {"srt": "1\n"}})
    results.write_error(FAILED)
    assert results.finished() == {"a", "b"}
    assert (results.find("a"), results.find("b"), results.errors()) == (DONE, FAILED, [FAILED])
    written = json.loads(storage.read(storage.join(out, "results", "a.json")))
    assert written.pop("recording") == {**DONE.to_json(), "status": "done"}
    assert written == ANSWER
    assert storage.read(storage.join(out, "results", "a.srt")) == b"1\n"


def test_the_json_is_written_last(out, monkeypatch):
    order = []
    monkeypatch.setattr(storage, "write", lambda address, _: order.append(storage.name_of(address)))
    Results(out).write(DONE, {**ANSWER, "output": {"srt": "", "txt": ""}})
    assert order == ["a.srt", "a.txt", "a.json"]


def test_attempts_are_counted_until_they_end(out):
    results = Results(out)
    assert [results.begin("a", "run", 3) for _ in range(4)] == [1, 2, 3, None]
    results.end("a", 3)
    assert results.begin("a", "run", 3) == 1


def test_a_run_that_stops_takes_back_what_it_was_trying(out):
    results = Results(out)
    results.begin("a", "other", 3)
    results.begin("a", "run", 3)
    results.begin("b", "run", 3)
    results.begin("c", "other", 3)
    results.withdraw("run")
    assert [results.begin(id, "run", 3) for id in "abc"] == [2, 1, 2]


def test_errors_are_forgotten_with_their_attempts(out):
    results = Results(out)
    results.write_error(FAILED)
    results.begin("b", "run", 3)
    results.begin("c", "run", 3)
    results.forget_errors(["b", "x"])
    assert results.finished() == set()
    assert [results.begin(id, "run", 3) for id in "bc"] == [1, 2]


def test_a_block_is_gathered_into_one_shard(out):
    results = Results(out, in_shards=True)
    results.write(DONE, {**ANSWER, "output": {"srt": "1\n"}})
    results.write_error(FAILED)
    results.gather("block", ["a", "b", "c"])
    assert list(storage.find_files(storage.join(out, "results"))) == []
    assert Results(out).finished() == {"a", "b"}
    assert results.in_shard("block") == {"a": DONE}
    later = Record("b", "/in/b.wav", duration=1.0)
    results.write(later, ANSWER)
    for _ in range(2):
        results.gather("block", ["a", "b", "c"])
    assert results.in_shard("block") == {"a": DONE, "b": later}
    (row, _) = shards._read(storage.join(out, "shards", "block.parquet"))
    assert (json.loads(row["answer"]), row["srt"], row["vtt"]) == (ANSWER, "1\n", None)
    assert (row["status"], row["path"]) == ("done", "/in/a.wav")


def test_two_who_gather_a_block_lose_nothing(out, monkeypatch):
    """The other one has gathered while this one was reading."""
    results, other = Results(out, in_shards=True), Results(out, in_shards=True)
    results.write(DONE, ANSWER)
    results.write(later := Record("c", "/in/c.wav"), ANSWER)
    read, late = storage.read, []

    def read_late(address):
        if address.endswith("c.json") and not late:
            late.append(address)
            other.gather("block", ["a", "c"])
        return read(address)

    monkeypatch.setattr(storage, "read", read_late)
    results.gather("block", ["a", "c"])
    assert results.in_shard("block") == {"a": DONE, "c": later}
