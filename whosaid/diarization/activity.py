"""Probabilities that speakers speak, from which a diarizer decides its turns.

Decisions lose what a network is unsure of: a second voice with a probability of 0.4 has no turn.
`whosaid.overlap` reads the probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from whosaid.timebase import TOKENS_PER_SECOND
from whosaid.transcript import SpeakerTurn

ROUNDING = 1e-6  # frames
Frames = NDArray[np.float32]  # (frames,), 50 a second, as Whisper's


@dataclass(frozen=True, eq=False, slots=True)
class SpeakerActivity:
    """Probabilities from second `start` on: of each speaker, and of `several` speakers at once."""

    speaking: Mapping[str, Frames]
    several: Frames
    start: float = 0.0

    @classmethod
    def decided(cls, turns: Sequence[SpeakerTurn]) -> SpeakerActivity:
        """Return the activity of turns, which is certain."""
        length = round(max((turn.end for turn in turns), default=0.0) * TOKENS_PER_SECOND)
        speaking = {turn.speaker: np.zeros(length, np.float32) for turn in turns}
        for turn in turns:
            start, stop = (round(each * TOKENS_PER_SECOND) for each in (turn.start, turn.end))
            speaking[turn.speaker][start:stop] = 1
        number = sum(speaking.values(), np.zeros(length, np.float32))
        return cls(speaking, (number > 1).astype(np.float32))

    @classmethod
    def averaged(cls, frames: Frames, rate: float, labels: Sequence[str]) -> SpeakerActivity:
        """Return the activity of `frames` (n, speakers + 1), `rate` a second, whose last column is
        `several`.
        """
        count = ceil(len(frames) / rate * TOKENS_PER_SECOND - ROUNDING)
        times = (np.arange(count) + 0.5) / TOKENS_PER_SECOND
        given = (np.arange(len(frames)) + 0.5) / rate
        *columns, several = (
            np.interp(times, given, each).astype(np.float32) if count else each for each in frames.T
        )
        return cls(dict(zip(labels, columns, strict=True)), several)

    @property
    def end(self) -> float:
        return self.start + len(self.several) / TOKENS_PER_SECOND

    def within(self, start: float, stop: float) -> SpeakerActivity:
        """Return the activity from `start` to `stop` seconds, 0 where it is unknown."""
        first = round((start - self.start) * TOKENS_PER_SECOND)
        count = round((stop - start) * TOKENS_PER_SECOND)

        def cut(frames: Frames) -> Frames:
            known = frames[max(0, first) : max(0, first + count)]
            before = min(count, max(0, -first))
            return np.pad(known, (before, count - before - len(known)))

        speaking = {label: cut(each) for label, each in self.speaking.items()}
        return SpeakerActivity(speaking, cut(self.several), start)


def joined(parts: Sequence[SpeakerActivity], start: float, stop: float) -> SpeakerActivity:
    """Return the activity from `start` to `stop` seconds of a recording that came in parts."""
    inside = [each.within(start, stop) for each in parts if each.start < stop and each.end > start]
    silent = np.zeros(round((stop - start) * TOKENS_PER_SECOND), np.float32)
    labels = dict.fromkeys(label for each in inside for label in each.speaking)
    speaking = {
        label: np.max([silent, *(each.speaking.get(label, silent) for each in inside)], axis=0)
        for label in labels
    }
    several = np.max([silent, *(each.several for each in inside)], axis=0)
    return SpeakerActivity(speaking, several, start)
