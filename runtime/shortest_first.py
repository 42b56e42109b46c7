"""Threads for work on recordings, which is done in small steps, the shortest recording first.

Between two steps another recording may have its turn: the one with the fewest seconds of audio,
except that the one that came first is passed over seven times at most. So a short recording waits
for no long one to end, however many there are, and no long one waits for ever. Where a long step
lets others go first between its batches, they have seven parts of the time to one of its own.
Seconds are those that are known so far, and grow while a file is decoded: what it says about itself
is not believed for long.

Decoded audio is counted, 64 kB a second. A recording is decoded while as much room again is free as
it will take, so that shorter ones find room beside any number of long ones. Of those that have
begun the oldest goes on in any case: none waits for another that waits, and the limit is passed by
no more than one recording and a step of each thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from threading import Lock
from typing import Any, TypeVar

from runtime.steps import Steps
from timebase import SAMPLE_RATE

BYTES_PER_SECOND = 4 * SAMPLE_RATE  # float32
FIRST_COME_EVERY = 8  # turns
# Seconds for others between two batches of a long step, to each of the batch before.
OTHERS_SHARE = FIRST_COME_EVERY - 1

T = TypeVar("T")


@dataclass(eq=False)
class Recording:
    """About `seconds` of audio, `held` of them decoded and in memory; `left` once nobody asks."""

    seconds: float
    held: float = 0.0
    left: bool = False
    number: int = field(default_factory=count().__next__, init=False)  # in order of arrival


@dataclass(eq=False)
class Work:
    """Steps of a recording, None once nobody asks, and what they will return; `decodes` says that
    they take memory.
    """

    recording: Recording
    steps: Steps[Any] | None
    decodes: bool
    result: Future[Any] = field(default_factory=Future)


class ShortestFirst:
    """Takes the steps of what is submitted in `threads` of its own, which `prepare` begins; while
    less than `limit` bytes of audio are held. `clock` returns seconds.
    """

    def __init__(
        self,
        name: str,
        threads: int = 1,
        limit: float = inf,
        prepare: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, name, prepare)
        self._lock = Lock()
        self._waiting: list[Work] = []
        self._works: dict[Future[Any], Work] = {}  # apart, or a result would hold on to itself
        self._holding: dict[Recording, None] = {}  # in the order in which they began
        # Turns since the oldest had one, and those within a step of another recording.
        self._passed_over: Counter[bool] = Counter()

    @property
    def held_bytes(self) -> int:
        """How much decoded audio there is."""
        with self._lock:
            return round(BYTES_PER_SECOND * sum(each.held for each in self._holding))

    @contextmanager
    def recording(self, seconds: float) -> Iterator[Recording]:
        """A recording of about so many seconds; its audio is held until the block ends."""
        recording = Recording(seconds)
        try:
            yield recording
        finally:
            with self._lock:
                recording.left = True
                self._holding.pop(recording, None)
                waiting = len(self._waiting)
            for _ in range(waiting):  # there may be room for them now
                self._submit_turn()

    def submit(
        self, recording: Recording, steps: Coroutine[Any, None, T], decodes: bool = False
    ) -> Future[T]:
        """What `steps` will return. Once it is cancelled no further one is taken, and nothing holds
        on to them.

        Raises RuntimeError after shutdown.
        """
        work = Work(recording, Steps(steps), decodes)
        with self._lock:
            self._works[work.result] = work
            self._waiting.append(work)
        work.result.add_done_callback(self._forget)
        try:
            self._pool.submit(self._turn)
        except RuntimeError:
            work.result.cancel()
            raise
        return work.result

    def shutdown(self) -> None:
        """Wait for the steps that run; what is not finished is cancelled."""
        self._pool.shutdown(cancel_futures=True)
        for work in [*self._waiting]:
            work.result.cancel()

    def between_batches(self, recording: Recording) -> Callable[[], None]:
        """What one step of `recording` calls before its first batch and after each: in that call
        steps are taken of recordings that are at most half as long, where any wait.

        They have OTHERS_SHARE times the seconds of the batch before. The last one of them may take
        more, which the next ones have less; what nobody takes is not saved up. One that has no
        length, as of somebody who is speaking now, goes first in any case.
        """
        left, resumed = 0.0, inf

        def let_pass() -> None:
            nonlocal left, resumed
            now, half = self._clock(), recording.seconds / 2
            left = min(left, 0.0) + OTHERS_SHARE * max(0.0, now - resumed)
            passes = self._take_turn(half if left > 0 else 0.0)
            while passes:
                before, now = now, self._clock()
                left -= now - before
                passes = left > 0 and self._take_turn(half)
            resumed = now

        return let_pass

    def _turn(self) -> None:
        if self._take_turn(inf):
            self._submit_turn()

    def _take_turn(self, longest: float) -> bool:
        """Take one step of whose turn it is, of those of at most `longest` seconds: whether there
        was one.
        """
        with self._lock:
            work = self._choose(longest)
        if work is None:
            return False
        self._take_step(work)
        return True

    def _take_step(self, work: Work) -> None:
        steps = work.steps
        if steps is None:
            return
        try:
            progress = steps.advance()
        except BaseException as error:
            with suppress(InvalidStateError):  # cancelled meanwhile
                work.result.set_exception(error)
            return
        if steps.done:
            with suppress(InvalidStateError):
                work.result.set_result(steps.result)
        elif not self._put_back(work, progress):
            steps.close()

    def _choose(self, longest: float) -> Work | None:
        ready = [
            each
            for each in self._waiting
            if each.recording.seconds <= longest and (not each.decodes or self._has_room(each))
        ]
        if not ready:
            return None
        within = longest < inf
        oldest, shortest = min(ready, key=_number), min(ready, key=_length)
        first_come = self._passed_over[within] == FIRST_COME_EVERY - 1
        work = oldest if first_come else shortest
        self._passed_over[within] = 0 if work is oldest else self._passed_over[within] + 1
        self._waiting.remove(work)
        return work

    def _has_room(self, work: Work) -> bool:
        recording = work.recording
        if not self._holding or next(iter(self._holding)) is recording:
            return True
        others = sum(each.held for each in self._holding if each is not recording)
        return BYTES_PER_SECOND * (others + 2 * recording.seconds) <= self.limit

    def _put_back(self, work: Work, step: tuple[float, float] | None) -> bool:
        """Whether there will be another step: not where nobody asks any more."""
        recording = work.recording
        with self._lock:
            if recording.left or work.result.cancelled():
                return False
            if step is not None:
                recording.held, recording.seconds = step
                if recording.held:
                    self._holding[recording] = None
            self._waiting.append(work)
        return True

    def _forget(self, result: Future[Any]) -> None:
        """Let go of what nobody asks for; a step that runs is the last, and who takes it closes
        the steps after it: to close a coroutine that runs elsewhere can crash the interpreter.
        """
        with self._lock:
            work = self._works.pop(result)
            steps, work.steps = work.steps, None
            if work not in self._waiting:
                return
            self._waiting.remove(work)
        if steps is not None:
            steps.close()

    def _submit_turn(self) -> None:
        with suppress(RuntimeError):  # after the end
            self._pool.submit(self._turn)


async def in_one_step(work: Callable[[], T]) -> T:
    """Work that cannot be divided."""
    return work()


def _number(work: Work) -> int:
    return work.recording.number


def _length(work: Work) -> tuple[float, int]:
    return work.recording.seconds, work.recording.number
