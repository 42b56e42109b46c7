"""Runs rounds and tells the host what became of each row.

The one decision: one transfer a round carries all that the host wants to know. On the CPU it is
read at once; a CUDA device is still at work when the host asks, so there the report of a round is
read after the next one was launched (`late`), and rows that had finished simply stand still for
that round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from asr.engine.logit_filters import LogitFilter
from asr.engine.speculative import Batch, Round, Rows, advance


class Report(NamedTuple):
    """Each row after a round; accepted and judged drafts are those of this round."""

    length: list[int]
    finished: list[int]
    accepted: list[int]
    judged: list[int]


Reading = Callable[[], Report]


class Rounds(Protocol):
    """How a device runs a round over the first rows of a batch."""

    late: bool

    def rows(self, live: int) -> int:
        """How many rows to run so that `live` are among them."""

    def span(self, needed: int) -> int:
        """How many positions to look at so that `needed` are among them."""

    def usual(self) -> Sequence[tuple[int, Round]]:
        """Numbers of rows and shapes that are worth preparing at load."""

    def launch(self, batch: Batch, rules: LogitFilter, shape: Round) -> Reading:
        """Starts a round; what is returned waits for its report."""

    def forget(self) -> None:
        """Lets go of a batch's memory before it is given back."""


class EagerRounds:
    """Operation by operation, in the very shape that is needed."""

    late = False

    def rows(self, live: int) -> int:
        """As many as live."""
        return live

    def span(self, needed: int) -> int:
        """As many as needed."""
        return needed

    def usual(self) -> Sequence[tuple[int, Round]]:
        """None: there is nothing to prepare."""
        return ()

    def launch(self, batch: Batch, rules: LogitFilter, shape: Round) -> Reading:
        """Runs the round to its end."""
        advance(batch, rules, shape)
        report = Report(*summary(batch.rows).tolist())
        return lambda: report

    def forget(self) -> None:
        """Holds nothing."""


def summary(rows: Rows) -> Tensor:
    """A report as one tensor (4, rows) on the device; the counts of drafts start anew."""
    stacked = torch.stack((rows.length, rows.finished.long(), rows.accepted, rows.judged))
    rows.accepted.zero_()
    rows.judged.zero_()
    return stacked
