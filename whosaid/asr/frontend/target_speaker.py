"""The speaker to whom the encoder is conditioned, in a recording and in its windows.

A mask (frames, 4), 50 frames a second, has the shares of each frame that are silence, the target
speaker alone, others alone, and the target together with others. The shares sum to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.frontend.windows import Span, Window
from whosaid.timebase import SAMPLES_PER_TOKEN, runs

Samples = NDArray[np.float32]
Mask = NDArray[np.float32]

TARGET, OVERLAP = 1, 3  # columns of a mask
SPOKEN = 0.5  # share of a frame from which on it counts as speech


class TargetWindow(NamedTuple):
    """The mask of a window, and samples and mask of the speaker's enrolment (SE-DiCoW's)."""

    mask: Mask
    enrolment: tuple[Samples, Mask]


class TargetSpeaker:
    """A speaker of the recording `samples` (n,). Frames after the end of `mask` are silence.

    `enrolment` are the `limit` samples in which the speaker says most alone, else most at all: the
    self-enrolment of SE-DiCoW (Polok et al. 2026).
    """

    def __init__(self, samples: Samples, mask: Mask, limit: int) -> None:
        self._mask, self._length = mask, len(samples)
        alone, overlapped = mask[:, TARGET], mask[:, OVERLAP]
        said = alone if alone.any() else overlapped
        passed = np.concatenate([[0.0], np.cumsum(said, dtype=np.float64)])
        frames = min(limit // SAMPLES_PER_TOKEN, len(said))
        first = int(np.argmax(passed[frames:] - passed[: len(passed) - frames]))
        start = first * SAMPLES_PER_TOKEN
        self.enrolment = samples[start : start + limit], mask[first : first + frames]

    @property
    def speech(self) -> tuple[Span, ...]:
        spoken = self._mask[:, TARGET] + self._mask[:, OVERLAP] > SPOKEN
        spans = (runs(spoken) * SAMPLES_PER_TOKEN).clip(max=self._length).tolist()
        return tuple(Span(start, stop) for start, stop in spans if stop > start)

    def within(self, window: Window) -> TargetWindow:
        first, stop = round(window.start / SAMPLES_PER_TOKEN), -(-window.stop // SAMPLES_PER_TOKEN)
        return TargetWindow(self._mask[first:stop], self.enrolment)
