"""A synthesised sentence with the time of every word.

Words end where the sound ends. Synthesisers report only where words start or where phones end, so
the gaps between words are found by energy. The silence around a sentence is cut to a margin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from timebase import SAMPLE_RATE
from transcript import Word

MARGIN = 0.05
FRAME = SAMPLE_RATE // 100
QUIET_DB = -35.0

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Clip:
    """Speech of one voice: float32 mono samples at 16 kHz and its words in order.

    Word times are in seconds from the first sample.
    """

    samples: Samples
    words: tuple[Word, ...]

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def text(self) -> str:
        """The words joined by spaces."""
        return " ".join(word.text for word in self.words)


def clip_from_spans(samples: Samples, words: list[str], spans: list[tuple[float, float]]) -> Clip:
    """Make a clip from samples and the rough start and end of each word, in seconds.

    Spans shrink to the sound in them, and the silence around the sentence is cut.
    """
    loud = _loud_frames(samples)
    timed = [
        Word(word, *_shrink(loud, start, end))
        for word, (start, end) in zip(words, spans, strict=True)
    ]
    first = max(0, round((timed[0].start - MARGIN) * SAMPLE_RATE))
    last = min(len(samples), round((timed[-1].end + MARGIN) * SAMPLE_RATE))
    return Clip(samples[first:last], tuple(shift(word, -first / SAMPLE_RATE) for word in timed))


def shift(word: Word, seconds: float) -> Word:
    """The same word, `seconds` later."""
    return replace(word, start=word.start + seconds, end=word.end + seconds)


def _loud_frames(samples: Samples) -> NDArray[np.bool_]:
    """Which 10 ms frames are within 35 dB of the loudest."""
    count = len(samples) // FRAME
    power = np.square(samples[: count * FRAME].reshape(count, FRAME)).mean(axis=1)
    loud: NDArray[np.bool_] = power > np.max(power) * 10 ** (QUIET_DB / 10)
    return loud


def _shrink(loud: NDArray[np.bool_], start: float, end: float) -> tuple[float, float]:
    """The part of a span from its first to its last loud frame; the span itself where none is."""
    first = round(start * 100)
    hits = np.flatnonzero(loud[first : round(end * 100)])
    if hits.size == 0:
        return start, end
    return max(start, (first + int(hits[0])) / 100), min(end, (first + int(hits[-1]) + 1) / 100)
