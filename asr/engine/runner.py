"""Runs encoders, prefill and steps on a device, and tells the host what became of each row.

One transfer a step carries all that the host needs. On the CPU it is read at once. A CUDA device is
still at work when the host asks, so there the result of a step is read after the next one was
launched (`pipelined`); rows that had finished are masked out of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.decode_state import DecodeState
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import PrefillBatch, prefill
from asr.engine.row_state import SequenceState, StepShape
from asr.engine.speculative import decode_step
from asr.model.encoder import AudioEncoder


class StepResult(NamedTuple):
    """Each row after a step; accepted and drafted tokens are those of this step."""

    length: list[int]
    finished: list[int]
    accepted: list[int]
    drafted: list[int]


PendingResult = Callable[[], StepResult]


class StepRunner:
    """Encodes windows, lets rows start, and runs steps over the first rows: operation by operation,
    in the very shape that is needed.

    `pipelined` says that a step's result is read after the next one was launched. `draft_lengths`
    are numbers of drafts worth trying, and `timed_drafts` those whose cost is measured: none, few
    and many.
    """

    pipelined = False
    draft_lengths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10)
    timed_drafts = (0, 1, 6)

    def rows(self, live: int) -> int:
        """How many rows to run so that `live` are among them."""
        return live

    def kv_len(self, needed: int) -> int:
        """How many positions to attend to so that `needed` are among them."""
        return needed

    def shared_len(self, known: int) -> int:
        """How many of `known` positions that all beams share to leave out when beams are copied."""
        return known

    def prompt_len(self, needed: int) -> int:
        """How many positions of prompts to read so that `needed` are among them."""
        return needed

    def verified_len(self, needed: int) -> int:
        """How many guessed tokens to verify in prefill so that `needed` are among them."""
        return needed

    def warmup_shapes(self, assisted: bool) -> Sequence[tuple[int, StepShape]]:
        """Numbers of rows and shapes worth preparing at load, largest first."""
        return ()

    def encode(self, encoder: AudioEncoder, features: Tensor) -> Tensor:
        """See `AudioEncoder.forward`."""
        return encoder.forward(features)

    def prefill(
        self,
        state: DecodeState,
        places: Sequence[int],
        batch: PrefillBatch,
        filters: LogitFilter,
        special_tokens: SpecialTokens,
    ) -> Tensor:
        """Let the rows at `places` start; see `asr.engine.prefill.prefill`. Those that stand
        together share a pass.
        """
        gaps = [n for n in range(1, len(places)) if places[n] != places[n - 1] + 1]
        starts = []
        for first, stop in pairwise((0, *gaps, len(places))):
            view = state.view(places[first], places[stop - 1] + 1)
            part = batch.part(slice(first, stop))
            starts.append(prefill(view, part, filters, special_tokens))
        return torch.cat(starts)

    def launch(self, state: DecodeState, filters: LogitFilter, shape: StepShape) -> PendingResult:
        """Start a step; what is returned waits for its result."""
        decode_step(state, filters, shape)
        result = StepResult(*collect(state.rows).tolist())
        return lambda: result

    def release(self, state: DecodeState) -> None:
        """Let go of a decode state's memory before it is freed."""


def collect(rows: SequenceState) -> Tensor:
    """A StepResult as one tensor (4, rows) on the device; the counts of drafts start anew."""
    stacked = torch.stack((rows.length, rows.finished.long(), rows.accepted, rows.drafted))
    rows.accepted.zero_()
    rows.drafted.zero_()
    return stacked
