"""Keeps jobs in SQLite, and their recordings in files.

Every change of a job is one statement whose WHERE has the expected status, so that only one of two
racing changes succeeds, and an answer is written at most once. A recording is on disk before its
job, and is removed when the job has ended; the next start repairs the leftovers of a crash. A job
that was running then runs again, alone, because it may have caused the crash; after a second crash
it fails. A failure of the server counts too. Times are seconds since 1970 and come from the caller.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from whosaid.errors import EndpointError, StartError
from whosaid.runtime.errors import endpoint_errors
from whosaid.server.errors import Kind, Refusal
from whosaid.server.idempotency import reused
from whosaid.server.jobs.folder import ARRIVING, DataFolder

logger = logging.getLogger("server")
T = TypeVar("T")

# Seconds between two tries to write to a failing disk, and between two looks for expired jobs and
# due callbacks.
TICK_S = 60.0
# Crashes of the process, and failures of the server, during a job after which the job fails.
MOST_CRASHES = 2
CRASHED = "JOB_CRASHED: the server ended twice while this job was running"
VERSION = 1
SCHEMA = f"""
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    status TEXT NOT NULL,
    created REAL NOT NULL,
    started REAL,
    ended REAL,
    crashes INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    request BLOB,
    error TEXT,
    answer BLOB,
    files BLOB,
    callback_url TEXT,
    callback_tries INTEGER NOT NULL DEFAULT 0,
    callback_due REAL,
    callback_delivered INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE owner_key (key BLOB NOT NULL);
PRAGMA user_version = {VERSION};
"""
COLUMNS = (
    "id, status, created, started, ended, error, callback_url, callback_tries, callback_delivered"
)
CLAIM = """
UPDATE jobs SET status = 'running', started = :now
WHERE number = (
    SELECT number FROM jobs WHERE status = 'queued' ORDER BY crashes DESC, number LIMIT 1
)
AND (SELECT count(*) FROM jobs WHERE status = 'running') < iif(crashes, 1, :most)
AND NOT EXISTS (SELECT 1 FROM jobs WHERE status = 'running' AND crashes)
RETURNING id, request
"""
# Digits at the end of a job's id that tell its content, if the client named it.
MARK_DIGITS = 8
WITH_KEY = f"SELECT id FROM jobs WHERE substr(id, 1, length(id) - {MARK_DIGITS}) = ?"
END = """
UPDATE jobs SET status = :status, ended = :now, error = :error, answer = :answer, files = :files,
    bytes = coalesce(length(:answer) + length(:files), 0), request = NULL,
    callback_due = iif(callback_url IS NULL OR :status = 'cancelled', NULL, :now)
WHERE id = :id AND (status = 'running' OR status = 'queued' AND :status = 'cancelled')
RETURNING id
"""


class Status(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Job:
    """A job without its request and answer. `error` is `CODE: text` if the job has failed."""

    id: str
    status: Status
    created: float
    started: float | None
    ended: float | None
    error: str | None
    callback_url: str | None
    callback_tries: int
    callback_delivered: bool

    @property
    def error_json(self) -> dict[str, str] | None:
        if self.error is None:
            return None
        return {"code": self.error.partition(":")[0], "message": self.error}


@dataclass(frozen=True, slots=True)
class Result:
    """A job's answer: its JSON, and the JSON of its files by format."""

    answer: bytes
    files: bytes


class JobStore:
    """At most `most` jobs, with about `most_bytes` of recordings and answers. Thread-safe.

    `owner_key` keys the digests by which the jobs' owners are known.
    """

    def __init__(self, folder: Path, most: int, most_bytes: int, now: float) -> None:
        self._folder = DataFolder(folder)
        self._most, self._most_bytes = most, most_bytes
        self._arriving: list[int] = []
        self._lock, self._recovered = threading.RLock(), False
        self._naming = threading.Lock()
        try:
            self._database, self.owner_key = _open(self._folder.database())
            self._take_up_recordings()  # first, because it makes room on a full disk
            try:
                self._recover(now)
            except Refusal as error:  # if the disk is full, `claim` recovers later
                if not isinstance(error.__cause__, sqlite3.OperationalError):
                    raise
        except (sqlite3.Error, OSError, Refusal) as error:
            self._folder.close()
            raise StartError(f"DATA_DIR={folder}: {error.__cause__ or error}") from error

    def close(self) -> None:
        with self._lock:
            self._database.close()
        self._folder.close()

    # Requests of clients

    def check_room(self, size: int) -> None:
        """Raise Refusal if `size` bytes do not fit now, or never."""
        if size > self._most_bytes:
            text = f"recordings of jobs may have {self._most_bytes} bytes"
            raise Refusal(Kind.BODY_TOO_LARGE, text)
        with self._lock:
            count, kept = self._first("SELECT count(*), coalesce(sum(bytes), 0) FROM jobs")
            if count + len(self._arriving) >= self._most:
                raise Refusal(Kind.JOBS_FULL, f"{self._most} jobs are kept, the most allowed")
            if kept + sum(self._arriving) + size > self._most_bytes:
                text = f"{self._most_bytes} bytes of jobs are kept, the most allowed"
                raise Refusal(Kind.JOBS_FULL, text)

    def add(
        self,
        owner: bytes,
        audio: bytes,
        request: bytes,
        callback_url: str | None,
        now: float,
        key: str | None = None,
    ) -> Job:
        """Return a new job that is on disk, or the owner's with the same idempotency `key`. Raises
        Refusal for a key of another recording, without room, or if the disk fails.
        """
        values = len(audio) + len(request), owner, now, request, callback_url
        if key is None:
            job = f"job_{secrets.token_hex(16)}"
            self._add(job, audio, *values)
            return self.job(owner, job)
        job = self._named(owner, key, (audio, request, (callback_url or "").encode()))
        with self._naming:
            if not (found := self._rows(WITH_KEY, (job[:-MARK_DIGITS],))):
                self._add(job, audio, *values)
            elif found[0][0] != job:
                raise reused()
            return self.job(owner, job)

    def _named(self, owner: bytes, key: str, content: Iterable[bytes]) -> str:
        """Return the id of a job with an idempotency key; its last digits tell the content."""
        name = hmac.digest(self.owner_key, owner + key.encode(), "sha256").hex()
        mark = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in content))
        return f"job_{name[: 32 - MARK_DIGITS]}{mark.hexdigest()[:MARK_DIGITS]}"

    def _add(self, job: str, audio: bytes, size: int, *values: object) -> None:
        with self._room(size):
            try:
                self._folder.write(job, audio)
                with self._lock:  # so that `claim` finds the recording under its name
                    self._rows(
                        "INSERT INTO jobs (id, bytes, owner, created, request, callback_url,"
                        " status) VALUES (?, ?, ?, ?, ?, ?, 'queued')",
                        (job, size, *values),
                    )
                    self._folder.accept(job)
            except OSError as error:
                text = "the recording cannot be written to the disk"
                raise Refusal(Kind.STORAGE_FAILED, text) from error
            except Refusal:
                self._folder.remove(job + ARRIVING)
                raise

    def job(self, owner: bytes, job: str) -> Job:
        one = f"SELECT {COLUMNS} FROM jobs WHERE id = ? AND owner = ?"
        return _job(self._first(one, job, owner))

    def jobs(self, owner: bytes) -> list[Job]:
        """Return all of the owner's jobs, the newest first."""
        newest = f"SELECT {COLUMNS} FROM jobs WHERE owner = ? ORDER BY number DESC"
        return [_job(row) for row in self._rows(newest, (owner,))]

    def result(self, owner: bytes, job: str) -> Result | None:
        """Return the answer of one of the owner's jobs; None if there is none. Raises Refusal."""
        both = "SELECT answer, files FROM jobs WHERE id = ? AND owner = ?"
        answer, files = self._first(both, job, owner)
        return None if answer is None else Result(answer, files)

    def cancel(self, owner: bytes, job: str, now: float) -> bool:
        """Cancel one of the owner's jobs; return False if it had ended. Raises Refusal."""
        return self.end(self.job(owner, job).id, Status.CANCELLED, now)

    def remove(self, owner: bytes, job: str) -> None:
        self._rows(
            "DELETE FROM jobs WHERE id = ? AND owner = ? AND status NOT IN ('queued', 'running')",
            (job, owner),
        )

    # Calls of the runner

    def claim(self, most: int, now: float) -> tuple[str, bytes] | None:
        """Set the next job to running, and return it with its request; None if `most` are running,
        or a job that a crash interrupted runs alone. Raises Refusal.
        """
        if not self._recovered:
            self._recover(now)
        rows = self._rows(CLAIM, {"most": most, "now": now})
        return rows[0] if rows else None

    def audio(self, job: str) -> bytes:
        return self._folder.read(job)

    def end(
        self,
        job: str,
        status: Status,
        now: float,
        error: str | None = None,
        result: Result | None = None,
    ) -> bool:
        """End a running job, or cancel a queued one; return False if it has another status."""
        values = {"id": job, "status": status, "now": now, "error": error}
        values |= {"answer": result and result.answer, "files": result and result.files}
        if not self._rows(END, values):
            return False
        self._folder.remove(job)
        return True

    def put_back_failed(self, job: str) -> bool:
        """Queue a running job again, unless this is its last of MOST_CRASHES failures."""
        statement = (
            "UPDATE jobs SET status = 'queued', started = NULL, crashes = crashes + 1"
            " WHERE id = ? AND status = 'running' AND crashes + 1 < ? RETURNING id"
        )
        return bool(self._rows(statement, (job, MOST_CRASHES)))

    def put_back(self) -> None:
        """Queue all running jobs again, for the next process."""
        self._rows("UPDATE jobs SET status = 'queued', started = NULL WHERE status = 'running'")

    def expire(self, ended_before: float) -> int:
        """Delete the jobs that ended before that time; return their number."""
        return len(self._rows("DELETE FROM jobs WHERE ended < ? RETURNING id", (ended_before,)))

    def counts(self) -> tuple[dict[Status, int], int]:
        """Return the number of jobs by status, and the bytes of their recordings and answers."""
        rows = self._rows("SELECT status, count(*), sum(bytes) FROM jobs GROUP BY status")
        found = {Status(status): count for status, count, _ in rows}
        return {each: found.get(each, 0) for each in Status}, sum(row[2] for row in rows)

    # Callbacks

    def callbacks(self) -> list[tuple[Job, float]]:
        """Return the jobs with pending callbacks and their times, the earliest first."""
        rows = self._rows(
            f"SELECT {COLUMNS}, callback_due FROM jobs WHERE callback_due IS NOT NULL"
            " ORDER BY callback_due"
        )
        return [(_job(row[:-1]), row[-1]) for row in rows]

    def called_back(self, job: str, delivered: bool, again: float | None) -> None:
        """Record that a callback was sent; `again` is the time of the next try, if any."""
        self._rows(
            "UPDATE jobs SET callback_tries = callback_tries + 1, callback_delivered = ?,"
            " callback_due = ? WHERE id = ?",
            (delivered, again, job),
        )

    def _recover(self, now: float) -> None:
        """Queue or fail the jobs that were running when the last process ended, in one transaction,
        so that each crash counts once. Raises Refusal if the disk is full; `claim` tries again.
        """
        with self._lock, self._database:  # which rolls back
            self._rows("BEGIN IMMEDIATE")
            self._rows("UPDATE jobs SET crashes = crashes + 1 WHERE status = 'running'")
            crashed = "SELECT id FROM jobs WHERE status = 'running' AND crashes >= ?"
            for (job,) in self._rows(crashed, (MOST_CRASHES,)):
                self.end(job, Status.FAILED, now, CRASHED)
            self.put_back()
            self._rows("COMMIT")
        self._recovered = True

    def _take_up_recordings(self) -> None:
        """Remove recordings of ended jobs and of uploads that never became jobs. Other recordings
        without a job stay, because a newer database may have their jobs.
        """
        jobs = dict(self._rows("SELECT id, status IN ('queued', 'running') FROM jobs"))
        removed = unknown = 0
        for name in self._folder.recordings():
            job = name.removesuffix(ARRIVING)
            if jobs.get(job):
                self._folder.protect(name)
                if name != job:
                    self._folder.accept(job)
            elif job in jobs or name != job:
                self._folder.remove(name)
                removed += 1
            else:
                unknown += 1
        if removed:
            logger.info("DATA_DIR: removed %d recordings that no job needs", removed)
        if unknown:
            text = "DATA_DIR: audio has %d recordings of jobs that jobs.sqlite lacks; they stay"
            logger.warning(text, unknown)

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Reserve room for a job that is being written. Raises the errors of `check_room`."""
        with self._lock:
            self.check_room(size)
            self._arriving.append(size)
        try:
            yield
        finally:
            with self._lock:
                self._arriving.remove(size)

    def _first(self, statement: str, *values: object) -> Any:  # noqa: ANN401  # of any columns
        rows = self._rows(statement, values)
        if not rows:
            raise Refusal(Kind.NOT_FOUND, "there is no such job")
        return rows[0]

    def _rows(self, statement: str, values: Any = ()) -> list[Any]:  # noqa: ANN401
        """Execute a statement in its own transaction. If that fails, log why and raise Refusal."""
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            logger.error("DATA_DIR: jobs.sqlite: %s", error)
            raise Refusal(Kind.STORAGE_FAILED, "the server's disk is full or fails") from error


def _open(path: Path) -> tuple[sqlite3.Connection, bytes]:
    """Open or create the database; read the owners' key. Raises sqlite3.Error for damage."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # Commits survive a power loss: EXTRA also syncs the folder after the journal is deleted.
    database.execute("PRAGMA synchronous = EXTRA")
    # Overwrite deleted data, and shrink the file.
    database.execute("PRAGMA secure_delete = ON")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"jobs.sqlite is of version {version}, not {VERSION}")
    if not version:
        database.execute("PRAGMA auto_vacuum = FULL")  # this writes, but a full disk must open too
        key = f"INSERT INTO owner_key VALUES (x'{secrets.token_hex(32)}')"
        database.executescript(f"BEGIN; {SCHEMA}; {key}; COMMIT")
    found = database.execute("SELECT key FROM owner_key").fetchone()
    if found is None:
        raise sqlite3.DatabaseError("jobs.sqlite has no owner key: restore it, or remove it")
    names = ", ".join(f"'{status}'" for status in Status)
    unknown = f"SELECT id FROM jobs WHERE status NOT IN ({names})"
    if row := database.execute(unknown).fetchone():
        raise sqlite3.DatabaseError(f"jobs.sqlite has a job of unknown status, {row[0]}")
    return database, found[0]


def _job(row: tuple[Any, ...]) -> Job:
    job = Job(*row)  # SQLite has neither type
    return replace(job, status=Status(row[1]), callback_delivered=bool(row[-1]))


async def until_written(write: Callable[..., T], *values: object) -> T:
    """Call `write` in a thread until the disk accepts it, and return its result."""
    while True:
        with suppress(EndpointError), endpoint_errors():
            return await asyncio.to_thread(write, *values)
        await asyncio.sleep(TICK_S)
