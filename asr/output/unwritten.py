"""Speech that a text leaves out: what a detector found and no word accounts for.

Whisper stops early above all where a sentence is said again and again. Its timestamps then claim
the rest of the window, and so may its words: alignment has to put them somewhere, and stretches one
over all that is left. A word therefore accounts for LONGEST_WORD of speech at most. A span is left
out where speech exceeds what its words account for by FEWEST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transcript import Unwritten, Word

CountSpeech = Callable[[float, float], float]
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
    words: Sequence[Word],
    start: float,
    end: float,
    count_speech: CountSpeech,
) -> list[Gap]:
    """The unwritten spans from `start` to `end` seconds, in order.

    `words` are in order of time. `count_speech` returns the seconds of speech between two times.
    """
    edges = [start]
    for word in words:
        begin = max(edges[-1], min(word.start, end))
        edges += [begin, max(begin, min(word.end, end))]
    edges.append(max(edges[-1], end))
    # Pauses and words by turns, pauses first.
    excess = [
        count_speech(*edges[place : place + 2]) - place % 2 * LONGEST_WORD
        for place in range(len(edges) - 1)
    ]
    return [Gap(edges[first], edges[stop], first // 2, stop // 2) for first, stop in _runs(excess)]


def unwritten_speech(
    words: Sequence[Word], speech: Sequence[tuple[float, float]], count_speech: CountSpeech
) -> tuple[Unwritten, ...]:
    """What a whole transcript leaves out of the spans of `speech`, in seconds and in order."""
    found: list[Unwritten] = []
    for gap in find_unwritten(words, 0.0, speech[-1][1] if speech else 0.0, count_speech):
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
    """The places from which to which values add up to FEWEST or more. Two runs are one unless the
    values between them add up to -FEWEST or less.
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
