"""Rounds on CUDA: each shape is captured once as a graph and replayed.

A step of Whisper's decoder is hundreds of small kernels; launched one by one from Python they leave
the device idle most of the time. A round asks the host nothing (see `asr.engine.speculative`), so
it can be recorded whole: drafts, verification, acceptance and report. The one decision: shapes are
rounded up to few sizes, so that few graphs exist: those of greedy decoding at usual sizes from the
load on, others from their first use. Rows beyond the live ones are finished rows: they are computed
and stand still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asr.engine.logit_filters import LogitFilter
from asr.engine.runner import Reading, Report, summary
from asr.engine.speculative import Batch, Round, advance

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SPANS = (64, 128, 256, 512)  # the last exceeds what a row of any Whisper holds
USUAL_ROWS, USUAL_SPAN = 24, 256


class Key(NamedTuple):
    """What a graph was captured for: the memory of a batch and of the rules, the number of rows and
    the shape.
    """

    batch: int
    rules: int
    rows: int
    shape: Round


@dataclass(frozen=True)
class Captured:
    """A graph and where it leaves its report."""

    graph: torch.cuda.CUDAGraph
    report: Tensor


class GraphedRounds:
    """Captures on first use, replays afterwards. A batch's memory must outlive its graphs: see
    `forget`.
    """

    late = True

    def __init__(self) -> None:
        self._captured: dict[Key, Captured] = {}

    def rows(self, live: int) -> int:
        """The next of a few sizes."""
        return round_up(live, ROWS)

    def span(self, needed: int) -> int:
        """The next of a few sizes."""
        return round_up(needed, SPANS)

    def usual(self) -> list[tuple[int, Round]]:
        """Greedy rounds of up to the default batch size and of texts that are not unusually long,
        largest first.
        """
        rows, spans = (
            [size for size in sizes if size <= most]
            for sizes, most in ((ROWS, USUAL_ROWS), (SPANS, USUAL_SPAN))
        )
        return [(count, Round(0, 1, span)) for count in reversed(rows) for span in spans]

    def forget(self) -> None:
        """Drops all graphs, before the memory they were captured over is given back."""
        self._captured.clear()

    def launch(self, batch: Batch, rules: LogitFilter, shape: Round) -> Reading:
        """Replays the round; what is returned waits for its report."""
        if shape.unread > 2:
            advance(batch, rules, shape)
            return _reading(summary(batch.rows))
        key = Key(batch.rows.tokens.data_ptr(), rules.bias.data_ptr(), batch.capacity, shape)
        if key not in self._captured:
            self._captured[key] = _capture(batch, rules, shape)
        self._captured[key].graph.replay()
        return _reading(self._captured[key].report)


def round_up(needed: int, sizes: tuple[int, ...]) -> int:
    """The smallest size that is enough, `needed` itself beyond the largest."""
    return next((size for size in sizes if size >= needed), needed)


def _capture(batch: Batch, rules: LogitFilter, shape: Round) -> Captured:
    graph = torch.cuda.CUDAGraph()
    # Another thread, that of the diarization, may allocate meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        advance(batch, rules, shape)
        report = summary(batch.rows)
    return Captured(graph, report)


def _reading(report: Tensor) -> Reading:
    """Starts the copy to the host now, so that a later round does not overwrite it first."""
    pinned = torch.empty(report.shape, dtype=report.dtype, pin_memory=True)
    pinned.copy_(report, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> Report:
        arrived.synchronize()
        return Report(*pinned.tolist())

    return read
