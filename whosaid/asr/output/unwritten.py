"""Finds speech that a text leaves out: detected speech without words for it.

Whisper stops early above all if a sentence is repeated again and again. Its timestamps then claim
the rest of the window. So may its words, because alignment stretches one word over all that is
left. Therefore a word accounts for LONGEST_WORD of speech at most. A span is left out if its speech
exceeds the speech of its words by FEWEST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whosaid.transcript import Unwritten, Word

# Maps times in seconds, in order, to the seconds of speech before each.
SpeechBefore = Callable[[NDArray[np.float64]], NDArray[np.float64]]
FEWEST = 1.5  # seconds
LONGEST_WORD = 1.0  # seconds
SHORTEST_PAUSE = 1.0  # seconds between two spans that are kept separate


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds `start` to `end` with too few words for their speech: `first` to `stop`, if any."""

    start: float
    end: float
    first: int
    stop: int


def find_unwritten(
    words: Sequence[Word], start: float, end: float, speech_before: SpeechBefore
) -> list[Gap]:
    """Return the unwritten spans from `start` to `end` seconds; spans and `words` are in order."""
    edges = [start]
    for word in words:
        begin = max(edges[-1], min(word.start, end))
        edges += [begin, max(begin, min(word.end, end))]
    edges.append(max(edges[-1], end))
    excess = np.diff(speech_before(np.array(edges)))
    excess[1::2] -= LONGEST_WORD  # every second span is a word
    runs = _runs(excess.tolist())
    return [Gap(edges[first], edges[stop], first // 2, stop // 2) for first, stop in runs]


def unwritten_speech(
    words: Sequence[Word], speech: Sequence[tuple[float, float]], speech_before: SpeechBefore
) -> tuple[Unwritten, ...]:
    """Return the parts of `speech` that lack words; its spans are in seconds and in order."""
    found: list[Unwritten] = []
    for gap in find_unwritten(words, 0.0, speech[-1][1] if speech else 0.0, speech_before):
        spans: list[Unwritten] = []
        for start, end in speech:
            if start >= gap.end or end <= gap.start:
                continue
            start, end = max(start, gap.start), min(end, gap.end)
            if spans and start - spans[-1].end < SHORTEST_PAUSE:
                spans[-1] = Unwritten(spans[-1].start, end)
            else:
                spans.append(Unwritten(start, end))
        found += spans
    return tuple(found)


def _runs(excess: Sequence[float]) -> list[tuple[int, int]]:
    """Return the first index and the stop of each run whose values add up to FEWEST or more.

    Two runs are joined unless the values between them add up to -FEWEST or less.
    """
    found: list[tuple[int, int]] = []
    start = stop = 0
    total = most = 0.0
    for place, value in enumerate(excess, 1):
        total += value
        if total > most:
            most, stop = total, place
        if total <= max(0.0, most - FEWEST) or place == len(excess):
            if most >= FEWEST:
                found.append((start, stop))
            start, total, most = place, 0.0, 0.0
    return found
