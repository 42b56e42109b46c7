"""Times linear layers and attention of `asr.model.cpu_kernels` beside torch's own.

Asked over the matrices of the demo's, whisper-base's and large-v3's decoders, in each precision:
linear layers by number of positions; attention to the audio of a few positions a row, as decoding
asks it, and of all of them, as the encoder does. A decoder meets a weight again only after all
others, so as many different weights take turns as fill more memory than processors have cache.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.pages import publish
from benchmarks.report import RESULTS, save, settings
from benchmarks.timing import Action, ratio, time_interleaved
from whosaid.asr.model.cpu_kernels import (
    ONEDNN_FROM_POSITIONS,
    PackedLinear,
    attention,
    empty_keys,
    empty_transposed,
)

# Outputs and inputs: query-key-value, fc1, fc2 and vocabulary.
MATRICES = {
    "demo": ((480, 160), (640, 160), (160, 640), (1_800, 160)),
    "base": ((1_536, 512), (2_048, 512), (512, 2_048), (51_865, 512)),
    "large-v3": ((3_840, 1_280), (5_120, 1_280), (1_280, 5_120)),
}
POSITIONS = (1, 8, 24, 56, 168)
HEADS = {"demo": (4, 40), "base": (8, 64), "large-v3": (20, 64)}
FRAMES = 1_500
# Rows, and query positions of each.
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "int8": torch.int8}
QUERIES = ((1, 1), (8, 1), (24, 1), (1, 4), (24, 4), (24, 7), (1, FRAMES), (4, FRAMES))
OPERAND_BYTES = 200e6  # of weights, or of keys and values, that take turns
CPU = torch.device("cpu")


def linear_layers(models: Iterable[str], repeats: int) -> Iterator[dict[str, str]]:
    """Yield how many times as fast as `F.linear`: a row for each matrix and precision, a cell for
    each number of positions.
    """
    for name in models:
        for (outputs, inputs), precision in product(MATRICES[name], PRECISIONS):
            count = max(1, int(OPERAND_BYTES / (4 * outputs * inputs)))
            weights = [torch.randn(outputs, inputs) for _ in range(count)]
            packed = [PackedLinear(weight, dtype=PRECISIONS[precision]) for weight in weights]
            row = {"outputs x inputs": f"{name}, {outputs} x {inputs}, {precision}"}
            for positions in POSITIONS:
                x = torch.randn(1, positions, inputs)
                stock = [partial(F.linear, x, weight) for weight in weights]
                ours = [partial(layer, x) for layer in packed]
                row[str(positions)] = _gain(stock, ours, repeats)
            yield row


def attentions(models: Iterable[str], repeats: int) -> Iterator[dict[str, str]]:
    """Yield how many times as fast as `F.scaled_dot_product_attention`: a row for each model and
    precision of the keys and values.
    """
    for name, precision in product(models, ("float32", "bfloat16")):
        heads, size = HEADS[name]
        row = {"heads": f"{name}, {heads} heads of {size}, {precision}"}
        for rows, positions in QUERIES:
            column = f"{rows} x {positions}"
            shape = (rows, heads, FRAMES, size)
            decoding = positions < ONEDNN_FROM_POSITIONS
            bytes_of_pair = 8 * rows * heads * FRAMES * size
            count = max(1, int(OPERAND_BYTES / bytes_of_pair)) if decoding else 1
            pairs = [(torch.randn(shape), torch.randn(shape)) for _ in range(count)]
            stored = pairs
            if decoding:
                stored = [stored_as(PRECISIONS[precision], *pair) for pair in pairs]
            elif precision != "float32":
                row[column] = ""
                continue
            query = torch.randn(rows, heads, positions, size)
            stock = [partial(F.scaled_dot_product_attention, query, *pair) for pair in pairs]
            ours = [partial(attention, query, *pair) for pair in stored]
            row[column] = _gain(stock, ours, repeats)
        yield row


def stored_as(dtype: torch.dtype | None, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values as the decoder's cache stores them in a precision."""
    shape = keys.shape
    if dtype is None:
        transposed = [empty_transposed(each, *shape).copy_(each) for each in (keys, values)]
        return transposed[0], transposed[1]
    like = keys.new_empty(0, dtype=dtype)
    return empty_keys(like, *shape).copy_(keys), empty_transposed(like, *shape).copy_(values)


def _gain(
    stock: Sequence[Callable[[], Tensor]], ours: Sequence[Callable[[], Tensor]], repeats: int
) -> str:
    def all_of(calls: Sequence[Callable[[], Tensor]]) -> Action:
        return lambda: [call() for call in calls]

    actions = {"stock": all_of(stock), "ours": all_of(ours)}
    time_interleaved(actions, 1, CPU)
    seconds = time_interleaved(actions, repeats, CPU)
    return str(ratio(seconds["stock"], seconds["ours"]))


@torch.inference_mode()
def main(options: Namespace) -> None:
    """Measure, print, and keep the figures and the page."""
    repeats = 1 if options.quick else options.repeats
    models = ["demo"] if options.quick else list(MATRICES)
    facts = {
        **settings(("torch", "numpy")),
        "repeats": repeats,
        "bytes of operands": int(OPERAND_BYTES),
    }
    tables = {
        "linear layers": list(linear_layers(models, repeats)),
        "attention": list(attentions(models, repeats)),
    }
    path = RESULTS / ("kernels-quick.json" if options.quick else "kernels.json")
    save(path, {"settings": facts, **tables})
    publish("kernels", path, facts, tables, options.publish)
