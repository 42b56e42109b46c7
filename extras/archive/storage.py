"""Files in folders and in object stores, by address: an absolute path, or a URL.

An address alone is enough for any process on any machine to open a file, and it never holds a
credential: each machine takes those from its own environment. A file is written whole or not at
all: under another name and renamed in a folder, by one upload in a store. The stores are those of
pyarrow.fs: `s3://`, `gs://`, `abfs://`, `hf://`. Folders are listed without it: it stops at a name
that is not UTF-8.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SECRET = re.compile(r"key|secret|token|password|sig", re.IGNORECASE)
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hf")
# A link that leads nowhere, or to itself.
NOWHERE = (errno.ENOENT, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: its address, its size in bytes, and when it was changed, in nanoseconds since 1970
    or 0 where the store does not say.
    """

    address: str
    size: int
    modified: int


def locate(text: str, folder: str = "") -> str:
    """The address that `text` names; a relative path is one under `folder`, an address itself.

    Raises ValueError for a URL of no store that is known, one with credentials, or `..` in a URL,
    and for what is not UTF-8.
    """
    if not is_utf8(text):
        raise ValueError("has characters that UTF-8 has not")
    if not URL.match(text):
        if not text or "\0" in text:
            raise ValueError("neither a path nor a URL")
        if folder and is_url(folder) and not os.path.isabs(text):
            return locate(join(folder, *text.split("/")))
        return os.path.abspath(os.path.join(folder, os.path.expanduser(text)))
    parts = urlsplit(text)
    scheme = parts.scheme.lower()
    if scheme == "file":
        return os.path.abspath(unquote(parts.path))
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// is none of {', '.join(SCHEMES)}, and no path")
    named = [name for name, _ in parse_qsl(parts.query)]
    # The container of abfs stands where others have a user.
    user = "@" in parts.netloc and not scheme.startswith("abfs")
    if user or parts.password or any(SECRET.search(name) for name in named):
        raise ValueError("a URL may hold no credentials: each machine has its own")
    path = unquote(parts.path)
    if not parts.netloc or ".." in path.split("/") or parts.fragment:
        raise ValueError("a URL needs a bucket, and a path without .. and #")
    path = quote("/" + path.strip("/")) if path.strip("/") else ""
    return f"{scheme}://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")


def is_utf8(address: str) -> bool:
    """Whether it can be written as UTF-8: Linux allows any bytes in a name, and Python reads those
    that are not UTF-8 as lone surrogates.
    """
    try:
        address.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_url(address: str) -> bool:
    """Whether it lies in an object store."""
    return URL.match(address) is not None


def join(address: str, *names: str) -> str:
    """The address of what is called `names` under `address`."""
    if not is_url(address):
        return os.path.join(address, *names)
    base, mark, query = address.partition("?")
    return "/".join((base.rstrip("/"), *map(quote, names))) + mark + query


def parent(address: str) -> str:
    """The folder that holds it."""
    if not is_url(address):
        return os.path.dirname(address)
    base, mark, query = address.partition("?")
    return base.rpartition("/")[0] + mark + query


def is_under(address: str, folder: str) -> bool:
    """Whether it is `folder` or lies within, links in a file system followed."""
    if is_url(address) != is_url(folder):
        return False
    if not is_url(address):
        real = os.path.realpath(folder)
        return os.path.commonpath([os.path.realpath(address), real]) == real
    inner, outer = (unquote(each.partition("?")[0]) for each in (address, folder))
    same_store = address.partition("?")[2] == folder.partition("?")[2]
    return same_store and (inner + "/").startswith(outer.rstrip("/") + "/")


def parts_below(address: str, folder: str) -> list[str]:
    """The names that lead from `folder` to the address, by its text alone; none where it does not
    lie there.
    """
    inner, outer = address, folder
    if is_url(address):
        inner, outer = address.partition("?")[0], folder.partition("?")[0]
    top = outer.rstrip("/") + "/"
    if not inner.startswith(top):
        return []
    names = inner.removeprefix(top).split("/")
    return list(map(unquote, names)) if is_url(address) else names


def name_of(address: str) -> str:
    """The last part of it."""
    return unquote(address.partition("?")[0] if is_url(address) else address).rpartition("/")[2]


@lru_cache(maxsize=64)
def _store(root: str) -> tuple[Any, str]:
    from pyarrow import fs

    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(root)
    except ImportError as error:
        raise ValueError(f"{root.partition('?')[0]}: {error}") from error
    return found


def _file_system(address: str) -> tuple[Any, str]:
    """The file system, of pyarrow, and the path within."""
    if not is_url(address):
        from pyarrow import fs

        return fs.LocalFileSystem(), address
    parts = urlsplit(address)
    # S3: a small file is one upload, as soon as it is closed, and not one in parts.
    options = [parts.query, "allow_delayed_open=true" if parts.scheme == "s3" else ""]
    query = "?" + "&".join(filter(None, options)) if any(options) else ""
    system, root = _store(f"{parts.scheme}://{parts.netloc}{query}")
    return system, root.rstrip("/") + unquote(parts.path)


def look(address: str) -> Entry | None:
    """The file there, if there is one. Raises OSError where that cannot be known."""
    from pyarrow import fs

    system, path = _file_system(address)
    info = system.get_file_info(path)
    return _entry(address, info) if info.type == fs.FileType.File else None


def exists(address: str) -> bool:
    """Whether there is a file."""
    return look(address) is not None


def is_folder(address: str) -> bool:
    """Whether there is a folder or, in a store, anything under this name."""
    from pyarrow import fs

    system, path = _file_system(address)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


def find_files(address: str) -> Iterator[Entry]:
    """All files in a folder and the folders within, none where it does not exist.

    Hidden ones, whose own or whose folder's name begins with a dot, are left out. An address that
    is not UTF-8 (`is_utf8`) may be among them, which nothing here opens.
    """
    if not is_url(address):
        yield from _find_local(address)
        return
    from pyarrow import fs

    system, top = _file_system(address)
    selector = fs.FileSelector(top, allow_not_found=True, recursive=True)
    for info in system.get_file_info(selector):
        names = info.path[len(top) :].strip("/").split("/")
        if info.type == fs.FileType.File and not any(name.startswith(".") for name in names):
            yield _entry(join(address, *names), info)


def _find_local(top: str) -> Iterator[Entry]:
    """Links are followed, but for those to a folder in which they lie."""
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            info = os.stat(folder)
            here = info.st_dev, info.st_ino
            if here in above:
                continue
            with os.scandir(folder) as found:
                entries = [each for each in found if not each.name.startswith(".")]
        except FileNotFoundError:
            continue
        for each in entries:
            try:
                info = each.stat()
            except OSError as error:
                if error.errno in NOWHERE:
                    continue
                raise
            if stat.S_ISDIR(info.st_mode):
                waiting.append((each.path, above | {here}))
            elif stat.S_ISREG(info.st_mode):
                yield Entry(each.path, info.st_size, info.st_mtime_ns)


def _entry(address: str, info: Any) -> Entry:  # noqa: ANN401
    return Entry(address, int(info.size or 0), int(info.mtime_ns or 0))


def open_file(address: str) -> Any:  # noqa: ANN401
    """A binary file to read and seek in, to be closed. Raises OSError."""
    system, path = _file_system(address)
    return system.open_input_file(path)


def read(address: str) -> bytes:
    """Its content. Raises OSError."""
    with open_file(address) as file:
        content: bytes = file.read()
    return content


def write(address: str, content: bytes) -> None:
    """Write a file that is either whole or not there, over any that is. Raises OSError."""
    if not is_url(address):
        _write_local(address, content)
        return
    system, path = _file_system(address)
    # Closing is what makes the object exist, so nothing closes it where writing has failed.
    stream = system.open_output_stream(path)
    stream.write(content)
    stream.close()


def _write_local(path: str, content: bytes) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def delete(address: str) -> None:
    """Delete a file, where there is one. Raises OSError."""
    system, path = _file_system(address)
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return
