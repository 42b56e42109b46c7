"""Acceptance row by row, on choices written by hand."""

from __future__ import annotations

import pytest
import torch

from whosaid.asr.engine.logit_filters import Choice
from whosaid.asr.engine.speculative import accept, count_accepted
from whosaid.asr.engine.state import SequenceState

END = 99


def rows_of(drafts, length=3, limit=20):
    """SequenceState of `length` final tokens (all 7) with `drafts` (rows, k) behind them."""
    rows = SequenceState.allocate(len(drafts), 24, torch.device("cpu"))
    rows.tokens[:, :length] = 7
    rows.tokens[:, length : length + len(drafts[0])] = torch.tensor(drafts)
    rows.length.fill_(length)
    rows.max_length.fill_(limit)
    rows.finished.fill_(False)
    rows.draftable.fill_(True)
    return rows


def choice_of(tokens):
    return Choice(torch.tensor(tokens), torch.full((len(tokens), len(tokens[0])), -0.5))


def settle(rows, choice):
    ends = rows.length[:, None] + torch.arange(choice.tokens.shape[1])
    accept(rows, choice, ends, count_accepted(rows, choice, ends), END)


def final(rows):
    return [
        row[:length].tolist() for row, length in zip(rows.tokens, rows.length.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("draft", "choice", "gained"),
    [
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 2, 9, 4], [1, 2, 9]),
        ([1, 2, 3], [9, 2, 3, 4], [9]),
        ([1, END, 3], [1, END, 3, 4], [1, END]),
        ([1, 2, 3], [1, END, 3, 4], [1, END]),
        ([1, 2, 3], [1, 2, 3, END], [1, 2, 3, END]),
    ],
)
def test_the_longest_agreeing_prefix_and_one_more(draft, choice, gained):
    rows = rows_of([draft])
    settle(rows, choice_of([choice]))
    assert final(rows) == [[7, 7, 7, *gained]]
    assert rows.finished.tolist() == [gained[-1] == END]
    assert rows.log_probs[0, 3 : 3 + len(gained)].tolist() == [-0.5] * len(gained)


def test_rows_do_not_wait_for_each_other():
    rows = rows_of([[1, 2], [1, 2], [1, 2]])
    settle(rows, choice_of([[1, 2, 3], [5, 2, 3], [1, 6, 3]]))
    assert rows.length.tolist() == [6, 4, 5]
    assert rows.accepted.tolist() == [2, 0, 1]
    assert rows.drafted.tolist() == [2, 1, 2]


def test_a_row_stops_at_its_limit_and_a_finished_one_stands_still():
    rows = rows_of([[1, 2], [1, 2]])
    rows.max_length[0] = 4
    rows.finished[1] = True
    settle(rows, choice_of([[1, 2, 3], [1, 2, 3]]))
    assert rows.length.tolist() == [4, 3]
    assert rows.finished.tolist() == [True, True]
    assert rows.drafted.tolist() == [2, 0]


def test_rows_that_are_not_drafted_take_one_token():
    rows = rows_of([[1, 2]])
    rows.draftable[0] = False
    settle(rows, choice_of([[1, 2, 3]]))
    assert final(rows) == [[7, 7, 7, 1]]
    assert rows.drafted.tolist() == [0]


def test_no_drafts_is_plain_greedy():
    rows = rows_of([[0]])
    settle(rows, choice_of([[8]]))
    assert final(rows) == [[7, 7, 7, 8]]
