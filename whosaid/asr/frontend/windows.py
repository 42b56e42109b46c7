"""Cuts long audio into windows that Whisper can decode at once, given the spans of speech.

    speech        ######  ####   ########################################          ##
    windows      [                ] [              :                     ]        [  ]
    regions      [       1        ] [              2                     ]        [3 ]
                     ends in a pause   continuous speech, cut where       silence is not
                                       it is quietest                     decoded at all

A window holds as much speech as fits and ends in a pause, so that no word is cut. The audio between
two such pauses is a region. Regions are independent, so their windows can share a batch. Within a
region speech is continuous and windows are decoded in order: the end of one window may have to be
decoded again with the next.

Windows end in pauses as long as their number stays small: up to any point there are at most 8/7 as
many windows, plus one, as cuts every `limit` samples would make. Parts that are decoded twice are
not counted. Skipped silence allows earlier cuts. If the last pause comes too early for that, speech
is cut at its quietest point. Everything is numpy and linear in the number of samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN, runs

# 320 ms: longer than the closure of a plosive, shorter than a breath between sentences.
PAUSE_FRAMES = 16
# 300 ms decoded on either side of speech: at 10 dB SNR the detector's edges are up to 130 ms late.
MARGIN = 15 * SAMPLES_PER_TOKEN
LONG_PAUSE = 2 * SAMPLE_RATE
# A sound this loud (power, -35 dBFS) for this long may hold speech even if none was detected: the
# detector misses speech over music that Whisper understands.
LOUD, LONG_LOUD, LOUD_FRAMES = 10**-3.5, 3 * SAMPLE_RATE, 50
CUT_PART = 8  # continuous speech is cut in the last 1/8 of a window
LONGEST_PIECE = 10 * SAMPLE_RATE  # a longer piece without pauses is cut
BLOCK = 3000 * SAMPLES_PER_TOKEN  # loudness is computed a minute at a time


@dataclass(frozen=True, slots=True)
class SampleSpan:
    """Samples `start` to `stop` of the audio."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Window:
    """Samples `start` to `stop` of the audio, decoded at once; its region ends at `region_stop`.

    A `tentative` window holds no detected speech: its text counts only if Whisper is sure of it.
    `retries` counts the earlier windows whose texts left out this window's speech.
    """

    start: int
    stop: int
    region_stop: int
    tentative: bool = False
    retries: int = 0

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / SAMPLE_RATE


class Loudness:
    """The power of audio over time, and its quietest points. Positions are in samples."""

    def __init__(self, samples: NDArray[np.float32]) -> None:
        blocks = [np.zeros(0, np.float32)]
        for first in range(0, len(samples), BLOCK):
            blocks.append(_frame_power(samples[first : first + BLOCK]))
        self.power: NDArray[np.float32] = np.concatenate(blocks)
        self.smooth = _moving_mean(self.power, PAUSE_FRAMES)

    def loud(self, start: int, stop: int) -> list[SampleSpan]:
        """Return the spans between two samples that are loud for LONG_LOUD or longer."""
        grid = SAMPLES_PER_TOKEN
        first, last = -(-start // grid), stop // grid
        loud = _moving_mean(self.power[first:last], LOUD_FRAMES) >= LOUD
        spans = [SampleSpan(*((first + each) * grid).tolist()) for each in runs(loud)]
        return [each for each in spans if each.stop - each.start >= LONG_LOUD]

    def quietest(self, start: int, stop: int) -> int:
        """Return the last frame boundary in [start, stop] with the quietest 320 ms around it."""
        first, last = -(-start // SAMPLES_PER_TOKEN), stop // SAMPLES_PER_TOKEN
        around = self.smooth[first : last + 1]
        return (first + len(around) - 1 - int(np.argmin(around[::-1]))) * SAMPLES_PER_TOKEN


class WindowPlanner:
    """Plans windows of at most `limit` samples over spans of `speech`.

    The spans are in order, without overlap, and `margin` samples are decoded on either side of
    each.
    """

    def __init__(
        self,
        samples: NDArray[np.float32],
        speech: Sequence[SampleSpan],
        limit: int,
        margin: int = MARGIN,
    ) -> None:
        self.limit, self._margin = limit, margin
        self.length = len(samples)
        self._loudness = Loudness(samples)
        bounds = [(span.start, span.stop) for span in speech]
        self._speech = np.array(bounds, np.int64).reshape(-1, 2)
        self._starts, self._stops = self._with_margins()
        long = self._starts[1:] - self._stops[:-1] >= LONG_PAUSE
        self._pause_starts, self._pause_stops = self._stops[:-1][long], self._starts[1:][long]

    def regions(self, cuts: Sequence[int] = ()) -> tuple[SampleSpan, ...]:
        """Return the regions to decode, between pauses, `cuts` and the ends of the audio."""
        found: list[SampleSpan] = []
        windows, start = 0, self.speech_from(0)
        region_start = start
        while start < self.length:
            last = min([cut for cut in cuts if cut > start], default=int(self._stops[-1]))
            stop = self._stop(start, last, windows * self._shortest)
            windows += 1
            before = int(np.searchsorted(self._starts, stop)) - 1  # the speech before `stop`
            if stop not in cuts and stop < self._speech[before, 1]:  # inside speech
                start = stop
                continue
            # A retried window may use all of the margin around `stop`.
            end = stop if stop in cuts else min(last, max(stop, int(self._stops[before])))
            found.append(SampleSpan(region_start, end))
            region_start = start = self.speech_from(stop)
        return tuple(found)

    def settled(self, regions: Sequence[SampleSpan]) -> int:
        """Return the end of the last of `regions` that later speech cannot change."""
        horizon = int(self._starts[-2]) - self.limit if len(self._starts) > 1 else 0
        return max((each.stop for each in regions if each.stop <= horizon), default=0)

    def pieces(self, start: int, stop: int, shortest: int) -> tuple[SampleSpan, ...]:
        """Cut the audio from `start` to `stop` at pauses, and return the pieces.

        A cut leaves `shortest` samples of speech on either side. If no pause comes within
        LONGEST_PIECE, the audio is cut at a quiet point with any speech on either side.
        """
        found: list[SampleSpan] = []
        begin = start
        first, last = np.searchsorted(self._stops, [start, stop], "right")
        for pause in [*self._stops[first:last].tolist(), stop]:
            while pause - begin > LONGEST_PIECE:
                furthest = begin + LONGEST_PIECE
                cut = self.quietest(furthest - LONGEST_PIECE // 2, furthest)
                if not (self.count_speech(begin, cut) and self.count_speech(cut, stop)):
                    break
                found.append(SampleSpan(begin, cut))
                begin = self.speech_from(cut)
            before, after = (self.count_speech(begin, pause), self.count_speech(pause, stop))
            if min(before, after) >= shortest:
                found.append(SampleSpan(begin, pause))
                begin = self.speech_from(pause)
        return (*found, SampleSpan(begin, stop))

    def window_stop(self, start: int, region_stop: int) -> int:
        """Return the sample at which a window from `start` ends: in a pause if possible.

        The pause must be late in the window, or leave so little of the region that one more window
        completes it. Without such a pause the window ends inside speech.
        """
        due = min(start + self._shortest, region_stop - self.limit)
        return self._stop(start, region_stop, due)

    def speech_from(self, position: int) -> int:
        """Return the first sample of speech or margin from `position` on, else the audio's end."""
        following = int(np.searchsorted(self._speech[:, 1], position, "right"))
        if following == len(self._starts):
            return self.length
        return max(position, int(self._starts[following]))

    def count_speech(self, start: int, stop: int) -> int:
        """Return the number of samples of speech from `start` to `stop`, without margins."""
        first = np.searchsorted(self._speech[:, 1], start, "right")
        last = np.searchsorted(self._speech[:, 0], stop)
        inside = self._speech[first:last].clip(start, stop)
        return int((inside[:, 1] - inside[:, 0]).sum())

    def speech_before(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the number of samples of speech before each of `positions` (n,): (n,)."""
        lengths = np.zeros_like(self._speech)
        lengths[:, 1] = self._speech[:, 1] - self._speech[:, 0]
        edges, passed = self._speech.ravel(), np.cumsum(lengths)
        return np.interp(positions, edges, passed) if len(edges) else np.zeros_like(positions)

    def quietest(self, start: int, stop: int) -> int:
        return self._loudness.quietest(start, stop)

    def loud_pauses(self) -> tuple[SampleSpan, ...]:
        """Return long loud spans without speech, in order, each at most a window long."""
        found: list[SampleSpan] = []
        starts, stops = [0, *self._stops.tolist()], [*self._starts.tolist(), self.length]
        for pause in zip(starts, stops, strict=True):
            for span in self._loudness.loud(*pause):
                start = span.start
                while span.stop - start >= LONG_LOUD:
                    stop = window_stop(self._loudness, start, span.stop, self.limit)
                    found.append(SampleSpan(start, stop))
                    start = stop
        return tuple(found)

    def long_pauses(self, start: int, stop: int) -> tuple[SampleSpan, ...]:
        """Return the pauses of two seconds or longer within `start` to `stop`, without margins."""
        first = np.searchsorted(self._pause_starts, start)
        last = np.searchsorted(self._pause_stops, stop, "right")
        starts, stops = self._pause_starts[first:last], self._pause_stops[first:last]
        return tuple(map(SampleSpan, starts.tolist(), stops.tolist()))

    @property
    def _shortest(self) -> int:
        """Return the least number of samples of a window that is cut inside speech."""
        return self.limit - self.limit // CUT_PART

    def _stop(self, start: int, last: int, due: int) -> int:
        """Return a window's end: `last` if it fits, else in the last pause that fits before speech
        at `due` or later, else inside speech.
        """
        furthest = start + self.limit
        if last <= furthest:
            return last
        pause = int(np.searchsorted(self._stops, furthest, "right")) - 1
        if pause >= 0 and self._stops[pause] > start and self._starts[pause + 1] >= due:
            return int(self._stops[pause])
        return window_stop(self._loudness, start, last, self.limit)

    def _with_margins(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and stops of speech with margins, which meet where a pause is quietest."""
        grid = SAMPLES_PER_TOKEN
        starts = np.maximum((self._speech[:, 0] - self._margin) // grid * grid, 0)
        stops = np.minimum(-(-(self._speech[:, 1] + self._margin) // grid) * grid, self.length)
        for index in np.flatnonzero(stops[:-1] > starts[1:]).tolist():
            first = int(max(self._speech[index, 1], starts[index + 1]))
            last = int(min(self._speech[index + 1, 0], stops[index]))
            meeting = self._loudness.quietest(first, max(last, first + grid))
            stops[index] = starts[index + 1] = meeting
        return starts, stops


def window_stop(loudness: Loudness, start: int, stop: int, limit: int) -> int:
    """Return a window's end: `stop` if within `limit`, else the quietest point of its last 1/8."""
    if stop - start <= limit:
        return stop
    return loudness.quietest(start + limit - limit // CUT_PART, start + limit)


def _frame_power(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean square of each frame of 20 ms, and of the samples left at the end."""
    count = len(samples) // SAMPLES_PER_TOKEN
    frames = samples[: count * SAMPLES_PER_TOKEN].reshape(count, SAMPLES_PER_TOKEN)
    rest = samples[frames.size :]
    power = np.einsum("fs,fs->f", frames, frames, dtype=np.float32) / SAMPLES_PER_TOKEN
    return np.append(power, [np.mean(np.square(rest))] if len(rest) else []).astype(np.float32)


def _moving_mean(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the means of `width` values around the boundary before each; fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    middle = np.arange(len(values))
    first, last = np.maximum(middle - width // 2, 0), np.minimum(middle + width // 2, len(values))
    return np.asarray((sums[last] - sums[first]) / np.maximum(last - first, 1), dtype=np.float32)
