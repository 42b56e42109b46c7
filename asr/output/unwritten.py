"""Speech that a text leaves out: what a detector found and no word accounts for.

Whisper stops early above all where a sentence is said again and again. Its timestamps then claim
the rest of the window, and so may its words: alignment has to put them somewhere, and stretches one
over all that is left. A word therefore accounts for LONGEST_WORD of speech at most. A span is left
out where speech exceeds what its words account for by FEWEST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transcript import Unwritten, Word

# From times in seconds, in order, to the seconds of speech before each.
SpeechBefore = Callable[[NDArray[np.float64]], NDArray[np.float64]]
FEWEST = 1.5  # seconds
LONGEST_WORD = 1.0  # seconds
SHORTEST_PAUSE = 1.0  # seconds between two spans that are told apart


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds `start` to `end`, and the words `first` to `stop` that stand there but are too few
    for so much speech; mostly there are none.
    """

    start: float
    end: float
    first: int
    stop: int


def find_unwritten(
    words: Sequence[Word], start: float, end: float, speech_before: SpeechBefore
) -> list[Gap]:
    """Return the unwritten spans from `start` to `end` seconds, in order, of a text with these
    `words`, which are in order of time.
    """
    edges = [start]
    for word in words:
        begin = max(edges[-1], min(word.start, end))
        edges += [begin, max(begin, min(word.end, end))]
    edges.append(max(edges[-1], end))
    excess = np.diff(speech_before(np.array(edges)))
    excess[1::2] -= LONGEST_WORD  # of words, which stand between two pauses
    runs = _runs(excess.tolist())
    return [Gap(edges[first], edges[stop], first // 2, stop // 2) for first, stop in runs]


def unwritten_speech(
    words: Sequence[Word], speech: Sequence[tuple[float, float]], speech_before: SpeechBefore
) -> tuple[Unwritten, ...]:
    """Return the parts of the spans of `speech`, in seconds and in order, for which a transcript
    has no words.
    """
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
    """Return the places from which to which values add up to FEWEST or more.

    Two runs are one unless the values between them add up to -FEWEST or less.
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
