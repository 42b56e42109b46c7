"""The folder `DATA_DIR`: its lock, and the recordings in it.

One server uses the folder at a time. The kernel's lock ends with the process. Only this user can
read the files, because recordings and transcripts are private. The folder itself keeps its mode,
because a volume may belong to another user.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from whosaid.errors import StartError


class DataFolder:
    """The folder at `path`, created if it is missing. Raises StartError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path, self._audio = path, path / "audio"
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
            self._audio.mkdir(0o700, exist_ok=True)
            self._audio.chmod(0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StartError(f"DATA_DIR={path}: another server uses it") from None
        except OSError as error:
            raise StartError(f"DATA_DIR={path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._lock)

    def database(self) -> Path:
        """Return the path of the database, made readable by this user only, because a restored file
        may have another mode. SQLite gives the journal the same mode. Raises OSError.
        """
        path = self.path / "jobs.sqlite"
        path.touch(0o600)
        path.chmod(0o600)
        return path

    def write(self, name: str, audio: bytes) -> None:
        """Write a recording and sync it to disk. If that raises OSError, no file is left."""
        path = self._audio / name
        try:
            with open(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
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

    def read(self, name: str) -> bytes:
        return (self._audio / name).read_bytes()

    def remove(self, name: str) -> None:
        (self._audio / name).unlink(missing_ok=True)

    def names(self) -> set[str]:
        return {path.name for path in self._audio.iterdir()}
