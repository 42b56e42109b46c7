"""Which windows may be decoded now, and what each one leaves for the next.

Stretches between pauses are independent, so their windows fill a batch together. Within a stretch the next window
waits: Whisper ends a window that stops inside speech with a start that has no end, and what follows that start is
heard again at the head of the next window, or its words would be lost (openai/whisper, `transcribe.py`, seeks so too).

The one decision: a decoder takes windows and says how far each was understood; it never knows stretches. So one that
decodes fixed batches and one that refills a row as soon as it is free both work from the same schedule, and which
windows exist does not depend on the size of the batches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.windows import FRAME, SAMPLE_RATE, Loudness, stretches, window_stop

SHORTEST_ADVANCE = 1 * SAMPLE_RATE  # a window understood for less is not tried again: the work stays bounded
SHORTEST_TAIL = 10 * FRAME  # 200 ms; less than a word


@dataclass(frozen=True, slots=True)
class Window:
    """Samples `start` to `stop` of the audio, to be decoded together; its stretch ends at `stretch_stop`."""

    start: int
    stop: int
    stretch_stop: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.stop - self.start) / SAMPLE_RATE


class Schedule:
    """The windows of one recording. Those without sound are never handed out: Whisper speaks on silence."""

    def __init__(self, samples: NDArray[np.float32], limit: int) -> None:
        self.limit = limit
        self.done = 0
        self._loudness = Loudness(samples)
        self._ready: deque[Window] = deque()
        self._taken: set[Window] = set()
        for stretch in reversed(stretches(self._loudness, limit)):
            self._open(stretch.start, stretch.stop)

    @property
    def total(self) -> int:
        """How many windows there will be, as far as can be said before they are decoded."""
        open_windows = (*self._ready, *self._taken)
        return self.done + sum(-(-(window.stretch_stop - window.start) // self.limit) for window in open_windows)

    def upcoming(self) -> tuple[Window, ...]:
        """The windows ready now, in order, without taking them."""
        return tuple(self._ready)

    def take(self, count: int) -> list[Window]:
        """Up to `count` windows that depend on none still to be decoded; empty when all is done."""
        taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self._taken.update(taken)
        return taken

    def finish(self, window: Window, unfinished: int | None = None) -> bool:
        """Say that a window was decoded, and from which sample on its speech was left unfinished, if any was.

        True where the unfinished part will be heard again; False where the words given for it are all there will be.
        """
        self.done += 1
        self._taken.discard(window)
        again = unfinished is not None and self._worth_hearing(window, unfinished)
        self._open(unfinished if again and unfinished is not None else window.stop, window.stretch_stop)
        return again

    def _worth_hearing(self, window: Window, moment: int) -> bool:
        """Whether the window's remainder from `moment` on is to be decoded again."""
        if moment - window.start < SHORTEST_ADVANCE or moment >= window.stop:
            return False
        if window.stop < window.stretch_stop:
            return True
        return window.stop - moment >= SHORTEST_TAIL and not self._loudness.is_quiet(moment, window.start, window.stop)

    def _open(self, start: int, stretch_stop: int) -> None:
        """Make the next window of a stretch ready, before all others: waiting stretches can still fill a batch."""
        while start < stretch_stop:
            stop = window_stop(self._loudness, start, stretch_stop, self.limit)
            if not self._loudness.is_silent(start, stop):
                self._ready.appendleft(Window(start, stop, stretch_stop))
                return
            start = stop
