"""Functions that tests run in confined processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from whosaid.audio.sandbox import Work, limit_processor_time

FUNCTIONS = "untrusted:"


def result_of(value: Any) -> Work:
    """Return `value` without a step."""
    yield from ()
    return value, b""


def own_pid(data: bytes) -> Work:
    return result_of(os.getpid())


def checksum(data: bytes) -> Work:
    return result_of(sum(data))


def environment(data: bytes) -> Work:
    return result_of(dict(os.environ))


def halves(data: bytes) -> Work:
    """Yield the first half, and return the second."""
    middle = len(data) // 2
    yield "first", data[:middle]
    return "second", data[middle:]


def sleep(data: bytes, seconds: float) -> Work:
    time.sleep(seconds)
    return result_of(seconds)


def compute(data: bytes, seconds: float, allowed: Sequence[float] = (0.0,) * 10) -> Work:
    """Compute for `seconds` of processor time in ten parts, for each of which `allowed` has a limit
    of all so far, or 0.
    """
    for part, limit in zip(range(1, 11), allowed, strict=True):
        if limit:
            limit_processor_time(limit)
        while time.process_time() < part * seconds / 10:
            pass
        yield part, b""
    return seconds, b""


def kill(data: bytes, number: int) -> Work:
    """Die by a signal, as of a fault in a library."""
    os.kill(os.getpid(), number)
    return result_of(None)


def fail(data: bytes) -> Work:
    raise KeyError(data.decode())
    yield


def allocate(data: bytes, size: int) -> Work:
    yield from ()
    return len(bytes(size)), b""


def errors(data: bytes, path: str, port: int) -> Work:
    """Return what becomes of opening a file, connecting, and writing a file."""

    def attempt(*steps: Any) -> str:
        try:
            for step in steps:
                step()
        except OSError as error:
            return type(error).__name__ + str(error.errno)
        return "done"

    return result_of(
        [
            attempt(lambda: open(path)),
            attempt(lambda: socket.create_connection(("127.0.0.1", port))),
            attempt(lambda: open(path + "new", "w")),
            attempt(lambda: os.pipe()),
        ]
    )
