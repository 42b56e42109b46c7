"""Schedules windows: which can be decoded now, and which follows a decoded window.

Regions between pauses are independent, so their windows fill a batch together. Within a region the
next window waits for the previous one. If a window ends inside speech, Whisper marks that by a
segment with a start and no end, which is decoded again at the head of the next window
(openai/whisper, `transcribe.py`, moves `seek` in the same way).

A long pause inside a window is replaced by silence. Speech after a pause that Whisper took for the
end of the window is decoded again, and so is speech without words (`asr.output.unwritten`): as a
window of its own, or in two parts if it is most of its window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.frontend.target_speaker import TargetSpeaker, TargetWindow
from whosaid.asr.frontend.windows import MARGIN, SampleSpan, Window, WindowPlanner
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

# The rest of a window is decoded again only if this much, or half of the limit, was decoded, so
# that the number of windows stays bounded.
SHORTEST_ADVANCE = 1 * SAMPLE_RATE
SHORTEST_TAIL = 10 * SAMPLES_PER_TOKEN  # 200 ms, less than a word
WORD_EDGE = SAMPLE_RATE // 2  # error of attention at a word's start or end
MOST_RETRIES = 4  # of the same speech, each in a shorter window
# After a loop early in a window, decoding resumes in this part of it, so that windows stay few.
LOOP_PART = (1 / 2, 2 / 3)


class Schedule:
    """The windows of one recording, at most `limit` samples each, over its spans of `speech`.

    `margin` samples are decoded on either side of a span. If speech was not `detected`, everything
    after the end of a text may be silence. If there is a `target`, only that speaker is written, so
    other loud sounds are not decoded.
    """

    def __init__(
        self,
        samples: NDArray[np.float32],
        speech: Sequence[SampleSpan],
        limit: int,
        margin: int = MARGIN,
        detected: bool = True,
        target: TargetSpeaker | None = None,
    ) -> None:
        self.detected = detected
        self._samples, self._target = samples, target
        self._planner = WindowPlanner(samples, speech, limit, margin)
        self._begin(())
        self._settled: float = math.inf  # the sample before which all windows are planned
        self._awaited = 0  # samples of a recording that grows, about

    def cut_at(self, cuts: Sequence[int]) -> Schedule:
        """Return a new schedule of the recording in which no window crosses a cut.

        `cuts` are samples in order, each within speech or at the end of a margin.
        """
        again = copy(self)
        again._begin(cuts)
        return again

    def _begin(self, cuts: Sequence[int]) -> None:
        self.done = self._expected = 0
        self._ready: deque[Window] = deque()
        self._unread: dict[Window, int] = {}  # samples of speech from each on, in its region
        self._regions = self._planner.regions(cuts)
        for region in reversed(self._regions):
            self._plan_next(region.start, region.stop)
        self._speech = self._left
        for span in () if self._target else self._planner.loud_pauses():
            self._add(Window(span.start, span.stop, span.stop, tentative=True))
        self._ready = deque(sorted(self._ready, key=lambda each: each.start))

    @property
    def whole(self) -> bool:
        """Return whether all windows are planned: the whole recording was searched for speech."""
        return self._settled == math.inf

    def await_more(self, expected: int) -> None:
        """Expect about `expected` samples, of which `grow` brings the windows."""
        self._settled, self._awaited = 0, expected

    @property
    def grows(self) -> bool:
        return self._awaited > 0

    @property
    def _unplanned(self) -> int:
        """Return how many samples are not planned yet, as far as is known."""
        return 0 if self.whole else max(0, self._awaited - int(self._settled))

    @property
    def _left(self) -> int:
        """Return how many samples of planned speech are not decoded yet."""
        return sum(self._unread.values())

    def grow(self, longer: Schedule, complete: bool) -> None:
        """Add `longer`'s windows; unless `complete`, those that more samples cannot change."""
        before, self._settled = self._settled, math.inf
        self._samples, self._planner = longer._samples, longer._planner
        if not complete:
            self._settled = longer._planner.settled(longer._regions)
        self._regions = tuple(each for each in longer._regions if each.stop <= self._settled)
        for window in longer._ready:
            if before <= window.start < self._settled:
                self._ready.append(window)
                self._note(window)
                self._speech += self._unread[window]

    @property
    def total(self) -> int:
        """Return the number of windows, an estimate until all are decoded."""
        return self.done + self._expected + self._count_windows(0, self._unplanned)

    @property
    def seconds(self) -> tuple[float, float]:
        """Return the seconds of decoded speech, which only grow, and the seconds of all speech."""
        speech = self._speech + self._unplanned
        return (self._speech - self._left) / SAMPLE_RATE, speech / SAMPLE_RATE

    @property
    def final_until(self) -> float:
        """Return the second before which all windows are decoded; infinity if all are."""
        first = min((each.start for each in self._unread), default=math.inf)
        return min(first, self._settled) / SAMPLE_RATE

    def ready(self) -> tuple[Window, ...]:
        """Return the windows that can be decoded now, in order, without taking them."""
        return tuple(self._ready)

    def planned(self) -> tuple[Window, ...]:
        """Return all windows, in order, as if each were decoded to its end."""
        found = []
        for region in self._regions:
            start = self._planner.speech_from(region.start)
            while start < region.stop:
                stop = self._planner.window_stop(start, region.stop)
                found.append(Window(start, stop, region.stop))
                start = self._planner.speech_from(stop)
        return tuple(found)

    def pieces(self, window: Window, seconds: float) -> tuple[Window, ...]:
        """Cut a window into pieces with at least `seconds` of speech each, if possible."""
        shortest = round(seconds * SAMPLE_RATE)
        spans = self._planner.pieces(window.start, window.stop, shortest)
        return tuple(Window(span.start, span.stop, span.stop) for span in spans)

    def speech_seconds(self, window: Window) -> float:
        return self._planner.count_speech(window.start, window.stop) / SAMPLE_RATE

    def speech_before(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds of speech before each of the recording's `times` (n,): (n,)."""
        return self._planner.speech_before(times * SAMPLE_RATE) / SAMPLE_RATE

    def pop_ready(self, count: int) -> list[Window]:
        """Remove and return up to `count` windows that can be decoded now."""
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def samples(self, window: Window) -> NDArray[np.float32]:
        """Return the samples (n,) of a window, with silence in place of long pauses, for whose
        noise Whisper makes up words. A tentative window, all pause, stays as it is.
        """
        samples = self._samples[window.start : window.stop]
        if window.tentative:
            return samples
        pauses = self._planner.long_pauses(window.start, window.stop)
        if pauses:
            samples = samples.copy()
        for pause in pauses:
            samples[pause.start - window.start : pause.stop - window.start] = 0
        return samples

    def target(self, window: Window) -> TargetWindow | None:
        return None if self._target is None else self._target.within(window)

    def complete(
        self,
        window: Window,
        seek: int | None = None,
        unfinished: bool = False,
        looped: bool = False,
    ) -> int:
        """Record that a window was decoded, and plan the next window of its region.

        `seek` is the sample of the audio up to which the window was decoded, None for its end.
        `unfinished`: a segment was still open at `seek`. `looped`: the text looped from `seek` on,
        so the rest is decoded again with other cuts. Returns the sample at which decoding resumes.
        """
        self.done += 1
        self._expected -= self._count_windows(window.start, window.region_stop)
        self._unread.pop(window)
        start = window.stop
        if window.tentative:
            return start
        if looped and seek is not None:
            start = self._after_loop(window, seek)
        elif seek is not None:
            start = self._next_start(window, seek, unfinished)
        self._plan_next(start, window.region_stop, window.retries)
        return start

    def decode_again(
        self, window: Window, start: int, stop: int, retries: int = 1
    ) -> tuple[Window, ...]:
        """Plan and return windows over samples `start` to `stop` of a decoded window, whose speech
        lacks words. They count as `retries` more retries, of MOST_RETRIES. A target's speech has
        none: with Whisper base they added more errors than words.
        """
        if self._target or window.retries + retries > MOST_RETRIES:
            return ()
        if start > window.start:
            start = self._planner.quietest(start, start + WORD_EDGE)
        if stop < window.stop:
            stop = self._planner.quietest(stop - WORD_EDGE, stop)
        start = self._planner.speech_from(start)
        edges, third = [start, stop], (stop - start) // 3
        if 2 * (stop - start) > window.stop - window.start:
            edges.insert(1, self._planner.quietest(start + third, stop - third))
        found = tuple(
            Window(first, last, last, retries=window.retries + retries)
            for first, last in pairwise(edges)
            if self._planner.count_speech(first, last) >= SHORTEST_TAIL
        )
        for each in reversed(found):
            self._add(each)
        return found

    def _next_start(self, window: Window, seek: int, unfinished: bool) -> int:
        """Return the sample at which decoding resumes: `seek` for a segment worth it, else the end
        of a long pause that Whisper took for the window's end, or the window's end.
        """
        if unfinished:
            return seek if self._worth_decoding(window, seek) else window.stop
        pauses = self._planner.long_pauses(window.start, window.stop)
        return next((pause.stop for pause in pauses if pause.stop >= seek), window.stop)

    def _after_loop(self, window: Window, seek: int) -> int:
        """Return the sample at which decoding resumes after a loop that began at `seek`: a quiet
        point soon after it, or if `seek` is in the window's first half, of LOOP_PART.
        """
        length = window.stop - window.start
        first, last = min(seek, window.stop - SAMPLES_PER_TOKEN), seek + WORD_EDGE
        if seek < window.start + length // 2:
            first, last = (window.start + int(length * part) for part in LOOP_PART)
        seek = self._planner.quietest(first, last)
        return seek if window.stop - seek >= SHORTEST_ADVANCE else window.stop

    def _worth_decoding(self, window: Window, seek: int) -> bool:
        """Return whether to decode the rest of the window again, from `seek` on."""
        least = min(SHORTEST_ADVANCE, self._planner.limit // 2)
        if seek - window.start < least or seek >= window.stop:
            return False
        if window.stop < window.region_stop:
            return True
        return self._planner.count_speech(seek, window.stop) >= SHORTEST_TAIL

    def _plan_next(self, start: int, region_stop: int, retries: int = 0) -> None:
        """Queue a region's next window first, so that other regions fill the batch later."""
        start = self._planner.speech_from(start)
        if start < region_stop:
            stop = self._planner.window_stop(start, region_stop)
            self._add(Window(start, stop, region_stop, retries=retries))

    def _add(self, window: Window) -> None:
        self._ready.appendleft(window)
        self._note(window)

    def _note(self, window: Window) -> None:
        self._unread[window] = self._planner.count_speech(window.start, window.region_stop)
        self._expected += self._count_windows(window.start, window.region_stop)

    def _count_windows(self, start: int, region_stop: int) -> int:
        return -(-(region_stop - start) // self._planner.limit)
