"""Finds speech that a text leaves out."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whosaid.asr.output.unwritten import (
    FEWEST,
    SHORTEST_LISTED,
    SHORTEST_PAUSE,
    Gap,
    find_unwritten,
    unwritten_speech,
)
from whosaid.asr.output.words import longest_speech
from whosaid.transcript import Unwritten, Word


def words(*spans: tuple[float, float]) -> list[Word]:
    return [Word(" so", start, end) for start, end in spans]


def counting(*speech: tuple[float, float]):
    """Return a function that gives the seconds of `speech` before each of some times."""

    def before(times: np.ndarray) -> np.ndarray:
        passed = [sum(np.clip(time - a, 0.0, b - a) for a, b in speech) for time in times]
        return np.array(passed, np.float64)

    return before


ALWAYS = counting((0.0, 100.0))


@pytest.mark.parametrize(
    ("said", "end", "gaps"),
    [
        ([(0.2, 0.6), (0.6, 1.3)], 19.7, [Gap(1.3, 19.7, 2, 2)]),
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


@pytest.mark.parametrize("rate", [1.4, 2.5, 6.0])
def test_slow_and_fast_speech_is_written(rate):
    said = words(*((n / rate, (n + 1) / rate) for n in range(40)))
    assert find_unwritten(said, 0.0, 40 / rate, ALWAYS) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(
            (" 555-867-5309.", 5.0),
            (" 3.1415926535.", 5.0),
            (" 1,234,567", 5.5),
            (" $12,749.99.", 5.0),
        ),
        *((" 1Z999AA10123456784", 9.0), (" www.bbc.co.uk/sport", 3.5), (" XK7QP2", 3.5)),
        *((" 1999", 2.5), (" ٠١٢٣٤٥٦", 4.0), (" 一三八〇〇一三八", 4.0), (" 안녕하세요", 1.5)),
        (" zweihundertvierunddreißigtausend", 3.0),
    ],
)
def test_a_word_accounts_for_what_its_text_takes_to_say(text, seconds):
    """The speech of a number is written, and that of the same time over a syllable is not."""
    for said, gaps in ((text, []), (" so", [Gap(0.5, 0.5 + seconds, 0, 1)])):
        found = find_unwritten([Word(said, 0.5, 0.5 + seconds)], 0.5, 0.5 + seconds, ALWAYS)
        assert found == (gaps if seconds > 2.2 else [])


def test_speech_behind_a_number_is_unwritten():
    number = Word(" 3.1415926535.", 1.0, 4.5)
    assert find_unwritten([number], 1.0, 7.0, ALWAYS) == [Gap(4.5, 7.0, 1, 1)]


hundredths = st.lists(st.integers(0, 3000), max_size=60)
times = hundredths.map(lambda found: [each / 100 for each in sorted(found)])


@settings(max_examples=200)
@given(times, times)
def test_gaps_are_all_spans_with_too_few_words(edges, bounds):
    """The oracle tries every span of pauses and words."""
    said = words(*zip(edges[::2], edges[1::2], strict=False))
    count = counting(*zip(bounds[::2], bounds[1::2], strict=False))
    gaps = find_unwritten(said, 0.0, 30.0, count)
    edges = [0.0, *(edge for word in said for edge in (word.start, word.end)), 30.0]
    passed = count(np.array(edges))
    word = longest_speech(" so")
    values = [passed[at + 1] - passed[at] - at % 2 * word for at in range(len(edges) - 1)]
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
    places = [place for gap in gaps for place in (gap.first, gap.stop)]
    assert places == sorted(places)


def test_unwritten_spans_begin_and_end_with_speech():
    """Pauses within a gap are not; short ones between two spans are. A blip is left out."""
    blip = (25.0, 25.0 + SHORTEST_LISTED / 2)
    speech = ((0.0, 2.0), (3.0 - SHORTEST_PAUSE / 2, 4.0), (20.0, 21.0), blip)
    told = unwritten_speech(words((0.0, 0.5)), speech, counting(*speech))
    assert told == (Unwritten(0.5, 4.0), Unwritten(20.0, 21.0))


def test_nothing_is_unwritten_without_speech():
    assert unwritten_speech([], (), counting()) == ()


@given(st.lists(st.tuples(st.floats(0.05, 0.7), st.booleans()), min_size=1, max_size=8))
def test_a_short_answer_without_words_is_unwritten(answers):
    """Some answers have a word; pauses of two seconds lie between them."""
    speech = [(3.0 * place, 3.0 * place + length) for place, (length, _) in enumerate(answers)]
    said = [span for span, (_, is_written) in zip(speech, answers, strict=True) if is_written]
    found = unwritten_speech(words(*said), speech, counting(*speech))
    missing = [span for span in speech if span not in said and span[1] - span[0] >= SHORTEST_LISTED]
    assert {(each.start, each.end) for each in found} >= {*missing}
    assert all(one.end <= two.start for one, two in pairwise(found))
