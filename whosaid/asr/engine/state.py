"""The decode state: a batch's rows, and the caches that the models have of them.

All of it is tensors that are allocated once and that a step updates in place. Caches are by far the
largest memory besides the weights: 342 MB a row for large-v3 in float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from whosaid.asr.engine.drafters import (
    MAX_DRAFTS,
    Drafter,
    DraftModel,
    allocate_drafter,
    drafter_bytes_per_row,
)
from whosaid.asr.engine.rows import BeamState, SequenceState
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.kv_cache import KVCache, RowTensors, upload

# Positions are a multiple of this: scaled_dot_product_attention pads other masks, in every layer.
ALIGNMENT = 16


@dataclass(frozen=True)
class DecodeState(RowTensors):
    """Rows and the models' caches of them; `beams` if each row has several."""

    decoder: Decoder  # the main model's
    cache: KVCache
    drafter: Drafter | None
    rows: SequenceState
    beams: BeamState | None = None

    @classmethod
    def allocate(
        cls, main: Decoder, draft_model: DraftModel | None, rows: int, num_beams: int = 1
    ) -> DecodeState:
        """Return rows for the longest text and its drafts; several beams mean beam search."""
        max_len, device = _max_len(main), main.token_embeddings.device
        return cls(
            main,
            main.allocate(rows, max_len, num_beams),
            None if draft_model is None else allocate_drafter(draft_model, rows, max_len),
            SequenceState.allocate(rows, max_len, device),
            BeamState.allocate(rows, num_beams, max_len, device) if num_beams > 1 else None,
        )

    @property
    def capacity(self) -> int:
        return self.rows.length.shape[0]

    @property
    def caches(self) -> list[KVCache]:
        own = None if self.drafter is None else self.drafter.cache
        return [self.cache] if own is None else [self.cache, own]

    @staticmethod
    def bytes_per_row(main: Decoder, draft_model: DraftModel | None, num_beams: int = 1) -> int:
        max_len = _max_len(main)
        drafter = 0 if draft_model is None else drafter_bytes_per_row(draft_model, max_len)
        return main.cache_bytes_per_row(max_len, num_beams) + drafter

    def forget(self, length: int) -> None:
        """Zero the first `length` positions of all rows, where a NaN would pass through masks."""
        for cache in self.caches:
            cache.clear(length)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Overwrite rows `targets` with `sources`, row by row to save memory; no row is both."""
        for cache in self.caches:
            for source, target in zip(sources, targets, strict=True):
                cache.move(source, target)
        rows = upload(torch.tensor((sources, targets)), self.rows.length.device)
        self.put(rows[1], self.take(rows[0]))


def _max_len(main: Decoder) -> int:
    """Return the positions of the longest text and the drafts after it, rounded up."""
    return -(-(main.max_positions + MAX_DRAFTS + 1) // ALIGNMENT) * ALIGNMENT
