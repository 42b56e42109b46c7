"""OpenMP's threads, which belong to the thread that computes.

Beneath every thread that has computed with torch OpenMP keeps a team, as long as that thread lives.
While all teams together have more threads than there are processors, even if all but one sleep, no
thread waits actively for the next product any more, and every product costs a wake-up: an 8 s
recording took 0.20 s on two processors instead of 0.11 s (demo models, by hand).

So on a CPU one thread computes for as long as the process lives, and every other ends with its
work, or computes alone. With a GPU it is the other way round: threads beneath matter little there,
but cuDNN keeps its plans for each thread that has used it, some megabytes of the host's memory, and
leaks them when the thread ends (pytorch#169153). Whatever computes there does so in threads that
last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


def set_threads(count: int) -> None:
    """Set how many threads compute for the calling thread, and for those yet to begin.

    At its first use of torch a thread takes over the number that was set last in any of them; only
    afterwards it keeps its own.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


def run_in_passing_thread(work: Callable[[], T], threads: int) -> T:
    """What `work` returns, computed in a thread with a team of `threads`, which end with it."""
    with ThreadPoolExecutor(1, initializer=set_threads, initargs=(threads,)) as pool:
        return pool.submit(work).result()


class SecondThread:
    """Where work runs beside the thread that serves, with `threads` threads beneath it.

    One that `lasts` is the same for all work, which then runs one after the other; else every piece
    of work has a thread of its own, which ends with it.
    """

    def __init__(self, threads: int, lasts: bool) -> None:
        self._threads, self._lasts = threads, lasts
        self._pool = self._new_pool() if lasts else None

    @contextmanager
    def running(self, work: Callable[[], T]) -> Iterator[Future[T]]:
        """Run `work` beside the block, which is left when it has ended."""
        pool = self._pool or self._new_pool()
        future = pool.submit(work)
        try:
            yield future
        finally:
            wait([future])
            if pool is not self._pool:
                pool.shutdown()

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, for callers that are a second thread themselves, and last."""
        if not self._lasts:
            return run_in_passing_thread(work, self._threads)
        set_threads(self._threads)
        return work()

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "diarization", set_threads, (self._threads,))
