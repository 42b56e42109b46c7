"""Finds speech that a text leaves out: detected speech without words for it.

Whisper stops early above all if a sentence is repeated; its timestamps then claim the rest of the
window, and alignment stretches a word over it. So a word accounts for as much speech as its text
may take (`longest_speech`). A span is left out if its speech exceeds that of its words by FEWEST,
and decoded again. Shorter speech between two pauses is listed if it has no word at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.output.words import longest_speech
from whosaid.transcript import Unwritten, Word

# Maps times in seconds, in order, to the seconds of speech before each.
SpeechBefore = Callable[[NDArray[np.float64]], NDArray[np.float64]]
FEWEST = 1.5  # seconds
SHORTEST_PAUSE = 1.0  # seconds between two spans that are kept separate
# The shortest speech without any word that is listed, and how near a word counts, in seconds.
SHORTEST_LISTED, NEAR = 0.3, 0.3


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
    # Every second span is a word.
    excess[1::2] -= [longest_speech(word.text) for word in words]
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
        found += [each for each in spans if each.end - each.start >= SHORTEST_LISTED]
    starts = np.sort([*(each.start for each in words), *(each.start for each in found)])
    ends = np.sort([*(each.end for each in words), *(each.end for each in found)])
    for start, end in speech:
        near = np.searchsorted(starts, end + NEAR) - np.searchsorted(ends, start - NEAR, "right")
        if near == 0 and end - start >= SHORTEST_LISTED:
            found.append(Unwritten(start, end))
    return tuple(sorted(found, key=lambda each: each.start))


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
