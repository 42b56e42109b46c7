"""How long recordings are, by their headers: to deal them out, to tell the time left.

Files are not trusted: their headers are read in processes of their own, with little memory, little
of each file and little time. What a process died of is not looked for: the files it had are
estimated by their sizes, and the worker that computes says what is wrong. So it is with whatever
else goes wrong here.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import ThreadPoolExecutor
from typing import Any

from extras.archive.options import LONGEST

# A process takes so many files at a time, in so many threads: stores answer slowly.
FILES, THREADS, MOST_PROCESSES = 64, 16, 8
# Bytes read of one file; bytes a process may have; seconds for the files it takes at a time.
MOST_READ, MOST_MEMORY, PATIENCE = 4 * 2**20, 4 * 2**30, 120


class HeaderReader(io.RawIOBase):
    """A file of which no more than MOST_READ bytes can be read: beyond, it seems to end."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401
        self._file, self._left = file, MOST_READ

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """Its index may stand at the end."""
        return True

    def tell(self) -> int:
        """The place in the file."""
        return int(self._file.tell())

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to another place."""
        self._file.seek(place, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        """Read as much as fits and is left of the allowance; how many bytes."""
        content = self._file.read(min(len(buffer), self._left))
        buffer[: len(content)] = content
        self._left -= len(content)
        return len(content)


def read_durations(
    addresses: Sequence[str], report: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """Seconds by address, for those files that tell; `report` hears how many were looked at."""
    durations: dict[str, float] = {}
    portions = deque(addresses[at : at + FILES] for at in range(0, len(addresses), FILES))
    done = 0
    for portion, found in _read_all(portions):
        durations.update(found)
        done += len(portion)
        report(done)
    return durations


def _read_all(
    portions: deque[Sequence[str]],
) -> Iterator[tuple[Sequence[str], dict[str, float]]]:
    """Each portion with what was found. A process that dies takes its pool along: another one goes
    on, without the portions that were being read.
    """
    processes = min(MOST_PROCESSES, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    while portions:
        with ProcessPoolExecutor(processes, context, initializer=_confine) as pool:
            try:
                yield from _read_with(pool, portions, 2 * processes)
            finally:
                pool.shutdown(cancel_futures=True)


def _read_with(
    pool: ProcessPoolExecutor, portions: deque[Sequence[str]], most: int
) -> Iterator[tuple[Sequence[str], dict[str, float]]]:
    """As long as the pool lives; at most so many portions are in it."""
    running: dict[Future[dict[str, float]], Sequence[str]] = {}
    broken = False
    while running or (portions and not broken):
        while portions and not broken and len(running) < most:
            portion = portions.popleft()
            try:
                running[pool.submit(read_portion, portion)] = portion
            except (OSError, RuntimeError):  # it is broken, or no process could be started
                broken = True
                yield portion, {}
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            error = future.exception()
            broken = broken or isinstance(error, BrokenProcessPool)
            yield running.pop(future), {} if error else future.result()


def _confine() -> None:
    """Bound this process's memory, and leave Ctrl+C to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def read_portion(addresses: Sequence[str]) -> dict[str, float]:
    """The durations of a few files; the process ends where that takes too long."""
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            found = threads.map(read_duration, addresses)
            return {
                address: seconds
                for address, seconds in zip(addresses, found, strict=True)
                if seconds is not None
            }
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def read_duration(address: str) -> float | None:
    """The seconds that a file's header tells, if it does."""
    from audio.libav import announced_seconds
    from extras.archive import storage

    try:
        with storage.open_file(address) as file:
            seconds = announced_seconds(io.BufferedReader(HeaderReader(file), 2**16))
    except Exception:  # an estimate is missing, no more; the worker's record tells what is wrong
        return None
    # A header that announces more is wrong, or nothing that the endpoint takes.
    return round(seconds, 3) if 0 < seconds <= LONGEST else None
