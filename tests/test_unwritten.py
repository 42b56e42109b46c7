"""Finds speech that a text leaves out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whosaid.asr.output.unwritten import (
    FEWEST,
    LONGEST_WORD,
    SHORTEST_PAUSE,
    Gap,
    find_unwritten,
    unwritten_speech,
)
from whosaid.transcript import Unwritten, Word


def words(*spans: tuple[float, float]) -> list[Word]:
    return [Word(" so", start, end) for start, end in spans]


def counting(*speech: tuple[float, float]):
    """How many seconds of the spans of `speech` lie before each of some times."""

    def before(times: np.ndarray) -> np.ndarray:
        passed = [sum(np.clip(time - a, 0.0, b - a) for a, b in speech) for time in times]
        return np.array(passed, np.float64)

    return before


ALWAYS = counting((0.0, 100.0))


@pytest.mark.parametrize(
    ("said", "end", "gaps"),
    [
        ([(0.2, 0.6), (0.6, 1.4)], 19.7, [Gap(1.4, 19.7, 2, 2)]),
        (
            [*((3.0 + n / 4, 3.25 + n / 4) for n in range(6)), (6.5, 6.75)],
            6.75,
            [Gap(0.0, 3.0, 0, 0), Gap(4.5, 6.5, 6, 6)],
        ),
        ([(3.0, 3.4), (3.4, 3.8)], 6.0, [Gap(0.0, 6.0, 0, 2)]),
        ([(0.0, 0.5), (0.4 + FEWEST, 2.5)], 2.5, []),
        # The last word claims what was said after it, as far as the window's end.
        ([(0.0, 0.4), (0.4, 21.9)], 21.9, [Gap(0.4, 21.9, 1, 2)]),
        # A sentence that is said eight times and written once, each word over one time.
        ([(2.0 * n, 2.0 * n + 1.9) for n in range(8)], 16.0, [Gap(0.0, 16.0, 0, 8)]),
    ],
    ids=["behind", "before and between", "a word or two amid", "short", "stretched", "repeated"],
)
def test_speech_without_words_is_unwritten(said, end, gaps):
    assert find_unwritten(words(*said), 0.0, end, ALWAYS) == gaps


def test_a_pause_is_no_unwritten_speech():
    said = words((0.0, 0.5), (9.0, 9.5))
    assert find_unwritten(said, 0.0, 9.5, counting((0.0, 0.6), (8.8, 9.5))) == []


@pytest.mark.parametrize("rate", [1.0, 2.5, 6.0])
def test_slow_and_fast_speech_is_written(rate):
    said = words(*((n / rate, (n + 1) / rate) for n in range(40)))
    assert find_unwritten(said, 0.0, 40 / rate, ALWAYS) == []


times = st.lists(st.integers(0, 3000), max_size=60).map(
    lambda found: [each / 100 for each in sorted(found)]
)


@settings(deadline=None, max_examples=200)
@given(times, times)
def test_gaps_are_all_spans_whose_words_are_too_few_for_their_speech(edges, bounds):
    """By trying every span of pauses and words."""
    said = words(*zip(edges[::2], edges[1::2], strict=False))
    count = counting(*zip(bounds[::2], bounds[1::2], strict=False))
    gaps = find_unwritten(said, 0.0, 30.0, count)
    edges = [0.0, *(edge for word in said for edge in (word.start, word.end)), 30.0]
    passed = count(np.array(edges))
    values = [passed[at + 1] - passed[at] - at % 2 * LONGEST_WORD for at in range(len(edges) - 1)]
    outside = list(values)
    for gap in gaps:
        places = range(2 * gap.first, 2 * gap.stop + 1)
        inside = [at for at in places if gap.start <= edges[at] and edges[at + 1] <= gap.end]
        assert sum(values[at] for at in inside) >= FEWEST - 1e-9
        for at in inside:
            outside[at] = -1000.0
    for first in range(len(outside)):
        for stop in range(first + 1, len(outside) + 1):
            assert sum(outside[first:stop]) < FEWEST + 1e-9
    assert all(one.end <= other.start for one, other in pairwise(gaps))
    assert [place for gap in gaps for place in (gap.first, gap.stop)] == sorted(
        place for gap in gaps for place in (gap.first, gap.stop)
    )


def test_what_is_told_of_a_transcript_is_speech():
    """Pauses within a gap are not; short ones between two spans are."""
    speech = ((0.0, 2.0), (3.0 - SHORTEST_PAUSE / 2, 4.0), (20.0, 21.0))
    told = unwritten_speech(words((0.0, 0.5)), speech, counting(*speech))
    assert told == (Unwritten(0.5, 4.0), Unwritten(20.0, 21.0))


def test_nothing_is_unwritten_without_speech():
    assert unwritten_speech([], (), counting()) == ()
