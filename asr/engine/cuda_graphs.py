"""Steps on CUDA: each shape is captured once as a graph and replayed.

A step of Whisper's decoder is hundreds of small kernels; launched one by one from Python they leave
the device idle most of the time. A step never asks the device for a value (see
`asr.engine.speculative`), so it can be captured whole: drafts, verification, acceptance, result.

The one decision: shapes are rounded up to few sizes, so that few graphs exist, and a shape runs
eagerly before it is captured: libraries that create handles or compile kernels at first use must
not do so inside a capture (pytorch#99397). Padding rows are computed; their results are masked out.
All graphs share one memory pool, which is safe because steps run one after the other and every
result is copied out before the next step begins. Where a capture fails, all graphs are dropped and
steps run eagerly from then on: slower, but right.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.engine.decode_state import DecodeState
from asr.engine.logit_filters import LogitFilter
from asr.engine.row_state import StepShape
from asr.engine.runner import PendingResult, StepResult, collect
from asr.engine.speculative import decode_step
from device_errors import is_device_lost, is_out_of_memory
from versions import end_capture_allocation

logger = logging.getLogger("endpoint")

ROW_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
KV_LENGTHS = (64, 128, 256, 512)  # the last exceeds what a row of any Whisper holds
SHARED_LEN_STEP = 64  # positions
WARMUP_ROWS, WARMUP_KV_LEN = 24, 256
DRAFTED_WARMUP_ROWS = (1, 24)
MAX_REFUSED = 3  # shapes without memory for their graph; then all run eagerly
CAPTURED_LAG = 2  # shapes with a longer lag are rare: they follow a pause in drafting


class GraphKey(NamedTuple):
    """What a graph was captured for: the memory of the state, the number of rows, the shape."""

    state: int
    rows: int
    shape: StepShape


@dataclass(frozen=True)
class CapturedStep:
    """A graph and where it leaves its result."""

    graph: torch.cuda.CUDAGraph
    result: Tensor


class CudaGraphRunner:
    """Eager at a shape's first use, captured at its second, replayed afterwards.

    A state's memory must outlive its graphs: see `release`. With `enabled` False nothing is
    captured, in the same shapes.
    """

    pipelined = True
    draft_lengths = (2, 4, 8)
    timed_drafts = (0, 2, 8)

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._captured: dict[GraphKey, CapturedStep] = {}
        self._seen: set[GraphKey] = set()
        self._refused: set[GraphKey] = set()  # shapes for whose graph memory was too short
        self._pool: Any = None

    @property
    def graph_count(self) -> int:
        """How many graphs are held."""
        return len(self._captured)

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
        key = GraphKey(state.rows.tokens.data_ptr(), state.capacity, shape)
        captured = self._captured.get(key) if self.enabled else None
        if captured is None and self._worth_capturing(key):
            captured = self._capture(key, state, filters)
        if captured is None:
            self._seen.add(key)
            decode_step(state, filters, shape)
            return _copy_out(collect(state.rows))
        captured.graph.replay()
        return _copy_out(captured.result)

    def release(self) -> None:
        """Drop all graphs, before the memory they were captured over is freed.

        All or none: newer versions of torch free the cuBLAS workspace that the graphs of one pool
        share as soon as one of them goes (pytorch#193402).
        """
        self._captured.clear()
        self._seen.clear()
        self._refused.clear()
        self._pool = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run eagerly for a while, in the same shapes; graphs are kept."""
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled

    def disable(self, reason: str) -> None:
        """Run eagerly from now on, and say so."""
        self.release()
        if self.enabled:
            self.enabled = False
            logger.error("CUDA graphs are off, decoding is slower from now on: %s", reason)

    def _worth_capturing(self, key: GraphKey) -> bool:
        if not self.enabled or key.shape.assistant_lag > CAPTURED_LAG:
            return False
        return key in self._seen and key not in self._refused

    def _capture(
        self, key: GraphKey, state: DecodeState, filters: LogitFilter
    ) -> CapturedStep | None:
        """The step as a graph; None where it could not be captured.

        A capture runs nothing, so the step can still be run eagerly after one that failed.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # A capture that fails leaves this thread on the capture's stream: the outer context mends
        # that. Another thread, that of diarization, may allocate during a capture.
        with torch.cuda.stream(torch.cuda.current_stream()):
            graph = torch.cuda.CUDAGraph()
            try:
                with (
                    _objects_frozen(),
                    torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"),
                ):
                    decode_step(state, filters, key.shape)
                    result = collect(state.rows)
                captured = CapturedStep(graph, result)
            except RuntimeError as error:
                if is_device_lost(error) and not _is_capture_error(error):
                    raise
                failure = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
                out_of_memory = is_out_of_memory(error)
                captured = None
        if captured is None:
            self._give_up(key, failure, out_of_memory)
            return None
        self._captured[key] = captured
        return captured

    def _give_up(self, key: GraphKey, failure: str, out_of_memory: bool) -> None:
        """Drop all graphs; capture no more, or no more of this shape where memory was too short."""
        end_capture_allocation(self._pool)
        refused = self._refused | {key}
        self.release()
        if out_of_memory and len(refused) < MAX_REFUSED:
            logger.warning("no memory for the CUDA graph of %d rows: it runs eagerly", key.rows)
            self._refused = refused
        else:
            self.disable(f"a capture failed ({failure})")


def round_up(needed: int, sizes: tuple[int, ...]) -> int:
    """The smallest size that is enough, `needed` itself beyond the largest."""
    return next((size for size in sizes if size >= needed), needed)


def _is_capture_error(error: RuntimeError) -> bool:
    """Whether CUDA refused the capture, which is over then, rather than lost the device."""
    text = str(error).lower()
    return "captur" in text or "cublas" in text or "graph" in text


@contextmanager
def _objects_frozen() -> Iterator[None]:
    """Keep all objects out of the garbage collection with which torch 2.5 begins each capture."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
