"""How much memory loaded models and their rows take, by the shapes of the engine's own decoders.

    python -m benchmarks.gpu_check.memory

prints the table of docs/gpu.md, which is that of deployment/memory.py, by arithmetic alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from asr.checkpoint.loading import WhisperModels
from asr.checkpoint.weights import WhisperModel
from asr.engine.drafters import MAX_DRAFTS, DraftModel
from asr.engine.state import DecodeState
from asr.model.decoder import Decoder
from asr.model.draft_heads import MedusaModel
from benchmarks.report import table
from deployment.memory import (
    BASE,
    DISTIL_LARGE_V3,
    DISTIL_MEDIUM_EN,
    DISTIL_SMALL_EN,
    LARGE_V3,
    MEDIUM,
    MEDIUM_EN,
    SMALL,
    SMALL_EN,
    TINY,
    TURBO,
    Dimensions,
    need_of,
)

BATCHES = (1, 8, 24, 128)
MB, GB = 1e6, 1e9
# Main models and their assistants, all of which share the main model's encoder.
PAIRS: tuple[tuple[Dimensions, Dimensions | None], ...] = (
    (TINY, None),
    (BASE, None),
    (SMALL, None),
    (SMALL_EN, DISTIL_SMALL_EN),
    (MEDIUM, None),
    (MEDIUM_EN, DISTIL_MEDIUM_EN),
    (TURBO, None),
    (LARGE_V3, None),
    (LARGE_V3, DISTIL_LARGE_V3),
)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a set of models by their shapes.

    `joined` are the products of several projections in one, which decoders hold beside the
    checkpoint's own; `per_row` are the caches of one row, of both models.
    """

    weights: int
    joined: int
    per_row: int

    @property
    def models(self) -> int:
        """All that stays in memory besides rows."""
        return self.weights + self.joined

    def with_rows(self, rows: int) -> int:
        """Models and a batch of so many rows."""
        return self.models + rows * self.per_row


def footprint_of(models: WhisperModels, main: Decoder, draft_model: DraftModel | None) -> Footprint:
    """The footprint of loaded models with the engine's decoders over them."""
    sources = [models.model]
    if models.assistant is not None:
        sources.append(models.assistant.model)
    return footprint(sources, main, draft_model)


def memory_table() -> str:
    """The table of docs/gpu.md in Markdown."""
    rows = []
    for main, assistant in PAIRS:
        need = need_of(main, assistant)
        name = main.name if assistant is None else f"{main.name} + {assistant.name}"
        totals = [f"{(need.models + count * need.per_row) / GB:.1f}" for count in BATCHES]
        sizes = [f"{need.models / GB:.2f}", f"{need.per_row / MB:.1f}"]
        rows.append([name, *sizes, *totals])
    batches = [f"batch {count}, GB" for count in BATCHES]
    return table(["model", "models, GB", "MB a row", *batches], rows)


def footprint(
    models: Sequence[WhisperModel], main: Decoder, draft_model: DraftModel | None
) -> Footprint:
    """The same, of checkpoints' models by themselves."""
    weights = [weight for model in models for _, weight in model.named_parameters()]
    drafter = draft_model.block if isinstance(draft_model, MedusaModel) else draft_model
    decoders = [main] if drafter is None else [main, drafter]
    joined = [
        part
        for decoder in decoders
        for layer in decoder.layers
        for product in layer.joined
        for part in (product.weight, product.bias)
        if part is not None
    ]
    per_row = DecodeState.bytes_per_row(main, draft_model, MAX_DRAFTS)
    if isinstance(draft_model, MedusaModel):
        weights += draft_model.source.tensors
        joined += [] if draft_model.shortlist is None else [draft_model.output.weight]
    return Footprint(_count_bytes(weights), _count_bytes(joined), per_row)


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors, each object counted once."""
    return sum(each.nbytes for each in {id(each): each for each in tensors}.values())


if __name__ == "__main__":
    sys.stdout.write(memory_table() + "\n")
