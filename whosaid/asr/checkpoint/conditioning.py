"""Reads the weights that condition an encoder on one speaker: our own file, or a DiCoW's layers.

DiCoW ("diarization-conditioned Whisper", Polok et al. 2024) scales and shifts every frame by the
vectors of its class: silence, target speaker, others, overlap. A checkpoint of DiCoW v3 is a whole
Whisper with such vectors before each layer. SE-DiCoW (Polok et al. 2026) adds blocks that attend to
an enrolment of the speaker. Our own file has vectors and low-rank updates for an unchanged Whisper,
which its digest names.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from whosaid.asr.checkpoint.weights import (
    Shape,
    Tensors,
    Weights,
    WhisperModel,
    below,
    open_file,
    whisper_shapes,
)
from whosaid.errors import StartError

FILE, DICOW = "conditioning.safetensors", "DiCoWForConditionalGeneration"
PRODUCTS = (*(f"self_attn.{each}_proj" for each in ("q", "k", "v", "out")), "fc1", "fc2")
DICOW_CLASSES = ("silence", "target", "non_target", "overlap")
CLASSES = len(DICOW_CLASSES)
ENCODER = "model.encoder."
CONDITIONS, BLOCKS = ("initial_fddt.", "fddts."), "ca_enrolls."
# Layers of DiCoW's CTC loss, which decoding does not use.
CTC = ("lm_head.", "additional_layer.", "additional_self_attention_layer.", "subsample_conv")


@dataclass(frozen=True, slots=True)
class Conditioning:
    """The weights that condition an encoder; d is its width.

    `weights` are `fddt.{k}.weight` and `fddt.{k}.bias` (4, d), for k = 0 before the position
    embeddings and for k = i + 1 before layer i, and `layers.{i}.{product}.lora_a` (rank, inputs)
    and `lora_b` (outputs, rank). `blocks` are SE-DiCoW's, one before each of the first layers. An
    encoder that was trained with conditioning needs it `always`: a window without a mask is then
    the target's alone.
    """

    weights: Weights
    blocks: tuple[Weights, ...] = ()
    always: bool = False

    def to(self, model: WhisperModel) -> Conditioning:
        """Return the weights on the device of `model` and in its dtype."""
        weights, *blocks = (
            {name: each.to(model.device, model.dtype) for name, each in part.items()}
            for part in (self.weights, *self.blocks)
        )
        return replace(self, weights=weights, blocks=tuple(blocks))


def read_conditioning(path: str, model: WhisperModel, digest: str) -> Conditioning:
    """Read a FILE for `model`, which has this `digest`. Raises StartError if it does not fit."""
    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata() or {}
    if metadata.get("base_digest") != digest:
        raise StartError(f"{path} was trained for another model")
    file = open_file(path, path)
    tensors = dict(file.read(dict.fromkeys(file.keys)))
    updated = {name.rpartition(".")[0] for name in tensors}
    expected = shapes(model.config, int(metadata.get("rank", 0)), updated)
    found = {name: tuple(each.shape) for name, each in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise StartError(f"{path}: {name} is {found.get(name)}, not {expected.get(name)}")
    return Conditioning(tensors).to(model)


def shapes(config: Any, rank: int, updated: Container[str]) -> dict[str, Shape]:  # noqa: ANN401
    """Return the shapes of a FILE's tensors, if it updates the products `updated`."""
    shapes: dict[str, Shape] = {}
    for place in range(config.encoder_layers + 1):
        shapes |= {f"fddt.{place}.{each}": (CLASSES, config.d_model) for each in ("weight", "bias")}
    for name, (outputs, *inputs) in below(whisper_shapes(config), ENCODER).items():
        product = name.removesuffix(".weight")
        if product in updated and product.endswith(PRODUCTS):
            shapes |= {f"{product}.lora_a": (rank, *inputs), f"{product}.lora_b": (outputs, rank)}
    return shapes


def read_dicow(files: Tensors, model: WhisperModel) -> Conditioning | None:
    """Return the conditioning of `model`'s checkpoint; None if the checkpoint is no DiCoW. Raises
    StartError if its encoder has unknown weights.
    """
    config, width = model.config, model.config.d_model
    if DICOW not in (config.architectures or ()):
        return None
    added = below(dict.fromkeys(set(files.keys) - whisper_shapes(config).keys()), ENCODER)
    if odd := sorted(each for each in added if not each.startswith((*CONDITIONS, BLOCKS, *CTC))):
        raise StartError(f"{files.name} holds {ENCODER}{odd[0]}, which is not of DiCoW v3")
    if any(each.startswith(BLOCKS) for each in added) and not hasattr(config, "use_pre_pos_fddt"):
        # Earlier code computed otherwise, with weights of the same names and shapes.
        raise StartError(f"{files.name}: its enrolment blocks precede the release of SE-DiCoW")
    shapes: dict[str, Shape | None] = {
        ENCODER + each: (width,) if each.startswith(CONDITIONS) else None
        for each in added
        if each.startswith((*CONDITIONS, BLOCKS))
    }
    read = below(dict(files.read(shapes)), ENCODER)
    weights: dict[str, Tensor] = {}
    for place in range(config.encoder_layers + 1):
        if own := below(read, f"fddts.{place - 1}." if place else "initial_fddt."):
            weight, bias = _stacked(own, width)
            weights |= {f"fddt.{place}.weight": weight, f"fddt.{place}.bias": bias}
    blocks = (below(read, f"{BLOCKS}{layer}.cae.") for layer in range(config.encoder_layers))
    return Conditioning(weights, tuple(each for each in blocks if each), always=True).to(model)


def _stacked(own: Mapping[str, Tensor], width: int) -> tuple[Tensor, Tensor]:
    """Return weights and biases (4, d) of one place. A class without vectors does not change."""
    weight, bias = torch.ones(CLASSES, width), torch.zeros(CLASSES, width)
    for row, name in enumerate(DICOW_CLASSES):
        linear = f"{name}_linear"
        weight[row] = own.get(f"{linear}.weight", weight[row])
        # A bias alone (`fddt_bias_only`) has the name of the whole.
        bias[row] = own.get(f"{linear}.bias", own.get(linear, bias[row]))
    return weight, bias
