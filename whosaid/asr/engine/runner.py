"""Runs encoders, prefill and steps on a device, and reports the state of each row to the host.

One transfer a step carries everything that the host needs. On the CPU it is read at once. A CUDA
device is still computing when the host asks, so there a step's result is read after the next step
was launched. Rows that had finished are masked out of that step.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from whosaid.asr.engine.prefill import PrefillBatch, prefill
from whosaid.asr.engine.request import MAX_ROWS
from whosaid.asr.engine.rows import PaddedSizes, SequenceState, StepShape
from whosaid.asr.engine.speculative import decode_step
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.encoder import AudioEncoder, Encoder
from whosaid.asr.model.logit_filters import LogitFilter


class StepResult(NamedTuple):
    """Each row after a step; `accepted` and `drafted` count the tokens of a step with drafts."""

    length: list[int]
    finished: list[int]
    accepted: list[int]
    drafted: list[int]


PendingResult = Callable[[], StepResult]


class StepRunner:
    """Encodes windows, prefills rows and runs steps under the rules of `filters`, eagerly."""

    on_cuda = False
    sizes = PaddedSizes()
    draft_lengths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10)  # numbers of drafts worth trying
    timed_drafts = (0, 1, 6)  # none, few and many
    drafted_rows = MAX_ROWS  # with more rows a step drafts nothing

    def __init__(self, filters: LogitFilter) -> None:
        self.filters = filters

    def prepare(self, state: DecodeState, encoder: Encoder) -> None:
        """Prepare passes over a new state; nothing to do without graphs."""

    def encode(self, encoder: AudioEncoder, features: Tensor) -> Tensor:
        return encoder.forward(features)

    def prefill(self, state: DecodeState, places: Sequence[int], batch: PrefillBatch) -> Tensor:
        """Prefill as `asr.engine.prefill.prefill` does; adjacent rows share a pass."""
        gaps = [n for n in range(1, len(places)) if places[n] != places[n - 1] + 1]
        starts = []
        for first, stop in pairwise((0, *gaps, len(places))):
            view = state.view(places[first], places[stop - 1] + 1)
            starts.append(prefill(view, batch.part(slice(first, stop)), self.filters))
        return torch.cat(starts)

    def launch(self, state: DecodeState, shape: StepShape) -> PendingResult:
        """Start a step. Calling the returned function waits for the result."""
        decode_step(state, self.filters, shape)
        result = StepResult(*collect(state.rows).tolist())
        return lambda: result

    def beside_step(self) -> AbstractContextManager[object]:
        """Run the block's work beside the newest step, after what was launched before it."""
        return nullcontext()

    def encoding(self, ahead: bool = False) -> AbstractContextManager[object]:
        """Encode within the block; later work waits for it unless it is `ahead` of its use."""
        return nullcontext()

    def release(self, state: DecodeState) -> None:
        """Drop what uses a state's memory; call this before the memory is freed."""


def collect(rows: SequenceState) -> Tensor:
    """Return a StepResult as one device tensor (4, rows)."""
    return torch.stack((rows.length, rows.finished.long(), rows.accepted, rows.drafted))
