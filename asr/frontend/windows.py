"""Where long audio is cut into windows that Whisper can hear at once, given where somebody speaks.

    speech        ######  ####   ########################################          ##
    windows      [                ] [              :                     ]        [  ]
                     a pause: independent      running speech: cut where      silence is
                     of what comes before      it is quietest, in order       never heard

A window takes as much speech as it can hold and ends in a pause, so that no word is cut and both
sides may be decoded in one batch. `stretches` are the parts that may: where speech runs on, a
window has to wait for the one before it, whose last words may have to be heard again with it.

The one decision: pauses are preferred as long as windows stay few. Up to any moment there are at
most 8/7 times as many as a cut every `limit` samples would make, and one, not counting what is
heard again; skipped silence counts as time gained. Only where the last pause lies too early for
that, speech is cut, at its quietest. Pure numpy, linear in the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

PAUSE_FRAMES = (
    16  # 320 ms, longer than the closure of a plosive, shorter than a breath between sentences
)
MARGIN = (
    15 * SAMPLES_PER_TOKEN
)  # 300 ms heard around speech; the detector's edges are up to 130 ms late at 10 dB of noise
LONG_PAUSE = 2 * SAMPLE_RATE
LATE = 8  # speech is cut in the last eighth of a window
BLOCK = 3000 * SAMPLES_PER_TOKEN  # a minute is looked at at once


@dataclass(frozen=True, slots=True)
class Span:
    """Samples `start` to `stop` of the audio."""

    start: int
    stop: int


class Loudness:
    """The power of some audio over time, and where it is quietest. Positions are in samples."""

    def __init__(self, samples: NDArray[np.float32]) -> None:
        blocks = [
            _frame_power(samples[first : first + BLOCK]) for first in range(0, len(samples), BLOCK)
        ]
        self.power: NDArray[np.float32] = np.concatenate([np.zeros(0, np.float32), *blocks])
        self.smooth = _moving_mean(self.power, PAUSE_FRAMES)

    def quietest(self, start: int, stop: int) -> int:
        """The boundary between frames, in [start, stop], around which 320 ms are quietest; of
        equals the last.
        """
        first, last = -(-start // SAMPLES_PER_TOKEN), stop // SAMPLES_PER_TOKEN
        around = self.smooth[first : last + 1]
        return (first + len(around) - 1 - int(np.argmin(around[::-1]))) * SAMPLES_PER_TOKEN


class WindowPlanner:
    """Windows of at most `limit` samples over what is `speech`: spans in order that do not
    overlap.
    """

    def __init__(self, samples: NDArray[np.float32], speech: Sequence[Span], limit: int) -> None:
        self.limit = limit
        self.length = len(samples)
        self._loudness = Loudness(samples)
        self._spoken = np.array([(span.start, span.stop) for span in speech], np.int64).reshape(
            -1, 2
        )
        self._starts, self._stops = self._with_margins()
        long = self._starts[1:] - self._stops[:-1] >= LONG_PAUSE
        self._fell_silent, self._spoke_again = self._stops[:-1][long], self._starts[1:][long]

    def stretches(self) -> tuple[Span, ...]:
        """The parts to hear, each with a pause or an end of the audio on either side."""
        found: list[Span] = []
        windows, start = 0, self.speech_from(0)
        opened = start
        while start < self.length:
            stop = self._stop(start, int(self._stops[-1]), windows * self._shortest)
            windows += 1
            if self._runs_through(stop):
                start = stop
                continue
            found.append(Span(opened, max(stop, self._margin_stop(stop))))
            opened = start = self.speech_from(stop)
        return tuple(found)

    def window_stop(self, start: int, stretch_stop: int) -> int:
        """Where the next window of a stretch ends: in a pause from where one more window or few
        would do, if any.
        """
        return self._stop(
            start, stretch_stop, min(start + self._shortest, stretch_stop - self.limit)
        )

    def speech_from(self, moment: int) -> int:
        """The first moment from `moment` on that is to be heard; the end of the audio where nobody
        speaks any more.
        """
        following = int(np.searchsorted(self._spoken[:, 1], moment, "right"))
        return (
            max(moment, int(self._starts[following]))
            if following < len(self._starts)
            else self.length
        )

    def spoken(self, start: int, stop: int) -> int:
        """How many samples from `start` to `stop` are speech."""
        first, last = (
            np.searchsorted(self._spoken[:, 1], start, "right"),
            np.searchsorted(self._spoken[:, 0], stop),
        )
        inside = self._spoken[first:last].clip(start, stop)
        return int((inside[:, 1] - inside[:, 0]).sum())

    def long_pauses(self, start: int, stop: int) -> tuple[Span, ...]:
        """The pauses from `start` to `stop`, whole ones, in which nothing is to be heard for two
        seconds or longer.
        """
        first, last = (
            np.searchsorted(self._fell_silent, start),
            np.searchsorted(self._spoke_again, stop, "right"),
        )
        bounds = zip(
            self._fell_silent[first:last].tolist(),
            self._spoke_again[first:last].tolist(),
            strict=True,
        )
        return tuple(Span(*pause) for pause in bounds)

    @property
    def _shortest(self) -> int:
        return self.limit - self.limit // LATE

    def _stop(self, start: int, last: int, due: int) -> int:
        """Where a window ends: at `last`, in the last pause if speech goes on at `due` or later, or
        inside speech.
        """
        furthest = start + self.limit
        if last <= furthest:
            return last
        ended = int(np.searchsorted(self._stops, furthest, "right")) - 1
        if ended >= 0 and self._stops[ended] > start and self._starts[ended + 1] >= due:
            return int(self._stops[ended])
        return window_stop(self._loudness, start, last, self.limit)

    def _margin_stop(self, moment: int) -> int:
        """Where the margin ends that `moment` lies in: what is heard again from before it may use
        all of it.
        """
        return int(self._stops[int(np.searchsorted(self._starts, moment, "left")) - 1])

    def _runs_through(self, moment: int) -> bool:
        part = int(np.searchsorted(self._starts, moment, "left")) - 1
        return moment < int(self._spoken[part, 1])

    def _with_margins(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and stops of what is heard: speech with its margins, between frames.

        Margins that would overlap meet where the pause is quietest.
        """
        starts = np.maximum(
            (self._spoken[:, 0] - MARGIN) // SAMPLES_PER_TOKEN * SAMPLES_PER_TOKEN, 0
        )
        stops = np.minimum(
            -(-(self._spoken[:, 1] + MARGIN) // SAMPLES_PER_TOKEN) * SAMPLES_PER_TOKEN, self.length
        )
        for place in np.flatnonzero(stops[:-1] > starts[1:]):
            first, last = (
                max(self._spoken[place, 1], starts[place + 1]),
                min(self._spoken[place + 1, 0], stops[place]),
            )
            stops[place] = starts[place + 1] = self._loudness.quietest(
                int(first), max(int(last), int(first) + SAMPLES_PER_TOKEN)
            )
        return starts, stops


def window_stop(loudness: Loudness, start: int, stop: int, limit: int) -> int:
    """Where a window from `start` ends: `stop` if within `limit` samples, else the quietest late
    moment.
    """
    if stop - start <= limit:
        return stop
    return loudness.quietest(start + limit - limit // LATE, start + limit)


def _frame_power(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean square of each frame, and of what is left at the end."""
    whole = samples[: len(samples) // SAMPLES_PER_TOKEN * SAMPLES_PER_TOKEN].reshape(
        -1, SAMPLES_PER_TOKEN
    )
    rest = samples[whole.size :]
    power = np.einsum("fs,fs->f", whole, whole, dtype=np.float32) / SAMPLES_PER_TOKEN
    return np.append(power, [np.mean(np.square(rest))] if len(rest) else []).astype(np.float32)


def _moving_mean(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The mean of the `width` values around each boundary before a value, fewer at the ends; same
    length.
    """
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    middle = np.arange(len(values))
    first, last = np.maximum(middle - width // 2, 0), np.minimum(middle + width // 2, len(values))
    return np.asarray((sums[last] - sums[first]) / np.maximum(last - first, 1), dtype=np.float32)
