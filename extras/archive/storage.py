"""Files in folders and object stores, by address: an absolute path, or a URL.

The stores are pyarrow.fs's. A URL names an object as `aws s3` does, without escapes, and never
holds a credential: each machine takes those from its own environment. A file is written atomically:
under a temporary name and renamed in a folder, by one upload in a store.

An operation that fails is tried again, unless another try cannot mend the error (a missing file, a
full disk, a missing permission). Object stores give faults of the network no number.
"""

import errno
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, wraps
from hashlib import file_digest
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote

from pyarrow import fs

from whosaid.runtime.files import write_file

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hf")
# Operations on a store that run in parallel, because stores answer slowly.
PARALLEL = 16
# Seconds before each further try; clients of object stores already retry a few times themselves.
PAUSES = (0.5, 2.0, 8.0)
LASTING = {
    *(errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG),
}
LASTING_TYPES = (FileNotFoundError, PermissionError)  # pyarrow's have no errno


def in_parallel(operation: Callable[[U], T], items: Iterable[U]) -> list[T]:
    """Return the results for all items, PARALLEL at a time."""
    with ThreadPoolExecutor(PARALLEL) as threads:
        return list(threads.map(operation, items))


def patient(operation: Callable[P, T]) -> Callable[P, T]:
    """Retry `operation` after each of PAUSES, unless its OSError is permanent."""

    @wraps(operation)
    def patiently(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause in PAUSES:
            try:
                return operation(*args, **kwargs)
            except OSError as error:
                if isinstance(error, LASTING_TYPES) or error.errno in LASTING:
                    raise
            time.sleep(pause)
        return operation(*args, **kwargs)

    return patiently


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: address, size in bytes, and time of change in nanoseconds since 1970 (0: unknown)."""

    address: str
    size: int
    modified: int


def locate(text: str, folder: str = "") -> str:
    """Return the address for `text`; a relative path is below the address `folder`. Raises
    ValueError if it is not UTF-8, and for a URL of an unknown store, with credentials or with `..`.
    """
    if not is_utf8(text):
        raise ValueError("has characters that UTF-8 lacks")
    url = URL.fullmatch(text)
    if url is None:
        if not text or "\0" in text:
            raise ValueError("neither a path nor a URL")
        if is_url(folder) and not os.path.isabs(text):
            return locate(join(folder, text))
        return os.path.abspath(os.path.join(folder, os.path.expanduser(text)))
    scheme, bucket, path = url[1].lower(), url[2], url[3]
    if scheme == "file":
        return os.path.abspath(unquote(path))
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// is none of {', '.join(SCHEMES)}, and no path")
    # abfs has the container in the place of a user name.
    user, _, account = bucket.rpartition("@")
    if user and (":" in user or not (account and scheme.startswith("abfs"))):
        raise ValueError("a URL must not have credentials: each machine has its own")
    if not bucket or ".." in path.split("/"):
        raise ValueError("a URL needs a bucket and a path without ..")
    return f"{scheme}://{bucket}{path.rstrip('/')}"


def is_utf8(address: str) -> bool:
    """Return whether a name is UTF-8. Python reads Linux's other names as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in address)


def is_url(address: str) -> bool:
    return URL.fullmatch(address) is not None


join = posixpath.join
parent = posixpath.dirname
name_of = posixpath.basename


def is_under(address: str, folder: str) -> bool:
    """Return whether an address is `folder` or below it; links in a file system are followed."""
    if not is_url(address) and not is_url(folder):
        address, folder = os.path.realpath(address), os.path.realpath(folder)
    return address == folder or bool(parts_below(address, folder))


def parts_below(address: str, folder: str) -> list[str]:
    """Return the names from `folder` to an address, by its text; [] if it is not below `folder`."""
    top = folder.rstrip("/") + "/"
    return address.removeprefix(top).split("/") if address.startswith(top) else []


@lru_cache(maxsize=64)
def _store(root: str) -> tuple[Any, str]:
    # S3: a small file is one upload on close, not one in parts.
    options = "?allow_delayed_open=true" if root.startswith("s3:") else ""
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(root + options)
    except ImportError as error:
        raise ValueError(f"{root}: {error}") from error
    return found


def _file_system(address: str) -> tuple[Any, str]:
    """Return pyarrow's file system, and the path within."""
    if url := URL.fullmatch(address):
        system, root = _store(f"{url[1]}://{url[2]}")
        return system, root.rstrip("/") + url[3]
    return fs.LocalFileSystem(), address


@patient
def look(address: str) -> Entry | None:
    """Return the file at an address; None if there is none. Raises OSError if that is unknown."""
    system, path = _file_system(address)
    info = system.get_file_info(path)
    return _entry(address, info) if info.type == fs.FileType.File else None


@patient
def is_folder(address: str) -> bool:
    """Return whether there is a folder or, in a store, anything under this name."""
    system, path = _file_system(address)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


@patient
def find_files(address: str) -> list[Entry]:
    """Return all files below a folder, [] if it does not exist, without hidden files and folders.
    Addresses may not be UTF-8 (`is_utf8`); such files cannot be opened.
    """
    if not is_url(address):
        return list(_find_local(address))
    system, top = _file_system(address)
    found = []
    for info in system.get_file_info(fs.FileSelector(top, allow_not_found=True, recursive=True)):
        names = parts_below(info.path, top)
        if info.type == fs.FileType.File and not any(name.startswith(".") for name in names):
            found.append(_entry(join(address, *names), info))
    return found


def _find_local(top: str) -> Iterator[Entry]:
    """Follow links, but enter each folder once. (pyarrow stops at a name that is not UTF-8.)"""
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(top, onerror=_raise, followlinks=True):
        info = os.stat(folder)
        if (info.st_dev, info.st_ino) in seen:
            folders.clear()
            continue
        seen.add((info.st_dev, info.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (os.path.join(folder, name) for name in files if not name.startswith(".")):
            try:
                info = os.stat(path)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):  # a dangling or circular link
                    continue
                raise
            if stat.S_ISREG(info.st_mode):
                yield Entry(path, info.st_size, info.st_mtime_ns)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _entry(address: str, info: Any) -> Entry:  # noqa: ANN401
    return Entry(address, int(info.size or 0), int(info.mtime_ns or 0))


def _open(address: str) -> Any:  # noqa: ANN401
    system, path = _file_system(address)
    return system.open_input_file(path)


@patient
def read(address: str) -> bytes:
    with _open(address) as file:
        content: bytes = file.read()
    return content


@patient
def digest(address: str) -> str:
    with _open(address) as file:
        return file_digest(file, "sha256").hexdigest()


@patient
def write(address: str, content: bytes) -> None:
    """Write a file atomically, replacing an existing one. Raises OSError."""
    if not is_url(address):
        file = Path(address)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, content)
        return
    system, path = _file_system(address)
    # Closing creates the object, so it is not closed if writing has failed.
    stream = system.open_output_stream(path)
    stream.write(content)
    stream.close()


@patient
def delete(address: str) -> None:
    """Delete a file, if there is one. Raises OSError."""
    system, path = _file_system(address)
    with suppress(FileNotFoundError):
        system.delete_file(path)
