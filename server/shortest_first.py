"""One thread for work of known length, the shortest first.

The one decision: what waits grows shorter by AUDIO_A_SECOND for each second that it waits. So a
short recording passes a long one, and nothing waits for ever: work that comes later by more than
its own share of a long one's length no longer passes it. As all that waits ages alike, the order
is fixed when work comes, and a heap keeps it. Work may hold an hour of audio, so that it is not in
the heap but beside it: cancelled work is forgotten at once, its turn in the heap passes later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from typing import Any, TypeVar

# Seconds of audio that a second of waiting makes up for: ten minutes are passed for one.
AUDIO_A_SECOND = 10.0

T = TypeVar("T")


class ShortestFirst:
    """Runs what is submitted in a thread of its own, one after another. `now` returns seconds."""

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._now = now
        self._lock, self._numbers = Lock(), count()
        self._waiting: list[tuple[float, int, Future[Any]]] = []
        self._works: dict[int, Callable[[], Any]] = {}

    def submit(self, seconds: float, work: Callable[[], T]) -> Future[T]:
        """What `work` will return, which is about `seconds` of audio; a cancelled one is not begun,
        and nothing holds on to it.

        Raises RuntimeError after shutdown.
        """
        future: Future[T] = Future()
        due = self._now() + seconds / AUDIO_A_SECOND
        with self._lock:
            number = next(self._numbers)
            self._works[number] = work
            heappush(self._waiting, (due, number, future))
        future.add_done_callback(partial(self._forget, number))
        self._pool.submit(self._run_next)
        return future

    def shutdown(self) -> None:
        """Wait for what runs; what waits is cancelled."""
        self._pool.shutdown(cancel_futures=True)
        for _, _, future in self._waiting:
            future.cancel()

    def _run_next(self) -> None:
        with self._lock:
            _, number, future = heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._works.pop(number)())
        except BaseException as error:
            future.set_exception(error)

    def _forget(self, number: int, _: Future[Any]) -> None:
        self._works.pop(number, None)
