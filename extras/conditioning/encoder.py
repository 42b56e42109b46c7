"""Whisper's encoder conditioned on one speaker's turns, with frozen weights.

Before the position embeddings and before each layer, every frame is scaled and shifted by vectors
of its class: silence, the target speaker, other speakers, or both ("frame-level
diarization-dependent transformations", Polok et al. 2024, DiCoW). Low-rank updates change the
products of the layers (Hu et al. 2021, LoRA). The decoder stays Whisper's own.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from whosaid.asr.checkpoint.assistants import main_digest
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.weights import below

FILE = "conditioning.safetensors"
CLASSES = ("silence", "target", "other", "overlap")
TARGET, OTHER, OVERLAP = 1, 2, 3
MASK_RATE = 50  # classes a second, one for each frame of the encoder
ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")


def classes_of(target: NDArray[np.bool_], others: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the mask (frames, classes) of the frames in which the target and others speak."""
    rows = (~target & ~others, target & ~others, others & ~target, target & others)
    return np.stack(rows, axis=-1).astype(np.float32)


class FrameTransform(nn.Module):
    """Scales and shifts each frame by the vectors of its class."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(len(CLASSES), width))
        self.bias = nn.Parameter(torch.zeros(len(CLASSES), width))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(windows, frames, d_model), with a mask (windows, frames, classes)."""
        return hidden * (mask @ self.weight) + mask @ self.bias


class LowRank(nn.Module):
    """The low-rank update of a product; it starts as zero."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, product: Tensor, x: Tensor) -> Tensor:
        """Add the update for `x` (.., inputs) to the frozen product (.., outputs)."""
        inner = F.linear(x, self.lora_a).flatten(0, -2)
        return product.flatten(0, -2).addmm(inner, self.lora_b.T).view_as(product)


class ConditionedEncoder(nn.Module):
    """A main model's encoder with trainable conditioning; its own weights are no parameters."""

    def __init__(self, models: WhisperModels, rank: int) -> None:
        super().__init__()
        config, self.rank, self.digest = models.model.config, rank, main_digest(models)
        self.heads: int = config.encoder_attention_heads
        weights = below(dict(models.model.named_parameters()), "model.encoder.")
        self.frozen = {name: weight.detach() for name, weight in weights.items()}

        def update(name: str) -> LowRank:
            return LowRank(self.frozen[f"{name}.weight"], rank)

        self.fddt = nn.ModuleList(
            FrameTransform(config.d_model) for _ in range(config.encoder_layers + 1)
        )
        self.layers = nn.ModuleList()
        for number in range(config.encoder_layers):
            layer = f"layers.{number}"
            attention = {name: update(f"{layer}.self_attn.{name}") for name in ATTENTION}
            perceptron = {name: update(f"{layer}.{name}") for name in ("fc1", "fc2")}
            parts = {"self_attn": nn.ModuleDict(attention), **perceptron}
            self.layers.append(nn.ModuleDict(parts))
        self.to(models.device)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Encode (windows, bands, 2 x frames), with a mask (windows, frames, classes), to
        (windows, frames, d_model).
        """
        hidden = self.fddt[0](self.convolved(features), mask)
        hidden = hidden + self.frozen["embed_positions.weight"][: hidden.shape[1]]
        for number, transform in enumerate(self.fddt[1:]):
            hidden = self._layer(transform(hidden, mask), f"layers.{number}")
        return self._norm(hidden, "layer_norm")

    def convolved(self, features: Tensor) -> Tensor:
        """Return the convolutions' output (windows, frames, d_model)."""
        for name, stride in (("conv1", 1), ("conv2", 2)):
            weight, bias = self.frozen[f"{name}.weight"], self.frozen[f"{name}.bias"]
            features = F.gelu(F.conv1d(features, weight, bias, stride, padding=1))
        return features.transpose(1, 2)

    def suppress_others(self, silence: Tensor) -> None:
        """Replace the frames of other speakers by `silence` (d_model,), as before any training."""
        first = self.fddt[0]
        assert isinstance(first, FrameTransform)
        with torch.no_grad():
            first.weight[OTHER], first.bias[OTHER] = 0.0, silence

    def _layer(self, x: Tensor, name: str) -> Tensor:
        normed = self._norm(x, f"{name}.self_attn_layer_norm")
        query, keys, values = (
            self._product(normed, f"{name}.self_attn.{each}")
            .view(*x.shape[:2], self.heads, -1)
            .transpose(1, 2)
            for each in ATTENTION[:3]
        )
        mixed = F.scaled_dot_product_attention(query, keys, values).transpose(1, 2).flatten(2)
        x = x + self._product(mixed, f"{name}.self_attn.out_proj")
        inner = self._product(self._norm(x, f"{name}.final_layer_norm"), f"{name}.fc1")
        return x + self._product(F.gelu(inner), f"{name}.fc2")

    def _product(self, x: Tensor, name: str) -> Tensor:
        product = F.linear(x, self.frozen[f"{name}.weight"], self.frozen.get(f"{name}.bias"))
        updated: Tensor = self.get_submodule(name)(product, x)
        return updated

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], self.frozen[f"{name}.weight"], self.frozen[f"{name}.bias"]
        )

    def save(self, path: Path) -> None:
        """Write the parameters in float16, whole or not at all."""
        tensors = {name: each.half().cpu() for name, each in self.state_dict().items()}
        metadata = {
            "rank": str(self.rank),
            "classes": ",".join(CLASSES),
            "mask_rate": str(MASK_RATE),
            "base_digest": self.digest,
        }
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, metadata)
        partial.replace(path)

    @classmethod
    def load(cls, models: WhisperModels, path: Path) -> ConditionedEncoder:
        """Read what `save` wrote. Raises ValueError if it was trained for another model."""
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118
        if metadata.get("base_digest") != main_digest(models):
            raise ValueError(f"{path}: it was trained for another model than {models.name}")
        encoder = cls(models, int(metadata["rank"]))
        encoder.load_state_dict(tensors)
        return encoder
