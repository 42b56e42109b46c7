"""Shards: every result is in one, whoever gathers at once and wherever a run is stopped."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from functools import lru_cache

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given, settings
from hypothesis import strategies as st

from extras.archive import shards, storage
from extras.archive.manifest import Recording
from extras.archive.records import Record
from extras.archive.results import Results

ANSWER = {"text": "what was said", "duration": 2.0}


def rows_of(out: str) -> list[dict]:
    """The rows of all shards."""
    return [
        row
        for entry in storage.find_files(storage.join(out, "shards"))
        for row in shards.read(entry.address)
    ]


def files_of(out: str, kind: str) -> list[str]:
    return sorted(
        storage.name_of(each.address) for each in storage.find_files(storage.join(out, kind))
    )


def write(out: str, *ids: str, in_shards: bool = True) -> None:
    for id in ids:
        answer = ANSWER | {"output": {"srt": id}}
        Results(out, in_shards).write(Record(id, f"/in/{id}"), answer, f"in/{id}")


@pytest.fixture(params=["folder", "bucket"])
def out(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "out")
    return f"{request.getfixturevalue('bucket')[1]}/{tmp_path.name}"


def recordings(ids) -> list[Recording]:
    return [Recording(id, f"/in/{id}", 1, 1, duration=3600.0) for id in ids]


def test_results_are_gathered_and_found(out, monkeypatch):
    """In shards of so many recordings, or of so many seconds."""
    monkeypatch.setattr(shards, "SHARD_RECORDINGS", 8)
    ids = [f"id{number:02}" for number in range(20)]
    write(out, *ids)
    shards.gather(out, recordings(ids))
    assert (files_of(out, "results"), files_of(out, "index")) == ([], [])
    assert len(files_of(out, "shards")) == 3
    assert {row["id"]: row["srt"] for row in rows_of(out)} == {id: id for id in ids}
    assert {row["answer"] for row in rows_of(out)} == {json.dumps(ANSWER)}
    assert Results(out).finished() == set(ids)
    monkeypatch.setattr(shards, "SHARD_SECONDS", 7200.0)
    write(out, "a", "b", "c")
    shards.gather(out, recordings("abc"))
    assert len(files_of(out, "shards")) == 5


def test_what_comes_later_makes_another_shard(out):
    write(out, "a", "b")
    shards.gather(out, recordings("ab"))
    before = files_of(out, "shards")
    shards.gather(out, recordings("ab"))
    assert files_of(out, "shards") == before
    write(out, "b", "c", "of another archive")  # b once more, by a run that began before
    shards.gather(out, recordings("abc"))
    assert sorted(row["id"] for row in rows_of(out)) == ["a", "b", "c"]
    assert set(before) < set(files_of(out, "shards"))
    assert files_of(out, "results") == ["of another archive.json"]
    assert files_of(out, "index") == ["of another archive.json"]


def test_results_of_a_run_without_shards_bring_their_formats(out):
    write(out, "name.with.dots-a", in_shards=False)
    shards.gather(out, recordings(["name.with.dots-a"]))
    (row,) = rows_of(out)
    assert (row["id"], row["srt"], row["vtt"]) == ("name.with.dots-a", "name.with.dots-a", None)
    assert files_of(out, "results") == []


def test_an_entry_whose_files_are_gathered_goes(out):
    """What a worker leaves that wrote a result between the two deletions of who gathered it."""
    write(out, "a")
    entry = storage.join(out, "index", "a.json")
    content = storage.read(entry)
    shards.gather(out, recordings("a"))
    storage.write(entry, content)
    shards.gather(out, recordings("a"))
    assert files_of(out, "index") == []
    assert [row["id"] for row in rows_of(out)] == ["a"]


def test_a_result_whose_name_is_anothers_now_is_not_gathered(out):
    write(out, "a")
    entry = storage.read(storage.join(out, "index", "a.json"))
    Results(out).write(Record("new", "/in/a"), ANSWER, "in/a")
    storage.write(storage.join(out, "index", "a.json"), entry)
    shards.gather(out, recordings(["a", "new"]))
    assert [row["id"] for row in rows_of(out)] == ["new"]


class Serial:
    """In place of a pool of threads: the calls one after the other, in the caller's own."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call, items) -> list:
        return [call(item) for item in items]


class Actor(threading.Thread):
    """Does its work by one operation on the store at a time, each when it is told to."""

    def __init__(self, work) -> None:
        super().__init__(daemon=True)
        self.work, self.over, self.fault = work, False, None
        self.told, self.ready = threading.Semaphore(0), threading.Semaphore(0)
        self.start()
        self.ready.acquire()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.fault = error
        self.over = True
        self.ready.release()

    def wait(self) -> None:
        self.ready.release()
        self.told.acquire()

    def step(self) -> None:
        if not self.over:
            self.told.release()
            self.ready.acquire()


class Store(dict[str, bytes]):
    """Files by address, in memory."""

    def _wait(self) -> None:
        if isinstance(actor := threading.current_thread(), Actor):
            actor.wait()

    def find_files(self, folder: str) -> list[storage.Entry]:
        self._wait()
        return [storage.Entry(name, 1, 1) for name in self if name.startswith(f"{folder}/")]

    def read(self, address: str) -> bytes:
        self._wait()
        if address not in self:
            raise FileNotFoundError
        return self[address]

    def open_file(self, address: str) -> io.BytesIO:
        return io.BytesIO(self.read(address))

    def write(self, address: str, content: bytes) -> None:
        self._wait()
        self[address] = content

    def delete(self, address: str) -> None:
        self._wait()
        self.pop(address, None)

    def ids(self) -> Counter[str]:
        """How many files hold each recording's result, where the next run looks for it."""
        found: Counter[str] = Counter()
        for address, content in self.items():
            if address.startswith("/out/shards"):
                found.update(ids_in(content))
            id = address.removeprefix("/out/index/").removesuffix(".json")
            if address.startswith("/out/index/") and f"/out/results/in/{id}.json" in self:
                found.update([id])
        return found


@lru_cache(maxsize=1000)
def ids_in(content: bytes) -> tuple[str, ...]:
    from pyarrow import parquet

    return tuple(parquet.read_table(io.BytesIO(content), columns=["id"])["id"].to_pylist())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60))
def test_two_who_gather_at_once_lose_nothing(order):
    """In any order of their reads, writes and deletes, and of a worker's; a shard is there already,
    and one of its results once more.
    """
    store = Store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ThreadPoolExecutor", Serial)
        for name in ("find_files", "read", "open_file", "write", "delete"):
            patch.setattr(storage, name, getattr(store, name))
        write("/out", "a", "b")
        shards.gather("/out", recordings("ab"))
        write("/out", "b", "c", "d")
        known = set(store.ids())
        works = [lambda: shards.gather("/out", recordings("abcde"))] * 2 + [
            lambda: write("/out", "e", "a")
        ]
        actors = [Actor(work) for work in works]
        for number in [*order, *range(3), *[0] * 60, *[1] * 60]:
            actors[number].step()
            known |= set(store.ids())
            assert set(store.ids()) == known
        for _ in range(12):
            actors[2].step()
        assert [(actor.over, actor.fault) for actor in actors] == [(True, None)] * 3
        shards.gather("/out", recordings("abcde"))
    # Two who gather different results at once may leave one in two shards.
    assert set(store.ids()) == set("abcde")
    assert all(address.startswith("/out/shards/") for address in store)
