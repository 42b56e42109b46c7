"""Speech that a text leaves out: what a detector found and no word accounts for.

Whisper stops early above all where a sentence is said again and again. Its timestamps then claim
the rest of the window, and so may its words: alignment has to put them somewhere, and stretches one
over all that is left. A word therefore accounts for LONGEST_WORD of speech at most. A span is left
out where speech exceeds what its words account for by FEWEST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    return [
        Gap(edges[first], edges[stop], first // 2, stop // 2)
        for first, stop in _largest_sums(excess, 0, len(excess))
    ]


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


def _largest_sums(values: Sequence[float], begin: int, end: int) -> list[tuple[int, int]]:
    """The places from which to which values add up to FEWEST or more: those with the largest sum,
    and likewise before and after them.
    """
    sums = [0.0, *accumulate(values[begin:end])]
    lowest = list(accumulate(range(len(sums)), lambda low, at: at if sums[at] < sums[low] else low))
    last = max(range(len(sums)), key=lambda at: sums[at] - sums[lowest[at]])
    first = lowest[last]
    if sums[last] - sums[first] < FEWEST:
        return []
    return [
        *_largest_sums(values, begin, begin + first),
        (begin + first, begin + last),
        *_largest_sums(values, begin + last, end),
    ]
