"""Loops are found where they become certain, whatever follows, and speech is left alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whosaid.asr.engine.fallback import (
    LONGEST_PERIOD,
    Loop,
    ends_in_repetition,
    find_repetition,
    parts_of_stretch,
    read_repetitions,
)

PERIODS = st.integers(1, LONGEST_PERIOD)


def distinct(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def attention_at(places, frames=1500):
    """Return the attention for `read_repetitions`, of tokens that each attend to one place."""

    def attend(count):
        attention = np.zeros((count, frames), np.float32)
        attention[np.arange(count), np.asarray(places[:count]) % frames] = 1.0
        return attention

    return attend


def spoken(count, frames=10):
    """Places of tokens that go on through the audio."""
    return [frames * each for each in range(count)]


@given(PERIODS, st.integers(0, 60), st.integers(0, 30))
def test_a_repetition_is_found_with_what_stands_before_it(period, before, more):
    part = distinct(period)
    length = period * parts_of_stretch(part)
    tokens = distinct(before, 1000) + (part * 80)[: length + more]
    assert find_repetition(tokens + distinct(5, 2000)) == (before, len(tokens), period)


@given(PERIODS, st.integers(0, 60))
def test_one_token_less_is_no_repetition(period, before):
    needed = period * parts_of_stretch(distinct(period))
    tokens = (distinct(period) * needed)[: needed - 1]
    assert find_repetition(distinct(before, 1000) + tokens + distinct(9, 2000)) is None


@given(st.lists(st.integers(0, 2), max_size=120))
def test_repetition_equals_a_search_by_definition(tokens):
    found = find_repetition(tokens)
    assert (found and (found.start, found.period)) == first_repetition(tokens)


@given(st.lists(st.integers(0, 2), max_size=120))
def test_running_row_is_checked_once_repetition_is_certain(tokens):
    for end in range(len(tokens) + 1):
        assert not ends_in_repetition(tokens[:end]) or find_repetition(tokens[:end])
    ends = [end for end in range(len(tokens) + 1) if ends_in_repetition(tokens[:end])]
    assert bool(ends) is (find_repetition(tokens) is not None)


def first_repetition(tokens):
    """Find the repetition by trying every end, period and start."""
    for stop in range(1, len(tokens) + 1):
        for period in range(1, LONGEST_PERIOD + 1):
            start = stop - period * parts_of_stretch(tokens[max(stop - period, 0) : stop])
            text = np.array(tokens[max(start, 0) : stop])
            if start >= 0 and (text[period:] == text[:-period]).all():
                return (start, period)
    return None


@given(PERIODS, st.integers(0, 30), st.integers(1, 5))
def test_repetition_that_attention_follows_is_spoken(period, before, times):
    count = times * parts_of_stretch(distinct(period))
    tokens = distinct(before, 1000) + distinct(period) * count + distinct(7, 2000)
    loop, once = read_repetitions(tokens, attention_at(spoken(len(tokens)), 10 * len(tokens)))
    assert loop is None
    assert once == distinct(before, 1000) + distinct(period) + distinct(7, 2000)


@given(PERIODS, st.integers(0, 30), st.sampled_from(["still", "to and fro", "back", "again"]))
def test_repetition_without_attention_is_a_loop(period, before, how):
    """In "again" each part attends to the same audio, but for one of its tokens."""
    tokens = distinct(before, 1000) + distinct(period) * parts_of_stretch(distinct(period)) * 2
    there_and_back = [900 + 300 * (each % 2) for each in range(len(tokens))]
    back, still = spoken(len(tokens))[::-1], [900] * len(tokens)
    parts = [divmod(each - before, period) for each in range(len(tokens))]
    again = [900 + 10 * (place + (place == part)) for part, place in parts]
    stuck = {"still": still, "to and fro": there_and_back, "back": back, "again": again}[how]
    places = spoken(before) + stuck[before:]
    loop, _ = read_repetitions(tokens, attention_at(places, 4000))
    assert loop == Loop(before + period, spoken=False)


@given(st.integers(1, LONGEST_PERIOD), st.integers(1, 3), st.integers(0, 3))
def test_repetition_beyond_the_last_spoken_word_is_cut(period, stretches, extra):
    count = parts_of_stretch(distinct(period))
    heard = stretches * count + min(extra, (count - 1) // 2)
    tokens = distinct(period) * (heard + 2 * count)
    end = 10 * heard * period
    places = [min(place, end - 1) for place in spoken(len(tokens))]
    places[heard * period :] = [end - 10 * period] * (len(tokens) - heard * period)
    loop, once = read_repetitions(tokens, attention_at(places, end))
    assert loop == Loop(heard * period, spoken=True)
    assert once == distinct(period)


@given(st.lists(st.integers(0, 1), max_size=120), st.integers(0, 2**32 - 1), st.data())
def test_kept_text_does_not_depend_on_the_step(tokens, seed, data):
    chance = np.random.default_rng(seed)
    places = np.cumsum(chance.integers(-2, 20, len(tokens))) + 40
    whole = read_repetitions(tokens, attention_at(places, 3000))[0]
    seen = tokens[: data.draw(st.integers(0, len(tokens)))]
    assert read_repetitions(seen, attention_at(places, 3000))[0] in (None, whole)


@pytest.mark.parametrize("text", ["no " * 10, "again and again " * 4, "ha " * 19])
def test_spoken_repetitions_are_no_loop(text):
    assert find_repetition([hash(word) for word in text.split()]) is None
