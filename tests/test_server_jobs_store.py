"""The store of jobs, against a model of it in a dict: in any order of calls, and wherever the
process ends, no job is lost and none is answered twice."""

import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from tests.helpers.refusals import refused
from whosaid.errors import StartError
from whosaid.server.errors import Refusal
from whosaid.server.jobs.store import CRASHED, MOST_CRASHES, JobStore, Result, Status

MOST, MOST_BYTES, KEPT = 4, 100, 50.0
NAME = "job_" + "0a" * 16
STRAY = f"{NAME}.part"
OWNERS = (b"one", b"two")
MEMORY = Path("/dev/shm")  # where nothing waits for a disk


@dataclass
class Modelled:
    owner: bytes
    size: int
    status: Status = Status.QUEUED
    crashes: int = 0
    ended: float | None = None
    result: Result | None = None
    calls_back: bool = False

    def end(self, status: Status, now: float, result: Result | None = None) -> None:
        self.status, self.ended, self.result = status, now, result
        self.size = len(result.answer) + len(result.files) if result else 0


class StoreMachine(stateful.RuleBasedStateMachine):
    """Time goes on by a second a step; `model` has jobs in the order in which they came."""

    ids = stateful.Bundle("ids")

    @stateful.initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.now, self.model = 1000.0, {}
        self.open()

    def open(self) -> None:
        self.store = JobStore(self.folder, MOST, MOST_BYTES, self.now)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def tick(self) -> float:
        self.now += 1
        return self.now

    def of(self, *statuses: Status) -> list[str]:
        return [job for job, each in self.model.items() if each.status in statuses]

    @stateful.rule(
        target=ids,
        owner=st.sampled_from(OWNERS),
        size=st.integers(1, 60),
        url=st.sampled_from([None, "https://a.test/"]),
    )
    def add(self, owner, size, url):
        kept = sum(each.size for each in self.model.values())
        audio = bytes(size)
        if len(self.model) >= MOST or kept + size + 2 > MOST_BYTES:
            with refused("JOBS_FULL"):
                self.store.add(owner, audio, b"{}", url, self.tick())
            return stateful.multiple()
        job = self.store.add(owner, audio, b"{}", url, self.tick())
        assert (job.status, job.created) == (Status.QUEUED, self.now)
        self.model[job.id] = Modelled(owner, size + 2, calls_back=url is not None)
        return job.id

    @stateful.rule(most=st.integers(1, 3))
    def claim(self, most):
        claimed = self.store.claim(most, self.tick())
        queued, running = self.of(Status.QUEUED), self.of(Status.RUNNING)
        suspects = [job for job in queued if self.model[job].crashes]
        first = (suspects or queued or [None])[0]
        alone = bool(suspects) or any(self.model[job].crashes for job in running)
        may = first is not None and (not running if alone else len(running) < most)
        assert claimed == ((first, b"{}") if may else None)
        if may:
            self.model[first].status = Status.RUNNING
            assert len(self.store.audio(first)) == self.model[first].size - 2

    @stateful.rule(job=ids, length=st.integers(1, 20))
    def succeed(self, job, length):
        result = Result(bytes(length), b"{}")
        runs = job in self.of(Status.RUNNING)
        assert self.store.end(job, Status.SUCCEEDED, self.tick(), result=result) is runs
        if runs:
            self.model[job].end(Status.SUCCEEDED, self.now, result)

    @stateful.rule(job=ids)
    def fail(self, job):
        runs = job in self.of(Status.RUNNING)
        assert self.store.end(job, Status.FAILED, self.tick(), "MODEL_ERROR: x") is runs
        if runs:
            self.model[job].end(Status.FAILED, self.now)

    @stateful.rule(job=ids, owner=st.sampled_from(OWNERS))
    def cancel(self, job, owner):
        if job not in self.model or self.model[job].owner != owner:
            with refused("NOT_FOUND"):
                self.store.cancel(owner, job, self.tick())
            return
        active = self.model[job].ended is None
        assert self.store.cancel(owner, job, self.tick()) is active
        if active:
            self.model[job].end(Status.CANCELLED, self.now)

    @stateful.rule(job=ids, owner=st.sampled_from(OWNERS))
    def remove(self, job, owner):
        self.store.remove(owner, job)
        known = self.model.get(job)
        if known and known.owner == owner and known.ended is not None:
            del self.model[job]

    @stateful.rule(later=st.sampled_from([0.0, 30.0, 60.0]))
    def expire(self, later):
        self.now += later
        ended = [(job, each.ended) for job, each in self.model.items() if each.ended is not None]
        gone = [job for job, at in ended if at < self.now - KEPT]
        assert self.store.expire(self.now - KEPT) == len(gone)
        for job in gone:
            del self.model[job]

    @stateful.rule()
    def crash(self):
        """The process ends, and leaves besides an upload that did not become a job, and a job whose
        recording has not got its name."""
        self.store.close()
        (self.folder / "audio" / STRAY).write_bytes(b"x")
        for job in self.of(Status.QUEUED, Status.RUNNING)[:1]:
            recording = self.folder / "audio" / job
            recording.rename(f"{recording}.part")
        self.tick()
        self.open()
        for job in self.of(Status.RUNNING):
            each = self.model[job]
            each.crashes += 1
            each.status = Status.QUEUED
            if each.crashes == MOST_CRASHES:
                each.end(Status.FAILED, self.now)
                assert self.store.job(each.owner, job).error == CRASHED

    @stateful.rule()
    def restart(self):
        """Restart like after SIGTERM, which does not count as a crash."""
        self.store.put_back()
        self.store.close()
        self.open()
        for job in self.of(Status.RUNNING):
            self.model[job].status = Status.QUEUED

    @stateful.precondition(lambda self: hasattr(self, "store"))
    @stateful.invariant()
    def the_store_is_as_modelled(self):
        for owner in OWNERS:
            mine = [job for job, each in self.model.items() if each.owner == owner]
            assert [job.id for job in self.store.jobs(owner)] == mine[::-1]
        for job, each in self.model.items():
            told = self.store.job(each.owner, job)
            assert (told.status, told.ended) == (each.status, each.ended)
            assert self.store.result(each.owner, job) == each.result
        recordings = {path.name for path in (self.folder / "audio").iterdir()}
        assert recordings == set(self.of(Status.QUEUED, Status.RUNNING))
        counts, kept = self.store.counts()
        assert counts == {status: len(self.of(status)) for status in Status}
        assert kept == sum(each.size for each in self.model.values())
        ended = self.of(Status.SUCCEEDED, Status.FAILED)
        due = [self.model[job].ended for job in ended if self.model[job].calls_back]
        assert [when for _, when in self.store.callbacks()] == sorted(due)  # the first one first


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=30)


@pytest.fixture
def store(tmp_path):
    with_room = JobStore(tmp_path / "data", MOST, MOST_BYTES, 0.0)
    yield with_room
    with_room.close()


def test_all_is_for_this_user_alone(store, tmp_path):
    store.add(b"one", b"sound", b"{}", None, 1.0)
    data = tmp_path / "data"
    paths = [path for path in data.rglob("*") if path.is_file()]
    modes = {path.relative_to(data).as_posix(): path.stat().st_mode & 0o777 for path in paths}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path):
    """A volume's mode cannot be changed, and others may use a shared folder."""
    tmp_path.chmod(0o755)
    JobStore(tmp_path, MOST, MOST_BYTES, 0.0).close()
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "audio")]
    assert modes == [0o755, 0o700]


def test_one_folder_is_one_servers(store, tmp_path):
    with pytest.raises(StartError, match=r"^START_FAILED: DATA_DIR=.*another server uses it"):
        JobStore(tmp_path / "data", MOST, MOST_BYTES, 0.0)


def test_an_unusable_jobs_folder_stops_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="DATA_DIR="):
        JobStore(tmp_path / "file", MOST, MOST_BYTES, 0.0)
    (tmp_path / "jobs.sqlite").write_bytes(b"no database" * 100)
    for _ in range(2):  # which leaves no lock behind
        with pytest.raises(StartError, match="not a database"):
            JobStore(tmp_path, MOST, MOST_BYTES, 0.0)


def test_many_at_once_keep_the_bounds(store):
    def add(_: int) -> int:
        try:
            store.add(b"one", bytes(30), b"", None, 1.0)
        except Refusal:
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        assert 1 <= sum(threads.map(add, range(40))) <= MOST_BYTES // 30


def test_a_full_disk_leaves_nothing_behind(store, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whosaid.server.jobs.folder.os.fsync", fail)
    with refused("STORAGE_FAILED"):
        store.add(b"one", b"sound", b"{}", None, 1.0)
    assert (store.jobs(b"one"), [*(tmp_path / "data" / "audio").iterdir()]) == ([], [])
    monkeypatch.undo()
    store.add(b"one", b"sound", b"{}", None, 1.0)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_refuses_changes_but_not_reads(store, caplog):
    job = store.add(b"one", b"sound", b"{}", None, 1.0)
    changes = (
        lambda: store.cancel(b"one", job.id, 2.0),
        lambda: store.claim(1, 2.0),
        lambda: store.add(b"one", b"sound", b"{}", None, 2.0),
    )
    with full_disk():
        for change in changes:
            with refused("STORAGE_FAILED"):
                change()
        assert store.jobs(b"one") == [job]
        assert store.expire(3.0) == 0
    assert "DATA_DIR: jobs.sqlite: " in caplog.text
    assert store.cancel(b"one", job.id, 3.0)
    with full_disk(), refused("STORAGE_FAILED"):
        store.remove(b"one", job.id)
    store.remove(b"one", job.id)
    assert store.jobs(b"one") == []


def test_a_full_disk_delays_the_count_of_a_crash(tmp_path):
    store = JobStore(tmp_path, MOST, MOST_BYTES, 0.0)
    job = store.add(b"one", b"sound", b"{}", None, 1.0).id
    for _ in range(MOST_CRASHES):
        assert store.claim(1, 2.0) == (job, b"{}")
        store.close()  # the process ends
        for _ in range(2):  # as often as it is started without room
            with full_disk():
                store = JobStore(tmp_path, MOST, MOST_BYTES, 3.0)
                assert store.job(b"one", job).status is Status.RUNNING
                assert store.audio(job) == b"sound"
                with refused("STORAGE_FAILED"):
                    store.claim(1, 4.0)
                store.close()
        store = JobStore(tmp_path, MOST, MOST_BYTES, 5.0)
    assert (store.job(b"one", job).error, store.claim(1, 6.0)) == (CRASHED, None)
    store.close()


def state_of(folder: Path) -> dict[str, tuple[int, object]]:
    """Return the mode and content of all files, folders and links of a folder, by path."""
    state: dict[str, tuple[int, object]] = {}
    for path in [folder, *folder.rglob("*")]:
        content: object = os.readlink(path) if path.is_symlink() else None
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        state[str(path)] = (path.lstat().st_mode, content)
    return state


def make_database(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["audio/interview.wav", "talk.mp3"], "audio is not this server's: choose another"),
        (["audio/job_1/talk.wav"], "audio is not this server's"),
        ([f"audio/{NAME}", "audio/talk.wav"], "audio has 1 recordings of jobs, but jobs.sqlite is"),
        ([f"audio/{STRAY}"], "restore jobs.sqlite, or move audio"),
        (["audio"], "audio is not this server's"),
    ],
)
@pytest.mark.parametrize("database", [None, "", "VACUUM"])
@pytest.mark.parametrize("link", [False, True])
def test_a_users_folder_keeps_bytes_and_modes(tmp_path, monkeypatch, files, said, database, link):
    for name in files:
        path = tmp_path / ("elsewhere" + name[5:] if link and name[:5] == "audio" else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        path.chmod(0o640)
    if link:
        (tmp_path / "audio").symlink_to(tmp_path / "elsewhere")
    if database is not None:
        make_database(tmp_path / "jobs.sqlite", database)
        (tmp_path / "jobs.sqlite").chmod(0o644)
    (tmp_path / "audio").chmod(0o751)
    monkeypatch.chdir(tmp_path)
    before = state_of(tmp_path)
    with pytest.raises(StartError, match=f"^START_FAILED: DATA_DIR=.*{said}"):
        JobStore(Path(), MOST, MOST_BYTES, 0.0)
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("version", [0, 1])
def test_another_programs_database_is_not_changed(tmp_path, version):
    tables = f"CREATE TABLE jobs (x); PRAGMA user_version = {version}"
    make_database(tmp_path / "jobs.sqlite", tables)
    before = state_of(tmp_path)
    with pytest.raises(StartError, match=r"jobs\.sqlite is another program's"):
        JobStore(tmp_path, MOST, MOST_BYTES, 0.0)
    assert state_of(tmp_path) == before


def test_only_recordings_of_ended_jobs_are_removed(tmp_path, caplog):
    """Beside them are files of others, and the recording of a job of a newer database."""
    caplog.set_level("INFO")
    store = JobStore(tmp_path, MOST, MOST_BYTES, 0.0)
    ended, kept = (store.add(b"one", b"sound", b"{}", None, 1.0).id for _ in range(2))
    store.cancel(b"one", ended, 2.0)
    store.close()
    audio = tmp_path / "audio"
    (tmp_path / "talk.wav").write_bytes(b"mine")
    (audio / f"job_{'1' * 32}").symlink_to(tmp_path / "talk.wav")
    (audio / f"job_{'2' * 32}").mkdir()
    for name in ("talk.wav", "job_stray", NAME.upper(), f"{NAME}.wav", NAME):
        (audio / name).write_bytes(b"mine")
    audio.chmod(0o755)
    before = state_of(tmp_path)
    for name in (ended, STRAY):
        (audio / name).write_bytes(b"x")
    with full_disk():
        JobStore(tmp_path, MOST, MOST_BYTES, 3.0).close()
    assert state_of(tmp_path) == before
    assert (audio / kept).read_bytes() == b"sound"
    assert "removed 2 recordings that no job needs" in caplog.text
    assert "audio has 1 recordings of jobs that jobs.sqlite lacks; they stay" in caplog.text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM owner_key", "no owner key"),
        ("UPDATE jobs SET status = 'lost'", "a job of unknown status, job_"),
        ("PRAGMA user_version = 9", "version 9"),  # of a newer server
    ],
)
def test_a_damaged_database_stops_the_start(tmp_path, damage, said):
    store = JobStore(tmp_path, MOST, MOST_BYTES, 0.0)
    store.add(b"one", b"sound", b"{}", None, 1.0)
    store.close()
    make_database(tmp_path / "jobs.sqlite", damage)
    for _ in range(2):  # the first start leaves no lock behind
        with pytest.raises(StartError, match=f"^START_FAILED: DATA_DIR=.*{said}"):
            JobStore(tmp_path, MOST, MOST_BYTES, 0.0)


def test_a_restored_database_is_for_this_user_alone(tmp_path):
    JobStore(tmp_path, MOST, MOST_BYTES, 0.0).close()
    database = tmp_path / "jobs.sqlite"
    database.chmod(0o644)
    JobStore(tmp_path, MOST, MOST_BYTES, 0.0).close()
    assert database.stat().st_mode & 0o777 == 0o600


def test_removed_jobs_leave_no_data_on_the_disk(store, tmp_path):
    canary, said = b"the canary of a request", b"the canary of an answer"
    job = store.add(b"one", b"sound", canary, None, 1.0)
    store.claim(1, 2.0)
    store.end(job.id, Status.SUCCEEDED, 3.0, result=Result(said, b"{}"))
    database = (tmp_path / "data" / "jobs.sqlite").read_bytes
    assert canary not in database()
    assert said in database()
    store.remove(b"one", job.id)
    assert said not in database()
