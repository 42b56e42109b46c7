"""Where long audio is cut into windows that Whisper can hear at once.

A window ends at the quietest moment of the last third of the longest window allowed, so that as few words as possible
are cut, and the next begins there: no overlap, nothing heard twice. Where that moment is a pause, what follows does
not depend on what came before, and both sides may be decoded in one batch; where speech runs on, the next window has
to wait for this one, whose last words may have to be heard again with it. `stretches` are the parts that may be
decoded independently.

The one decision: loudness alone decides, measured once in frames of 20 ms, the grid of Whisper's own timestamps. Pure
numpy, linear in the samples, no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
FRAME = 320  # samples; 20 ms
SILENCE = 3e-4  # RMS of a frame, full scale 1: -70 dB, far below any recorded speech, above 16-bit dither
PAUSE_FRAMES = 16  # 320 ms, longer than the closure of a plosive, shorter than a breath between sentences
PAUSE_DROP = 0.03  # of the power of the loud frames nearby: -15 dB
LOUD_PERCENTILE = 90


@dataclass(frozen=True, slots=True)
class Stretch:
    """Samples `start` to `stop` of the audio, with a pause or an end of the audio on either side."""

    start: int
    stop: int


class Loudness:
    """The power of some audio over time, and the questions that cutting asks of it. Positions are in samples."""

    def __init__(self, samples: NDArray[np.float32]) -> None:
        whole = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
        rest = samples[len(whole) * FRAME :]
        power = np.einsum("fs,fs->f", whole, whole, dtype=np.float32) / FRAME  # no copy of hours of audio
        last = [np.mean(np.square(rest))] if len(rest) else []
        self.length = len(samples)
        self.power: NDArray[np.float32] = np.append(power, last).astype(np.float32)
        self.smooth = _moving_mean(self.power, PAUSE_FRAMES)

    def quietest(self, start: int, stop: int) -> int:
        """The boundary between frames, in [start, stop], around which 320 ms are quietest; of equals the last."""
        first, last = -(-start // FRAME), stop // FRAME
        around = self.smooth[first : last + 1]
        return (first + len(around) - 1 - int(np.argmin(around[::-1]))) * FRAME

    def is_silent(self, start: int, stop: int) -> bool:
        """Whether no frame from `start` to `stop` reaches the level below which nothing can be speech."""
        return bool(np.all(self.power[start // FRAME : -(-stop // FRAME)] < SILENCE**2))

    def is_pause(self, moment: int, start: int, stop: int) -> bool:
        """Whether the 320 ms around `moment` are silent, or quiet against the loud frames of `start` to `stop`."""
        return bool(self.smooth[moment // FRAME] < self._quiet_below(start, stop))

    def is_quiet(self, moment: int, start: int, stop: int) -> bool:
        """Whether all frames from `moment` to `stop` are silent, or quiet against the loud ones from `start` on."""
        return bool(np.all(self.power[moment // FRAME : -(-stop // FRAME)] < self._quiet_below(start, stop)))

    def _quiet_below(self, start: int, stop: int) -> float:
        loud = float(np.percentile(self.power[start // FRAME : -(-stop // FRAME)], LOUD_PERCENTILE))
        return max(loud * PAUSE_DROP, SILENCE**2)


def window_stop(loudness: Loudness, start: int, stop: int, limit: int) -> int:
    """Where the window from `start` ends: `stop` if within `limit` samples, else the quietest late moment."""
    if stop - start <= limit:
        return stop
    return loudness.quietest(start + limit - limit // 3, start + limit)


def stretches(loudness: Loudness, limit: int) -> tuple[Stretch, ...]:
    """Split the audio where windows of at most `limit` samples would end in a pause; together they cover it all."""
    found: list[Stretch] = []
    opened = start = 0
    while start < loudness.length:
        stop = window_stop(loudness, start, loudness.length, limit)
        if stop == loudness.length or loudness.is_pause(stop, start, stop):
            found.append(Stretch(opened, stop))
            opened = stop
        start = stop
    return tuple(found)


def _moving_mean(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The mean of the `width` values around each boundary before a value, fewer at the ends; same length."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    middle = np.arange(len(values))
    first, last = np.maximum(middle - width // 2, 0), np.minimum(middle + width // 2, len(values))
    return np.asarray((sums[last] - sums[first]) / np.maximum(last - first, 1), dtype=np.float32)
