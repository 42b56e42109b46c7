"""Computes the memory of models and rows from the shapes of the engine's decoders.

    python -m benchmarks.gpu_check.memory

prints the tables of docs/gpu.md. Models are built without data.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from benchmarks.report import table
from tests.support.transformers_models import decoder_alone
from whosaid.asr.checkpoint.weights import WhisperModel
from whosaid.asr.engine.batch import BEAM_LANE
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.drafters import DraftModel
from whosaid.asr.engine.memory import HEADROOM_BYTES, HEADROOM_SHARE, cuda_rows
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.draft_heads import MedusaModel

BATCHES = (1, 24)
MB, GB = 1e6, 1e9


@dataclass(frozen=True)
class Shape:
    """A published checkpoint; `aligned` is the number of its alignment heads."""

    name: str
    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    aligned: int
    mel_bins: int = 80


LARGE_V3 = Shape("large-v3", 1280, 20, 32, 32, 51_866, 10, 128)
DISTIL_LARGE_V3 = Shape("distil-large-v3", 1280, 20, 32, 2, 51_866, 0, 128)
# Main models and their assistants, which all share the main model's encoder.
PAIRS: tuple[tuple[Shape, Shape | None], ...] = (
    (Shape("tiny", 384, 6, 4, 4, 51_865, 6), None),
    (Shape("base", 512, 8, 6, 6, 51_865, 8), None),
    (Shape("small", 768, 12, 12, 12, 51_865, 10), None),
    (Shape("medium", 1024, 16, 24, 24, 51_865, 6), None),
    (Shape("large-v3-turbo", 1280, 20, 32, 4, 51_866, 6, 128), None),
    (LARGE_V3, None),
    (LARGE_V3, DISTIL_LARGE_V3),
)

# MiB printed by nvidia-smi; torch can use USABLE of them.
DEVICES = {
    "T4": 15_360,
    "A10G": 23_028,
    "L4": 23_034,
    "L40S": 46_068,
    "A100 40 GB": 40_960,
    "A100 80 GB": 81_920,
    "H100": 81_559,
    "H200": 143_771,
}
USABLE = 0.995
SERVED = (PAIRS[-1], PAIRS[-3])  # on those devices
# The device's memory besides models and rows: CUDA's context, graphs and their streams, as read on
# an H200 (docs/gpu.md).
GRAPHS = 2.5 * 10**9
BEAMS = BEAM_LANE.num_beams


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
        return self.weights + self.joined

    def with_rows(self, rows: int) -> int:
        return self.models + rows * self.per_row


def memory_table() -> str:
    """Return the table of docs/gpu.md in Markdown."""
    rows = []
    for main, assistant in PAIRS:
        found = published_footprint(main, assistant)
        name = main.name if assistant is None else f"{main.name} + {assistant.name}"
        totals = [f"{found.with_rows(count) / GB:.1f}" for count in BATCHES]
        rows.append([name, f"{found.models / GB:.2f}", f"{found.per_row / MB:.1f}", *totals])
    batches = [f"batch {count}, GB" for count in BATCHES]
    return table(["model", "models, GB", "MB a row", *batches], rows)


def device_table() -> str:
    """Return the table of rows and graphs that devices hold at load, and of the rest of their
    memory, in Markdown. Rows are greedy rows and rows of five beams.
    """
    lines = []
    for device, mebibytes in DEVICES.items():
        total = int(USABLE * (mebibytes << 20))
        figures = []
        for pair in SERVED:
            found, decoder = published_footprint(*pair), _decoders(*pair)[0]
            free = int(total - max(HEADROOM_BYTES, int(total * HEADROOM_SHARE)) - found.models)
            rows = min(cuda_rows(decoder, 1, total), free // found.per_row)
            beam_rows = cuda_rows(decoder, BEAMS, total)
            beams = beam_rows * DecodeState.bytes_per_row(decoder, None, BEAMS)
            held = found.with_rows(rows) + beams + GRAPHS
            graphs = _graphs_at_load(pair, rows, beam_rows)
            figures += [f"{rows} + {beam_rows}", str(graphs), f"{(total - held) / GB:.1f}"]
        lines.append([device, *figures])
    names = [f"{letter}: {column}" for letter in "AB" for column in ("rows", "graphs", "free, GB")]
    return table(["device", *names], lines)


def _graphs_at_load(pair: tuple[Shape, Shape | None], rows: int, beam_rows: int) -> int:
    """Return how many graphs the engine captures over so many rows."""
    decoder, drafter, _ = _decoders(*pair)
    filters: Any = None  # which no pass is run by
    runner: Any = CudaGraphRunner(filters)
    encoder = SimpleNamespace(main=decoder, assistant=None)
    states = (
        DecodeState.allocate(decoder, drafter, rows),
        DecodeState.allocate(decoder, None, beam_rows, BEAMS),
    )
    kinds = [runner.usual_passes(each, encoder) for each in states]
    del kinds[1]["encoder"]  # which the lanes share
    return sum(len(passes) for kind in kinds for passes in kind.values())


@cache
def published_footprint(main: Shape, assistant: Shape | None) -> Footprint:
    """Return the footprint in float16."""
    decoder, drafter, models = _decoders(main, assistant)
    return footprint(models, decoder, drafter)


@cache
def _decoders(
    main: Shape, assistant: Shape | None
) -> tuple[Decoder, Decoder | None, list[WhisperModel]]:
    """Return the decoders and their models; an assistant shares the main model's encoder."""
    model = _without_data(main)
    heads = [(number // main.heads, number % main.heads) for number in range(main.aligned)]
    decoder = Decoder(model, heads)
    if assistant is None:
        return decoder, None, [model]
    with torch.device("meta"):
        other = decoder_alone(_without_data(assistant))
    return decoder, Decoder(other), [model, other]


def _without_data(shape: Shape) -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=shape.vocabulary,
        num_mel_bins=shape.mel_bins,
        d_model=shape.width,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=4 * shape.width,
        decoder_ffn_dim=4 * shape.width,
    )
    with torch.device("meta"):
        model: WhisperForConditionalGeneration = WhisperForConditionalGeneration(config).half()
    return model


def footprint(
    models: Sequence[WhisperModel], main: Decoder, draft_model: DraftModel | None
) -> Footprint:
    """Return the footprint of checkpoints' models with these decoders."""
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
    per_row = DecodeState.bytes_per_row(main, draft_model)
    if isinstance(draft_model, MedusaModel):
        weights += draft_model.source.tensors
        joined += [] if draft_model.shortlist is None else [draft_model.output.weight]
    return Footprint(_count_bytes(weights), _count_bytes(joined), per_row)


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors, each object counted once."""
    return sum(each.nbytes for each in {id(each): each for each in tensors}.values())


if __name__ == "__main__":
    sys.stdout.write(f"{memory_table()}\n\n{device_table()}\n")
