"""What a report says, and that its counts start anew."""

from __future__ import annotations

import torch

from whosaid.asr.engine.runner import StepResult, StepRunner, collect
from whosaid.asr.engine.state import SequenceState


def test_a_report_counts_the_drafts_of_its_round_alone():
    rows = SequenceState.allocate(2, 8, torch.device("cpu"))
    rows.length.copy_(torch.tensor([3, 5]))
    rows.finished[0] = False
    rows.accepted.copy_(torch.tensor([2, 0]))
    rows.drafted.copy_(torch.tensor([3, 1]))
    assert StepResult(*collect(rows).tolist()) == StepResult([3, 5], [0, 1], [2, 0], [3, 1])
    assert StepResult(*collect(rows).tolist()) == StepResult([3, 5], [0, 1], [0, 0], [0, 0])


def test_eager_rounds_take_the_shape_that_is_needed():
    runner = StepRunner()
    assert (runner.padded("rows", 7), runner.padded("positions", 33)) == (7, 33)
    assert not runner.pipelined
