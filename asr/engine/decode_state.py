"""What the device knows of a batch: the caches of the main model, what drafts, and every row.

All of it is tensors allocated once. A step updates them in place, so nothing is copied to the host
inside a step and a CUDA graph can replay one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.engine.drafters import Drafter, DraftModel, allocate_drafter, drafter_bytes_per_row
from asr.engine.row_state import BeamState, ModelWithCache, SequenceState, upload
from asr.model.decoder import Decoder
from asr.model.kv_cache import KVCache

# Positions are a multiple of this: scaled_dot_product_attention pads other masks, in every layer.
ALIGNMENT = 16


@dataclass(frozen=True)
class DecodeState:
    """Rows, and what the models have cached of them; `beams` where each row has several."""

    main: ModelWithCache
    drafter: Drafter | None
    rows: SequenceState
    beams: BeamState | None = None

    @classmethod
    def allocate(
        cls,
        main: Decoder,
        draft_model: DraftModel | None,
        rows: int,
        max_drafts: int,
        num_beams: int = 1,
    ) -> DecodeState:
        """`rows` rows of the model's longest text and up to `max_drafts` drafts behind it.

        With more than one of `num_beams` texts are found by beam search.
        """
        max_len = _max_len(main, max_drafts)
        drafter = None
        if draft_model is not None:
            drafter = allocate_drafter(draft_model, rows, max_len)
        device = main.token_embeddings.device
        beams = None
        if num_beams > 1:
            beams = BeamState.allocate(rows, num_beams, max_len, device)
        return cls(
            ModelWithCache(main, main.allocate(rows, max_len, num_beams)),
            drafter,
            SequenceState.allocate(rows, max_len, device),
            beams,
        )

    @property
    def capacity(self) -> int:
        """How many rows there are."""
        return self.rows.length.shape[0]

    @staticmethod
    def bytes_per_row(
        main: Decoder,
        draft_model: DraftModel | None,
        max_drafts: int,
        num_beams: int = 1,
    ) -> int:
        """Memory of the caches of one row, in bytes, by their shapes."""
        max_len = _max_len(main, max_drafts)
        drafter = 0 if draft_model is None else drafter_bytes_per_row(draft_model, max_len)
        return main.cache_bytes_per_row(max_len, num_beams) + drafter

    def view(self, start: int, stop: int) -> DecodeState:
        """Rows `start` to `stop`, sharing memory."""
        drafter = None if self.drafter is None else self.drafter.view(start, stop)
        beams = None if self.beams is None else self.beams.view(start, stop)
        rows = self.rows.view(start, stop)
        return DecodeState(self.main.view(start, stop), drafter, rows, beams)

    def take(self, rows: Tensor) -> DecodeState:
        """The rows with the numbers (n,), in any places: caches shared, all else copied.

        What is copied is written back by `put`. A CUDA graph over `take` serves any rows.
        """
        drafter = None if self.drafter is None else self.drafter.take(rows)
        beams = None if self.beams is None else self.beams.take(rows)
        return DecodeState(self.main.select(rows), drafter, self.rows.take(rows), beams)

    def put(self, rows: Tensor, taken: DecodeState) -> None:
        """Overwrite the rows with the numbers (n,) with what `taken` has copied."""
        if self.drafter is not None and taken.drafter is not None:
            self.drafter.put(rows, taken.drafter)
        if self.beams is not None and taken.beams is not None:
            self.beams.put(rows, taken.beams)
        self.rows.put(rows, taken.rows)

    def forget(self, length: int) -> None:
        """Zero what earlier texts left in the first `length` positions of all rows.

        What is masked is multiplied by zero all the same: a NaN of theirs would reach the next.
        """
        for cache in self._caches:
            cache.clear(length)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Overwrite the rows `targets` with the rows `sources`, of which none is both.

        Caches row by row: to gather them would take their memory again. All else by one gather.
        """
        for cache in self._caches:
            for source, target in zip(sources, targets, strict=True):
                cache.move(source, target)
        rows = upload(torch.tensor((sources, targets)), self.rows.length.device)
        self.put(rows[1], self.take(rows[0]))

    def copy_rows(self, other: DecodeState, rows: int) -> None:
        """Overwrite the first `rows` rows with those of `other`."""
        self.main.cache.copy_rows(other.main.cache, rows)
        if self.drafter is not None and other.drafter is not None:
            self.drafter.copy_rows(other.drafter, rows)
        if self.beams is not None and other.beams is not None:
            self.beams.copy_rows(other.beams, rows)
        self.rows.copy_rows(other.rows, rows)

    @property
    def _caches(self) -> list[KVCache]:
        own = None if self.drafter is None else self.drafter.cache
        return [self.main.cache] if own is None else [self.main.cache, own]


def _max_len(main: Decoder, max_drafts: int) -> int:
    """Positions of the longest text and the drafts behind it, rounded up."""
    return -(-(main.max_positions + max_drafts + 1) // ALIGNMENT) * ALIGNMENT
