"""What processes of audio/bounded_process.py are told to run in tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

FUNCTIONS = "untrusted:"


def own_pid(data: bytes) -> Iterator[float]:
    """Who answers."""
    yield os.getpid()


def checksum(data: bytes) -> Iterator[float]:
    """Of all bytes."""
    yield sum(data)


def has_variable(data: bytes) -> Iterator[float]:
    """Whether the environment has one of this name."""
    yield float(data.decode() in os.environ)


def sleep(data: bytes, seconds: float) -> Iterator[float]:
    """Wait without computing."""
    time.sleep(seconds)
    yield seconds


def busy_steps(data: bytes, steps: float, cost: float, seconds: float) -> Iterator[float]:
    """Steps that take `cost` seconds of CPU time each, for `seconds` of audio."""
    for step in range(1, int(steps) + 1):
        ends = time.process_time() + cost
        while time.process_time() < ends:
            pass
        yield step * seconds


def spin(data: bytes) -> Iterator[float]:
    """Never end."""
    while True:
        pass
    yield 0.0


def kill(data: bytes) -> Iterator[float]:
    """Die as of a fault in a library."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield 0.0


def killed_once(data: bytes) -> Iterator[float]:
    """The same, the first time; the data is where to note it."""
    if not Path(data.decode()).exists():
        Path(data.decode()).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield 1.0


def fail(data: bytes) -> Iterator[float]:
    """A fault of ours."""
    raise KeyError("a fault")
    yield 0.0
