"""Computes the changes in an encoder that follows one speaker (`asr.checkpoint.conditioning`).

Before the position embeddings and before each layer, a frame h with the shares m of its classes
becomes sum_c m_c (weight_c h + bias_c) (Polok et al. 2024, "DiCoW"). A product W x of a layer
becomes W x + B A x (Hu et al. 2021, "LoRA"). Before the first layers of SE-DiCoW the window attends
to an enrolment of the speaker, which passes the same layers without regard to the window.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from whosaid.asr.checkpoint.conditioning import PRODUCTS, Conditioning
from whosaid.asr.checkpoint.weights import Weights
from whosaid.asr.model.cpu_kernels import EncoderLinear, attend


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """A low-rank update: `a` (rank, inputs), `b` (outputs, rank)."""

    a: Tensor
    b: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x.to(self.a.dtype), self.a), self.b)


Updates = Mapping[str, LowRankUpdate]  # by product


class EnrolmentBlock:
    """SE-DiCoW's `CrossAttentionEnrollBlock`: attention to the enrolment, a perceptron, a gate."""

    def __init__(self, weights: Weights, heads: int, dtype: torch.dtype | None) -> None:
        linear = partial(EncoderLinear, weights, dtype=dtype)
        self.heads, self.gate = heads, weights["cross_gate.gate"].tanh()
        self.query, self.key, self.value, self.out = (
            linear(f"cross_attn.{each}_proj") for each in ("q", "k", "v", "out")
        )
        self.inner, self.outer = linear("ffn.0", gelu=True), linear("ffn.3")

    def forward(self, x: Tensor, enrolled: Tensor) -> Tensor:
        """(windows, frames, d_model), both, -> (windows, frames, d_model)."""
        mixed = attend(self.query(x), self.key(enrolled), self.value(enrolled), self.heads)
        read = torch.cat((self.out(mixed).to(x.dtype), x), dim=-1)
        return x + self.gate * self.outer(self.inner(read)).to(x.dtype)


class ConditioningLayers:
    """The conditioning of an encoder of so many `layers`; `dtype` as in `EncoderLinear`."""

    def __init__(
        self, read: Conditioning, layers: int, heads: int, dtype: torch.dtype | None
    ) -> None:
        weights = read.weights
        self.transforms = {
            place: (weights[f"fddt.{place}.weight"], weights[f"fddt.{place}.bias"])
            for place in range(layers + 1)
            if f"fddt.{place}.weight" in weights
        }
        self.updates: list[Updates] = [
            {
                product: LowRankUpdate(weights[f"{name}.lora_a"], weights[f"{name}.lora_b"])
                for product in PRODUCTS
                if f"{(name := f'layers.{layer}.{product}')}.lora_a" in weights
            }
            for layer in range(layers)
        ]
        self.blocks = [EnrolmentBlock(each, heads, dtype) for each in read.blocks]
        # The mask of a frame of the target alone.
        self.unmasked: Tensor | None = None
        if read.always:
            self.unmasked = next(iter(weights.values())).new_tensor([0, 1, 0, 0])

    def transform(self, x: Tensor, mask: Tensor, place: int) -> Tensor:
        """Transform frames (windows, frames, d_model) by a mask (windows, frames or 1, classes)."""
        if place not in self.transforms:
            return x
        weight, bias = self.transforms[place]
        return x * (mask @ weight) + mask @ bias

    def before_layer(
        self, x: Tensor, mask: Tensor, layer: int, enrolled: Iterator[Tensor]
    ) -> Tensor:
        """Return the input of a layer. If the layer has a block, take the block's `enrolled`."""
        x = self.transform(x, mask, layer + 1)
        if layer < len(self.blocks):
            x = self.blocks[layer].forward(x, next(enrolled))
        return x
