"""Which windows may be decoded now, and what each one leaves for the next.

Stretches between pauses are independent, so their windows fill a batch together. Within a stretch
the next window waits: Whisper ends a window that stops inside speech with a start that has no end,
and what follows that start is heard again at the head of the next window, or its words would be
lost (openai/whisper, `transcribe.py`, seeks so too).

A long pause inside a window is silenced, and where Whisper took it for the end, what is said behind
it is heard again.

The one decision: a decoder takes windows and says how far each was understood; it never knows
stretches. So one that decodes fixed batches and one that refills a row as soon as it is free both
work from the same schedule, and which windows exist does not depend on the size of the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.frontend.windows import Span, WindowPlanner
from timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

# Understood for less than this, or for less than half, a window is not tried again: the work stays
# bounded.
SHORTEST_ADVANCE = 1 * SAMPLE_RATE
SHORTEST_TAIL = 10 * SAMPLES_PER_TOKEN  # 200 ms; less than a word


@dataclass(frozen=True, slots=True)
class Window:
    """Samples `start` to `stop` of the audio, to be decoded together; its stretch ends at
    `stretch_stop`.
    """

    start: int
    stop: int
    stretch_stop: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.stop - self.start) / SAMPLE_RATE


class Schedule:
    """The windows of one recording in which there is `speech`. What is not speech is never handed
    out alone.
    """

    def __init__(self, samples: NDArray[np.float32], speech: Sequence[Span], limit: int) -> None:
        self.limit = limit
        self.done = 0
        self._expected = 0
        self._samples = samples
        self._cutter = WindowPlanner(samples, speech, limit)
        self._ready: deque[Window] = deque()
        for stretch in reversed(self._cutter.stretches()):
            self._open(stretch.start, stretch.stop)

    @property
    def total(self) -> int:
        """How many windows there will be, as far as can be said before they are decoded."""
        return self.done + self._expected

    def upcoming(self) -> tuple[Window, ...]:
        """The windows ready now, in order, without taking them."""
        return tuple(self._ready)

    def take(self, count: int) -> list[Window]:
        """Up to `count` windows that depend on none still to be decoded; empty when all is done."""
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def hear(self, window: Window) -> NDArray[np.float32]:
        """The samples of a window, its long pauses silenced: Whisper makes words of noise and music
        there.
        """
        samples = self._samples[window.start : window.stop]
        pauses = self._cutter.long_pauses(window.start, window.stop)
        if pauses:
            samples = samples.copy()
        for pause in pauses:
            samples[pause.start - window.start : pause.stop - window.start] = 0
        return samples

    def finish(
        self, window: Window, understood: int | None = None, unfinished: bool = False
    ) -> bool:
        """Say that a window was decoded, up to which sample, its end by default, and if a sentence
        was unfinished then.

        True where what was left unfinished is heard again; False where the words given for it are
        all there will be.
        """
        self.done += 1
        self._expected -= self._needed(window.start, window.stretch_stop)
        resumed = (
            window.stop if understood is None else self._resume(window, understood, unfinished)
        )
        self._open(resumed, window.stretch_stop)
        return unfinished and resumed < window.stop

    def _resume(self, window: Window, understood: int, unfinished: bool) -> int:
        """Where hearing goes on: at the unfinished sentence, or behind a long pause that Whisper
        took for the end.
        """
        if unfinished:
            return understood if self._worth_hearing(window, understood) else window.stop
        missed = [pause.stop for pause in self._cutter.long_pauses(window.start, window.stop)]
        return next((moment for moment in missed if moment >= understood), window.stop)

    def _worth_hearing(self, window: Window, moment: int) -> bool:
        """Whether the window's remainder from `moment` on is to be decoded again."""
        if moment - window.start < min(SHORTEST_ADVANCE, self.limit // 2) or moment >= window.stop:
            return False
        return (
            window.stop < window.stretch_stop
            or self._cutter.spoken(moment, window.stop) >= SHORTEST_TAIL
        )

    def _open(self, start: int, stretch_stop: int) -> None:
        """Make the next window of a stretch ready, before all others: waiting stretches can still
        fill a batch.
        """
        start = self._cutter.speech_from(start)
        if start < stretch_stop:
            self._ready.appendleft(
                Window(start, self._cutter.window_stop(start, stretch_stop), stretch_stop)
            )
            self._expected += self._needed(start, stretch_stop)

    def _needed(self, start: int, stretch_stop: int) -> int:
        return -(-(stretch_stop - start) // self.limit)
