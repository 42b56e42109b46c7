"""The folder `DATA_DIR`: its lock, and the recordings in it.

One server uses the folder at a time. Only this user can read the files. Folders that exist keep
their modes, because a volume may belong to another user. A recording is named after its job, with
`.part` until the database has the job. No other file is changed or removed.
"""

import fcntl
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from whosaid.errors import StartError

ARRIVING = ".part"
RECORDING = re.compile(rf"job_[0-9a-f]{{32}}({re.escape(ARRIVING)})?")
TABLES = {"jobs", "owner_key"}


class DataFolder:
    """The folder at `path`, made if missing. Raises StartError if it cannot be used as ours."""

    def __init__(self, path: Path) -> None:
        self.path, self._audio, self._database = path, path / "audio", path / "jobs.sqlite"
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
            if obstacle := self._obstacle():
                raise StartError(f"DATA_DIR={path}: {obstacle}")
            self._audio.mkdir(0o700, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StartError(f"DATA_DIR={path}: another server uses it") from None
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StartError(f"DATA_DIR={path}: {reason}") from error

    def _obstacle(self) -> str:
        """Return why the folder cannot be this server's, "" if it can. Changes nothing."""
        tables = self._tables()
        if tables and not tables >= TABLES:
            return "jobs.sqlite is another program's: choose another folder for jobs"
        if tables or not self._audio.exists():
            return ""
        names = os.listdir(self._audio) if self._audio.is_dir() else ["audio"]
        if recordings := sum(map(bool, map(RECORDING.fullmatch, names))):
            return (
                f"audio has {recordings} recordings of jobs, but jobs.sqlite is missing or empty:"
                " restore jobs.sqlite, or move audio elsewhere to begin anew"
            )
        text = "its folder audio is not this server's: choose another folder for jobs"
        return text if names else ""

    def _tables(self) -> set[str]:
        """Return the names of the database's tables. Raises OSError, sqlite3.Error."""
        if not self._database.exists() or not self._database.stat().st_size:
            return set()
        address = f"{self._database.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                return {name for (name,) in rows}
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise
            return TABLES  # a crash interrupted a change, which `store` completes

    def close(self) -> None:
        os.close(self._lock)

    def database(self) -> Path:
        """Return the database's path, made readable by this user only. Raises OSError."""
        self._database.touch(0o600)
        self._database.chmod(0o600)
        return self._database

    def protect(self, name: str) -> None:
        (self._audio / name).chmod(0o600)

    def write(self, name: str, audio: bytes) -> None:
        """Write an arriving recording and sync it to disk. On OSError no file is left."""
        path = self._audio / f"{name}{ARRIVING}"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(opened, "wb") as file:
                file.write(audio)
                file.flush()
                os.fsync(file.fileno())
            folder = os.open(self._audio, os.O_RDONLY)
            try:
                os.fsync(folder)  # so that the name survives a crash
            finally:
                os.close(folder)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def accept(self, name: str) -> None:
        """Rename an arriving recording, whose job is stored; after a crash a start repeats it."""
        (self._audio / f"{name}{ARRIVING}").rename(self._audio / name)

    def read(self, name: str) -> bytes:
        return (self._audio / name).read_bytes()

    def remove(self, name: str) -> None:
        (self._audio / name).unlink(missing_ok=True)

    def recordings(self) -> list[str]:
        """Return the names of recordings, arriving ones included."""
        with os.scandir(self._audio) as found:
            files = [each.name for each in found if each.is_file(follow_symlinks=False)]
        return [name for name in files if RECORDING.fullmatch(name)]
