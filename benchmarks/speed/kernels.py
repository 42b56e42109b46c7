"""What products and attention gain on a CPU: `python -m benchmarks.speed.kernels`.

Two questions, each over matrices of the demo's, whisper-base's and large-v3's decoders: how much
faster a product with given weights is through `asr.model.cpu_kernels` than `F.linear`, and
attention to the audio than torch's own: of few positions a row, as the decoder asks, keys and
values lying as it keeps them, and of all of them, as the encoder does. The one decision: as many
different weights take turns as fill more memory than processors have cache, since a decoder meets a
weight again only after all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.model.cpu_kernels import MANY, PackedLinear, attention, empty_transposed
from benchmarks.report import PAGES, RESULTS, listed, save, settings, table
from benchmarks.timing import Action, in_turns, ratio

# Outputs and inputs: query-key-value, expansion, contraction and vocabulary.
MATRICES = {
    "demo": ((480, 160), (640, 160), (160, 640), (1_800, 160)),
    "base": ((1_536, 512), (2_048, 512), (512, 2_048), (51_865, 512)),
    "large-v3": ((3_840, 1_280), (5_120, 1_280), (1_280, 5_120)),
}
POSITIONS = (1, 8, 24, 56, 168)
HEADS = {"demo": (4, 40), "base": (8, 64), "large-v3": (20, 64)}
FRAMES = 1_500
ASKED = (
    (1, 1),
    (8, 1),
    (24, 1),
    (1, 4),
    (24, 4),
    (24, 7),
    (1, FRAMES),
    (4, FRAMES),
)  # rows, and positions of each
CROWD = 200e6  # bytes of weights, or of keys and values, that take turns
TURNS = 9
CPU = torch.device("cpu")
Rows = list[list[str]]


def products(turns: int) -> Iterator[list[str]]:
    """How many times as fast as `F.linear`, a row a matrix."""
    for name, shapes in MATRICES.items():
        for outputs, inputs in shapes:
            count = max(1, int(CROWD / (4 * outputs * inputs)))
            weights = [torch.randn(outputs, inputs) for _ in range(count)]
            laid_out = [PackedLinear(weight) for weight in weights]
            cells = []
            for positions in POSITIONS:
                x = torch.randn(1, positions, inputs)
                usual = [partial(F.linear, x, weight) for weight in weights]
                cells.append(_gain(usual, [partial(each, x) for each in laid_out], turns))
            yield [f"{name}, {outputs} x {inputs}", *cells]


def attentions(turns: int) -> Iterator[list[str]]:
    """How many times as fast as `F.scaled_dot_product_attention`, a row a model."""
    for name, (heads, size) in HEADS.items():
        cells = []
        for rows, positions in ASKED:
            shape = (rows, heads, FRAMES, size)
            again = positions < MANY
            count = max(1, int(CROWD / (8 * rows * heads * FRAMES * size))) if again else 1
            heard = [(torch.randn(shape), torch.randn(shape)) for _ in range(count)]
            lying = [(across(keys), across(values)) for keys, values in heard] if again else heard
            query = torch.randn(rows, heads, positions, size)
            usual = [partial(F.scaled_dot_product_attention, query, *each) for each in heard]
            cells.append(_gain(usual, [partial(attention, query, *each) for each in lying], turns))
        yield [f"{name}, {heads} heads of {size}", *cells]


def across(heard: Tensor) -> Tensor:
    """Keys or values as the decoder keeps them."""
    return empty_transposed(heard, *heard.shape).copy_(heard)


def _gain(
    usual: Sequence[Callable[[], Tensor]], ours: Sequence[Callable[[], Tensor]], turns: int
) -> str:
    def all_of(calls: Sequence[Callable[[], Tensor]]) -> Action:
        return lambda: [call() for call in calls]

    actions = {"usual": all_of(usual), "ours": all_of(ours)}
    in_turns(actions, 1, CPU)
    seconds = in_turns(actions, turns, CPU)
    return str(ratio(seconds["usual"], seconds["ours"]))


@torch.inference_mode()
def _main() -> None:
    parser = argparse.ArgumentParser(description="Time products and attention beside torch's own.")
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args().turns
    linear: Rows = list(products(turns))
    mixed: Rows = list(attentions(turns))
    facts = {**settings(("torch", "numpy")), "turns": turns, "bytes that take turns": int(CROWD)}
    save(RESULTS / "products.json", {"settings": facts, "products": linear, "attention": mixed})
    page = "\n\n".join(
        (
            "# Products and attention on a CPU",
            "Times of torch's own over ours (`asr/products.py`), float32, medians of turns in one process with a 95% "
            "bootstrap interval. Written by `scripts/bench products`.",
            "## Products with given weights, by positions",
            table(("outputs x inputs", *map(str, POSITIONS)), linear),
            "## Attention to 30 s of audio, by rows x positions",
            table(("heads", *(f"{rows} x {positions}" for rows, positions in ASKED)), mixed),
            "## Settings",
            listed(facts),
        )
    )
    path = PAGES / "products.md"
    path.write_text(page + "\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    _main()
