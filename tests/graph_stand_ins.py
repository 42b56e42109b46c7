"""CUDA graphs on a CPU: a capture runs nothing and a replay runs the step, so tokens are real.

The one decision: only torch's side is replaced. The runner, its keys, its pool and what it does
after a failure are the engine's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from asr.engine import cuda_graphs
from asr.engine.cuda_graphs import CudaGraphRunner
from asr.engine.runner import StepResult, collect
from asr.engine.speculative import decode_step

ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", RuntimeError)


class StandInGraph:
    """Stands in for torch.cuda.CUDAGraph; what it recorded is run by `replay`."""

    def __init__(self) -> None:
        self.step: Callable[[], None] | None = None
        self.rows: Any = None
        self.result: torch.Tensor | None = None
        self.owner: StandInGraphs | None = None

    def replay(self) -> None:
        assert self.owner is not None
        assert self.step is not None
        assert self.result is not None
        self.owner.replays += 1
        self.owner.clock += self.owner.replay_seconds
        self.step()
        if self.owner.corrupt:
            self.rows.tokens.scatter_(1, self.rows.length[:, None] - 1, 5)
        self.result.copy_(collect(self.rows))


class StandInGraphs:
    """What was captured and replayed, and which captures fail.

    `fails` gives the error of capture number n, counted from 1, or None. It is raised where the
    capture ends, as by cudaGraphInstantiate, or with `at_begin` before anything is recorded.
    """

    eager_seconds, capture_seconds, replay_seconds = 10.0, 50.0, 1.0

    def __init__(self) -> None:
        self.fails: Callable[[int], Exception | None] = lambda _: None
        self.at_begin = self.corrupt = False
        self.captures = self.replays = self.eager = 0
        self.clock = 0.0  # seconds that steps would have taken
        self.pools: list[object] = []  # of each capture
        self.ended: list[object] = []  # pools that the allocator was told to leave
        self._ran: set[object] = set()
        self._current: StandInGraph | None = None

    @contextlib.contextmanager
    def graph(self, graph: StandInGraph, pool: object, **options: object) -> Iterator[None]:
        assert options == {"capture_error_mode": "thread_local"}
        self.captures += 1
        self.clock += self.capture_seconds
        self.pools.append(pool)
        error, graph.owner = self.fails(self.captures), self
        if error is not None and self.at_begin:
            raise error
        self._current = graph
        try:
            yield
        finally:
            self._current = None
        if error is not None:
            raise error

    def decode_step(self, state: Any, filters: Any, shape: Any) -> None:
        key = (state.rows.tokens.data_ptr(), state.capacity, shape)
        if self._current is None:
            self._ran.add(key)
            self.eager += 1
            self.clock += self.eager_seconds
            decode_step(state, filters, shape)
            return
        assert key in self._ran, "captured before it ran eagerly"
        self._current.step = lambda: decode_step(state, filters, shape)
        self._current.rows = state.rows

    def collect(self, rows: Any) -> torch.Tensor:
        if self._current is None:
            return collect(rows)
        self._current.result = torch.zeros(4, rows.length.shape[0], dtype=torch.long)
        return self._current.result

    def copy_out(self, result: torch.Tensor) -> Callable[[], StepResult]:
        arrived = result.tolist()
        return lambda: StepResult(*arrived)


def stand_in_graphs(patch: pytest.MonkeyPatch) -> StandInGraphs:
    """Engines made from now on take their device for CUDA."""
    graphs = StandInGraphs()
    patch.setattr("asr.engine.engine.runner_for", lambda _, enabled: CudaGraphRunner(enabled))
    patch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    patch.setattr(torch.cuda, "graph", graphs.graph)
    patch.setattr(torch.cuda, "graph_pool_handle", object)
    patch.setattr(torch.cuda, "current_stream", lambda: None)
    patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    patch.setattr(cuda_graphs, "decode_step", graphs.decode_step)
    patch.setattr(cuda_graphs, "collect", graphs.collect)
    patch.setattr(cuda_graphs, "_copy_out", graphs.copy_out)
    patch.setattr(cuda_graphs, "end_capture_allocation", graphs.ended.append)
    # Two rows are prepared, of short texts; requests use other shapes as well.
    patch.setattr(cuda_graphs, "WARMUP_ROWS", 2)
    patch.setattr(cuda_graphs, "WARMUP_KV_LEN", 64)
    patch.setattr(cuda_graphs, "DRAFTED_WARMUP_ROWS", (1,))
    return graphs
