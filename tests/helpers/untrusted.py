"""Functions that tests run in confined processes."""

import ctypes
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whosaid.audio.sandbox import Work, limit_processor_time

FUNCTIONS = "tests.helpers.untrusted:"


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
    middle = len(data) // 2
    yield "first", data[:middle]
    return "second", data[middle:]


def sleep(data: bytes, seconds: float) -> Work:
    time.sleep(seconds)
    return result_of(seconds)


def compute(data: bytes, seconds: float, allowed: Sequence[float] = (0.0,) * 10) -> Work:
    """Compute for `seconds` of processor time in ten parts, for each of which `allowed` has a limit
    of all so far, or 0."""
    for part, limit in zip(range(1, 11), allowed, strict=True):
        if limit:
            limit_processor_time(limit)
        while time.process_time() < part * seconds / 10:
            pass
        yield part, b""
    return seconds, b""


def kill(data: bytes, number: int) -> Work:
    """Die by a signal, as after a fault in a library."""
    os.kill(os.getpid(), number)
    return result_of(None)


def fail(data: bytes) -> Work:
    raise KeyError(data.decode())
    yield


def allocate(data: bytes, size: int) -> Work:
    yield from ()
    return len(bytes(size)), b""


def pids(data: bytes) -> Work:
    """Yield numbers with the process that they come from."""
    for number in range(10):
        yield (number, os.getpid()), b""
    return None, b""


def own_pid_and_compute(data: bytes, seconds: float) -> Work:
    yield os.getpid(), b""
    limit_processor_time(2 * seconds)
    while time.process_time() < seconds:
        pass
    return None, b""


def attempts(data: bytes, folder: str, port: int, server: int, address: int, other: int) -> Work:
    """Return the results of attempts on the folder, a port, `server`'s memory and `other`."""
    libc, content = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(14)
    local, remote = (struct.pack("@QQ", at, 14) for at in (ctypes.addressof(content), address))

    def call(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments) < 0:
            raise OSError(ctypes.get_errno(), name)

    steps: dict[str, Callable[[], Any]] = {
        "open": Path(folder, "file").read_bytes,
        "create": Path(folder, "new").touch,
        "connect": lambda: socket.socket().connect(("127.0.0.1", port)),
        "pipe": os.pipe,
        "list": lambda: os.listdir(folder),
        "chmod": lambda: os.chmod(f"{folder}/file", 0),
        "truncate": lambda: os.truncate(f"{folder}/file", 0),
        "mkdir": lambda: os.mkdir(f"{folder}/new"),
        "rename": lambda: os.rename(f"{folder}/file", f"{folder}/other"),
        "unlink": lambda: os.unlink(f"{folder}/file"),
        "signal": lambda: os.kill(other, 0),
        "limit": lambda: resource.prlimit(other, resource.RLIMIT_CORE),
        "read memory": lambda: call("process_vm_readv", server, local, 1, remote, 1, 0),
        "attach": lambda: call("ptrace", 16, other, None, None),
        "fork": lambda: os.fork() or os._exit(0),
        "execute": lambda: os.execv(f"{folder}/program", ["program"]),
    }
    found = {}
    for name, step in steps.items():
        try:
            step()
            found[name] = "done"
        except OSError as error:
            found[name] = type(error).__name__ + str(error.errno)
    return result_of(found)
