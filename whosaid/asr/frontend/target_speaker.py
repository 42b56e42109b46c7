"""The speaker to whom the encoder is conditioned, in a recording and in its windows.

A mask (frames, 4), 50 frames a second, has the shares of each frame that are silence, the target
speaker alone, others alone, and the target together with others. The shares sum to 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.frontend.windows import SampleSpan, Window
from whosaid.timebase import SAMPLES_PER_TOKEN, runs

Samples = NDArray[np.float32]
Mask = NDArray[np.float32]

TARGET, OVERLAP = 1, 3  # columns of a mask
SPOKEN = 0.5  # share of a frame from which on it counts as speech


@dataclass(frozen=True, eq=False)
class Enrolment:
    """Samples (n,) in which a speaker speaks, and their mask: a reference for SE-DiCoW. Windows
    that share the object share the encoder's work.
    """

    samples: Samples
    mask: Mask


class TargetWindow(NamedTuple):
    """The mask of a window, and the speaker's enrolment."""

    mask: Mask
    enrolment: Enrolment


class TargetSpeaker:
    """A speaker of the recording `samples` (n,). Frames after the end of `mask` are silence.

    Without an `enrolment`, the recording's beginning is taken.
    """

    def __init__(self, samples: Samples, mask: Mask, enrolment: Enrolment | None = None) -> None:
        self._mask, self._length = mask, len(samples)
        self._enrolment = enrolment or Enrolment(samples, mask)

    @property
    def speech(self) -> tuple[SampleSpan, ...]:
        spoken = self._mask[:, TARGET] + self._mask[:, OVERLAP] > SPOKEN
        spans = (runs(spoken) * SAMPLES_PER_TOKEN).clip(max=self._length).tolist()
        return tuple(SampleSpan(start, stop) for start, stop in spans if stop > start)

    def within(self, window: Window) -> TargetWindow:
        first, stop = round(window.start / SAMPLES_PER_TOKEN), -(-window.stop // SAMPLES_PER_TOKEN)
        return TargetWindow(self._mask[first:stop], self._enrolment)
