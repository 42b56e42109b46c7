"""Threads that work on recordings in small steps, the shortest recording first.

After every step another recording may be next: the one with the fewest seconds of audio, but the
oldest one after seven steps that passed it over. During a long step, such as a diarization, shorter
recordings go first between its batches, for up to seven eighths of the time. Seconds are estimates
that are corrected while a file is decoded.

Decoded audio is counted, 64 kB a second. A recording is decoded only while twice its own bytes are
free, so that shorter recordings find room beside any number of long ones. The oldest recording that
holds audio always goes on, so the limit is exceeded by no more than one recording and a step of
each thread.
"""

import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from threading import Lock
from typing import Any, TypeVar

from whosaid.scheduling.fair_shares import FairShares
from whosaid.timebase import SAMPLE_RATE

BYTES_PER_SECOND = 4 * SAMPLE_RATE  # float32
SHARE = 7.0  # turns of the shortest per turn of the oldest; seconds of others per second of a batch
OLDEST, SHORTEST = "oldest", "shortest"
OWN, OTHERS = "own", "others"

T = TypeVar("T")


@dataclass(eq=False)
class QueuedAudio:
    """About `seconds` of audio, `held` seconds of it in memory; `left` once its client has gone. No
    step is taken while it is `paused`.
    """

    seconds: float
    held: float = 0.0
    paused: bool = False
    left: bool = False
    number: int = field(default_factory=count().__next__, init=False)  # in order of arrival


@dataclass(eq=False)
class QueuedSteps:
    """The steps of a recording and their result. If it `decodes`, its steps take memory."""

    recording: QueuedAudio
    steps: Coroutine[Any, None, Any]
    decodes: bool
    result: Future[Any] = field(default_factory=Future)


class ShortestFirst:
    """Runs the steps of submitted coroutines in `threads` threads, each begun with `prepare`.

    New audio is decoded while less than `limit` bytes are held. `clock` returns seconds.
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
        self._waiting: list[QueuedSteps] = []
        # By future, because a future that refers to its work would keep its own result alive.
        self._works: dict[Future[Any], QueuedSteps] = {}
        self._holding: dict[QueuedAudio, None] = {}  # in order of their first audio
        self._turns = _turns_of_recordings()

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return round(BYTES_PER_SECOND * sum(each.held for each in self._holding))

    @contextmanager
    def recording(self, seconds: float) -> Iterator[QueuedAudio]:
        """Yield a recording of about `seconds` of audio, which is held until the block ends."""
        recording = QueuedAudio(seconds)
        try:
            yield recording
        finally:
            with self._lock:
                recording.left = True
                self._holding.pop(recording, None)
                waiting = len(self._waiting)
            for _ in range(waiting):  # waiting work may have room now
                self._submit_turn()

    def submit(
        self, recording: QueuedAudio, steps: Coroutine[Any, None, T], decodes: bool = False
    ) -> Future[T]:
        """Queue `steps`, which the queue then owns, and return their future result, whose
        cancellation frees them. Steps that decode report (seconds held, seconds expected). Raises
        RuntimeError after shutdown.
        """
        work = QueuedSteps(recording, steps, decodes)
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

    def resume(self, recording: QueuedAudio) -> None:
        if recording.paused:
            recording.paused = False
            self._submit_turn()

    def shutdown(self) -> None:
        """Wait for the running steps, and cancel unfinished work."""
        self._pool.shutdown(cancel_futures=True)
        for work in [*self._waiting]:
            work.result.cancel()

    def between_batches(self, recording: QueuedAudio) -> Callable[[], None]:
        """Return a function that a long step, of `recording`, calls before its first batch and
        after each. It takes steps of waiting recordings that are at most half as long, for up to
        SHARE times the seconds of the batch before, the last at the expense of the next ones.
        Recordings without length, such as live streams, go first, one step between two batches.
        """
        shares, turns = FairShares({OWN: 1 / SHARE, OTHERS: 1.0}), _turns_of_recordings()
        resumed = inf

        def let_pass() -> None:
            nonlocal resumed
            now = self._clock()
            shares.charge(OWN, max(0.0, now - resumed))
            longest = recording.seconds / 2 if shares.next((OWN, OTHERS)) == OTHERS else 0.0
            while self._take_turn(turns, longest):
                before, now = now, self._clock()
                shares.charge(OTHERS, now - before)
                if shares.next((OWN, OTHERS)) == OWN:
                    break
            shares.next((OWN,))  # recordings that do not wait save no time
            resumed = now

        return let_pass

    def _turn(self) -> None:
        if self._take_turn(self._turns, inf):
            self._submit_turn()

    def _submit_turn(self) -> None:
        with suppress(RuntimeError):  # after shutdown
            self._pool.submit(self._turn)

    def _take_turn(self, turns: FairShares[str], longest: float) -> bool:
        """Take one step of a recording of at most `longest` seconds. Return False if none waits."""
        with self._lock:
            work = self._choose(turns, longest)
        if work is None:
            return False
        with suppress(InvalidStateError):  # the result was cancelled meanwhile
            try:
                progress = work.steps.send(None)
            except StopIteration as end:
                work.result.set_result(end.value)
            except BaseException as error:
                work.result.set_exception(error)
            else:
                if not self._put_back(work, progress):
                    work.steps.close()
        return True

    def _choose(self, turns: FairShares[str], longest: float) -> QueuedSteps | None:
        ready = [
            each
            for each in self._waiting
            if each.recording.seconds <= longest
            and not each.recording.paused
            and (not each.decodes or self._has_room(each))
        ]
        if not ready:
            return None
        oldest = min(ready, key=lambda each: each.recording.number)
        work = min(ready, key=lambda each: (each.recording.seconds, each.recording.number))
        if work is oldest:  # passed over by none, so it saves no turns
            turns.reset()
        elif turns.next((OLDEST, SHORTEST)) == OLDEST:
            work = oldest
        turns.charge(OLDEST if work is oldest else SHORTEST, 1.0)
        self._waiting.remove(work)
        return work

    def _has_room(self, work: QueuedSteps) -> bool:
        recording = work.recording
        if not self._holding or next(iter(self._holding)) is recording:
            return True
        others = sum(each.held for each in self._holding if each is not recording)
        return BYTES_PER_SECOND * (others + 2 * recording.seconds) <= self.limit

    def _put_back(self, work: QueuedSteps, progress: tuple[float, float] | None) -> bool:
        """Queue the next step. Return False if the client has left."""
        recording = work.recording
        with self._lock:
            if recording.left or work.result.cancelled():
                return False
            if progress is not None:
                recording.held, recording.seconds = progress
                if recording.held:
                    self._holding[recording] = None
            self._waiting.append(work)
        return True

    def _forget(self, result: Future[Any]) -> None:
        """Free the steps of a cancelled result, or let the thread that runs one close them: closing
        a coroutine while another thread runs it can crash.
        """
        with self._lock:
            work = self._works.pop(result)
            if work not in self._waiting:
                return
            self._waiting.remove(work)
        work.steps.close()


async def in_one_step(work: Callable[[], T]) -> T:
    return work()


def _turns_of_recordings() -> FairShares[str]:
    return FairShares({OLDEST: 1 / SHARE, SHORTEST: 1.0})
