"""Steps on CUDA: each shape is captured once as a graph and replayed.

A step of Whisper's decoder is hundreds of small kernels; launched one by one from Python they leave
the device idle most of the time. A step never asks the device for a value (see
`asr.engine.speculative`), so it can be captured whole: drafts, verification, acceptance, result.

Shapes are rounded up to few sizes, so that few graphs exist; padding rows are computed, and their
results masked out. Every result is copied out before the next step begins, so that all graphs over
a state can share memory (see `asr.engine.captures`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from asr.engine.captures import Captures
from asr.engine.decode_state import DecodeState
from asr.engine.logit_filters import LogitFilter
from asr.engine.row_state import StepShape
from asr.engine.runner import PendingResult, StepResult, collect
from asr.engine.speculative import decode_step

ROW_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
KV_LENGTHS = (64, 128, 256, 512)  # the last exceeds what a row of any Whisper holds
SHARED_LEN_STEP = 64  # positions
WARMUP_ROWS, WARMUP_KV_LEN = 24, 256
DRAFTED_WARMUP_ROWS = (1, 24)
CAPTURED_LAG = 2  # shapes with a longer lag are rare: they follow a pause in drafting


class StepKey(NamedTuple):
    """What a step's graph was captured for, besides the memory of the state."""

    rows: int
    shape: StepShape

    def __str__(self) -> str:
        return f"{self.rows} rows"


class CudaGraphRunner:
    """Steps through `Captures`: eager at a shape's first use, captured at its second.

    A state's memory must outlive its graphs: see `release`. With `enabled` False nothing is
    captured, in the same shapes. `captures` may hold graphs of other work besides.
    """

    pipelined = True
    draft_lengths = (2, 4, 8)
    timed_drafts = (0, 2, 8)

    def __init__(self, enabled: bool = True) -> None:
        self.captures = Captures(enabled)

    @property
    def enabled(self) -> bool:
        """Whether graphs are captured and replayed."""
        return self.captures.enabled

    @property
    def graph_count(self) -> int:
        """How many graphs are held."""
        return self.captures.graph_count

    def rows(self, live: int) -> int:
        """The next of a few sizes."""
        return round_up(live, ROW_COUNTS)

    def kv_len(self, needed: int) -> int:
        """The next of a few sizes."""
        return round_up(needed, KV_LENGTHS)

    def shared_len(self, known: int) -> int:
        """Rounded down to one of few sizes."""
        return known - known % SHARED_LEN_STEP

    def warmup_shapes(self, assisted: bool) -> list[tuple[int, StepShape]]:
        """Greedy steps up to the default batch size, drafted ones at both its ends.

        Of texts that are not unusually long.
        """
        lengths = [length for length in KV_LENGTHS if length <= WARMUP_KV_LEN]
        shapes = []
        for rows in reversed([count for count in ROW_COUNTS if count <= WARMUP_ROWS]):
            drafts = self.draft_lengths if assisted and rows in DRAFTED_WARMUP_ROWS else ()
            for length in lengths:
                shapes += [(rows, StepShape(k, CAPTURED_LAG, length)) for k in drafts]
                shapes.append((rows, StepShape(0, 1, length)))
        return shapes

    def launch(self, state: DecodeState, filters: LogitFilter, shape: StepShape) -> PendingResult:
        """Replay the step, or run it; what is returned waits for its result."""
        key = StepKey(state.capacity, shape)

        def step() -> Tensor:
            decode_step(state, filters, shape)
            return collect(state.rows)

        worth_it = shape.assistant_lag <= CAPTURED_LAG
        return _copy_out(self.captures.run(_memory_of(state), key, step, worth_it))

    def release(self, state: DecodeState) -> None:
        """Drop the graphs over a state's memory, before it is freed."""
        self.captures.release(_memory_of(state))

    def paused(self) -> AbstractContextManager[None]:
        """Run eagerly for a while, in the same shapes; graphs are kept."""
        return self.captures.paused()

    def disable(self, reason: str) -> None:
        """Run eagerly from now on, and say so."""
        self.captures.disable(reason)


def round_up(needed: int, sizes: tuple[int, ...]) -> int:
    """The smallest size that is enough, `needed` itself beyond the largest."""
    return next((size for size in sizes if size >= needed), needed)


def _memory_of(state: DecodeState) -> int:
    """What tells the memory of a state, and of views of its first rows, from that of others."""
    return state.rows.tokens.data_ptr()


def _copy_out(result: Tensor) -> PendingResult:
    """Start the copy to the host now, so that the next step does not overwrite the result first."""
    pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    pinned.copy_(result, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> StepResult:
        arrived.synchronize()
        return StepResult(*pinned.tolist())

    return read
