"""Rows, moved and copied with everything that belongs to them."""

from __future__ import annotations

from dataclasses import fields

import torch

from whosaid.asr.engine.state import SequenceState

CPU = torch.device("cpu")


def numbered(rows):
    """Every field of row n holds n, or whether n is odd."""
    state = SequenceState.allocate(rows, 8, CPU)
    for field in fields(state):
        tensor = getattr(state, field.name)
        for row in range(rows):
            tensor[row] = row % 2 if tensor.dtype == torch.bool else row
    return state


def assert_rows(state, numbers):
    for field in fields(state):
        tensor = getattr(state, field.name)
        for row, number in enumerate(numbers):
            expected = number % 2 if tensor.dtype == torch.bool else number
            assert torch.all(tensor[row] == expected), field.name


def test_rows_are_taken_and_put_with_all_that_is_known_of_them():
    state = numbered(4)
    state.put(torch.tensor([0, 1]), state.take(torch.tensor([3, 2])))
    assert_rows(state, [3, 2, 2, 3])


def test_new_rows_are_finished():
    assert SequenceState.allocate(3, 8, CPU).finished.tolist() == [True] * 3


def test_a_row_without_timestamps_never_meets_the_grammar():
    state = SequenceState.allocate(2, 8, CPU)
    history = state.before(torch.tensor([[3], [3]]))
    assert history.tokens is state.tokens
    assert history.timestamps is state.timestamps
    assert history.grammar_start is state.grammar_start
