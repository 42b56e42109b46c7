"""What a report says, and that its counts start anew."""

from __future__ import annotations

import torch

from asr.engine.runner import EagerRounds, Report, summary
from asr.engine.speculative import Rows


def test_a_report_counts_the_drafts_of_its_round_alone():
    rows = Rows.allocate(2, 8, torch.device("cpu"))
    rows.length.copy_(torch.tensor([3, 5]))
    rows.finished[0] = False
    rows.accepted.copy_(torch.tensor([2, 0]))
    rows.judged.copy_(torch.tensor([3, 1]))
    assert Report(*summary(rows).tolist()) == Report([3, 5], [0, 1], [2, 0], [3, 1])
    assert Report(*summary(rows).tolist()) == Report([3, 5], [0, 1], [0, 0], [0, 0])


def test_eager_rounds_take_the_shape_that_is_needed():
    rounds = EagerRounds()
    assert (rounds.rows(7), rounds.span(33), rounds.late) == (7, 33, False)
