"""Loops are found where they become certain, whatever follows, and speech is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engine.repetition import (
    LEAST_REPEATS,
    LEAST_TOKENS,
    LONGEST_PERIOD,
    ends_in_repetition,
    find_repetition,
)

PERIODS = st.integers(1, LONGEST_PERIOD)


def distinct(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


@given(PERIODS, st.integers(0, 60), st.integers(0, 30))
def test_a_loop_is_found_with_what_stands_before_it(period, before, more):
    part = distinct(period)
    repeats = max(LEAST_REPEATS, -(-LEAST_TOKENS // period))
    tokens = distinct(before, 1000) + part * repeats + (part * 40)[:more]
    found = find_repetition(tokens)
    assert found is not None
    assert (found.start, found.period, found.kept) == (before, period, before + period)
    assert found.stop == before + max(LEAST_TOKENS, LEAST_REPEATS * period)


@given(PERIODS, st.integers(0, 60))
def test_one_token_less_is_no_loop(period, before):
    needed = max(LEAST_TOKENS, LEAST_REPEATS * period)
    tokens = (distinct(period) * needed)[: needed - 1]
    assert find_repetition(distinct(before, 1000) + tokens + distinct(9, 2000)) is None


@given(st.lists(st.integers(0, 2), max_size=120))
def test_it_is_what_a_search_from_the_definition_finds(tokens):
    assert find_repetition(tokens) == first_loop(tokens)


@given(st.lists(st.integers(0, 2), max_size=120))
def test_a_running_row_is_stopped_once_what_it_says_becomes_a_loop(tokens):
    loop = find_repetition(tokens)
    stopped = [end for end in range(len(tokens) + 1) if ends_in_repetition(tokens[:end])]
    assert (stopped[0] if stopped else None) == (loop.stop if loop else None)


def first_loop(tokens):
    """By trying every end, period and start."""
    for stop in range(1, len(tokens) + 1):
        for period in range(1, LONGEST_PERIOD + 1):
            needed = max(LEAST_TOKENS, LEAST_REPEATS * period)
            start = stop - needed
            text = np.array(tokens[max(start, 0) : stop])
            if start >= 0 and (text[period:] == text[:-period]).all():
                return (start, stop, period)
    return None


@given(st.lists(st.integers(0, 2), max_size=120), st.data())
def test_what_is_kept_does_not_depend_on_when_anybody_looks(tokens, data):
    found = find_repetition(tokens)
    seen = tokens[: data.draw(st.integers(found.stop if found else 0, len(tokens)))]
    assert find_repetition(seen) == found


@pytest.mark.parametrize("text", ["no " * 10, "again and again " * 4, "ha " * 19])
def test_what_people_say_is_no_loop(text):
    assert find_repetition([hash(word) for word in text.split()]) is None
