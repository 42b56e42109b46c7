"""Reads Medusa heads: small layers that draft tokens from the main model's own hidden state.

A head computes h + SiLU(W h + b) before the model's projection onto the vocabulary (Segal-Feldman
et al. 2024, "Whisper in Medusa's Ear"). `medusa_heads_type` names three kinds: "base_head"
(Medusa-Linear; head 0 is part of the main path), "medusa_block" (an extra decoder layer feeds the
heads) and our own "heads_only", a folder of heads with a digest of its main model.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from whosaid.asr.checkpoint.weights import (
    EMBEDDINGS,
    PROJECTION,
    Shape,
    Tensors,
    Weights,
    WhisperModel,
    below,
    decoder_layer_shapes,
    projection_of,
)
from whosaid.errors import StartError

ARCHITECTURE, HEADS_MODEL_TYPE = "WhisperMedusaModel", "medusa_heads"
LINEAR, BLOCK, HEADS_ONLY = "base_head", "medusa_block", "heads_only"
# Published checkpoints hold the whole Whisper under this prefix.
WHISPER_KEYS = "whisper_model."
HEAD_KEYS, BLOCK_KEYS = "medusa_heads.", "medusa_block."
# A frozen layer that is used in training only.
LEFT_OVER_KEYS = "whisper_layer."
SHORTLIST = "shortlist"
# Far above published checkpoints; a file of names alone would otherwise fill the memory.
LARGEST = {"medusa_num_heads": 64, "medusa_num_layers": 16, "medusa_hidden_size": 2**20}
# The digest covers the decoder's final layer norm and its projection onto the vocabulary.
NORM = ("model.decoder.layer_norm.weight", "model.decoder.layer_norm.bias")


class ResidualBlocks(NamedTuple):
    """One block h + SiLU(weight h + bias) of each head."""

    weight: Tensor  # (heads, d_model, d_model)
    bias: Tensor  # (heads, d_model)


Heads = tuple[ResidualBlocks, ...]  # the blocks in order


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Heads that draft: head j, counted from 1, drafts the j-th token after the newest one.

    The heads read the hidden state that chose the newest token. If there is a `block`, the weights
    of an extra decoder layer, the heads read that layer's output for the state. If there is a
    `base`, the model's own scores are computed from its output. Heads with a `shortlist` (n,) draft
    only tokens of that list.
    """

    name: str
    heads: Heads
    base: Heads | None = None
    block: Weights | None = None
    shortlist: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        every = [each for blocks in (*self.heads, *(self.base or ())) for each in blocks]
        if self.block is not None:
            every += self.block.values()
        return every if self.shortlist is None else [*every, self.shortlist]


def base_digest(model: WhisperModel) -> str:
    """Return the SHA-256, in hex, of `model`'s weights, which are in its files' type or wider."""
    weights = dict(model.named_parameters())
    return _digest([*(weights[name] for name in NORM), projection_of(weights)])


def file_digest(files: Tensors) -> str:
    """Return the `base_digest` of a checkpoint's files. Raises StartError if a tensor is absent."""
    keys = (*NORM, PROJECTION if PROJECTION in files.keys else EMBEDDINGS)
    for key in keys:
        if key not in files.keys:
            missing = PROJECTION if key == EMBEDDINGS else key
            raise StartError(f"{files.name} has no {missing}: it cannot have heads")
    read = dict(files.read(dict.fromkeys(keys)))
    return _digest(read[key] for key in keys)


def is_medusa(config: PretrainedConfig) -> bool:
    """Return whether `config` describes a whole Whisper with Medusa heads."""
    architectures = config.architectures or ()
    return ARCHITECTURE in architectures or hasattr(config, "medusa_num_heads")


def read_heads(files: Tensors, config: Mapping[str, Any], model: WhisperModel) -> MedusaHeads:
    """Load a checkpoint's heads for `model`, on its device and in its dtype, by `config`
    (config.json). Raises StartError if an entry, a name or a shape is wrong.
    """
    _require_config(files.name, config, model)
    kind, blocks = config["medusa_heads_type"], config["medusa_num_layers"]
    first = 1 if kind == LINEAR else 0  # head 0 of Medusa-Linear is part of the main path
    heads = range(first, first + config["medusa_num_heads"])
    shapes = _head_shapes(range(heads.stop), blocks, model.config.d_model)
    if kind == BLOCK:
        block_shapes = decoder_layer_shapes(model.config)
        shapes |= {BLOCK_KEYS + name: shape for name, shape in block_shapes.items()}
    if config.get(SHORTLIST) is True:
        shapes[SHORTLIST] = None
    _require_keys(files, shapes)
    read = {}
    for key, weight in files.read(shapes):
        dtype = weight.dtype if key == SHORTLIST else model.dtype
        read[key] = weight.to(model.device, dtype, copy=True)
    return MedusaHeads(
        files.name,
        _stacked(read, heads, blocks),
        base=_stacked(read, range(1), blocks) if kind == LINEAR else None,
        block=below(read, BLOCK_KEYS) or None,
        shortlist=_shortlist(files.name, read.get(SHORTLIST), model),
    )


def _require_config(name: str, config: Mapping[str, Any], model: WhisperModel) -> None:
    """Raise StartError naming the first wrong entry of the heads' config.json."""
    kind = config.get("medusa_heads_type")
    if kind not in (LINEAR, BLOCK, HEADS_ONLY):
        text = f"{name}: medusa_heads_type is {kind!r}, not {LINEAR}, {BLOCK} or {HEADS_ONLY}"
        raise StartError(text)
    for key in LARGEST:
        value = config.get(key)
        if type(value) is not int or not 1 <= value <= LARGEST[key]:
            raise StartError(f"{name}: {key} is {value!r}, not a number from 1 to {LARGEST[key]}")
    if kind == HEADS_ONLY and not isinstance(config.get("base_digest"), str):
        raise StartError(f"{name}: base_digest is missing, which names the main model")
    size, width = config["medusa_hidden_size"], model.config.d_model
    if size != width:
        raise StartError(f"{name}: medusa_hidden_size is {size}, the model's d_model {width}")


def _head_shapes(heads: range, blocks: int, width: int) -> dict[str, Shape | None]:
    names = [f"{HEAD_KEYS}{number}.{block}.linear" for number in heads for block in range(blocks)]
    weights: dict[str, Shape | None] = {f"{name}.weight": (width, width) for name in names}
    return weights | {f"{name}.bias": (width,) for name in names}


def _require_keys(files: Tensors, expected: Mapping[str, object]) -> None:
    """Raise StartError if a tensor is missing or unknown."""
    missing = sorted(set(expected) - set(files.keys))
    if missing:
        raise StartError(f"{files.name} lacks {_first_of(missing)}")
    known = (WHISPER_KEYS, LEFT_OVER_KEYS)
    odd = sorted(key for key in files.keys if key not in expected and not key.startswith(known))
    if odd:
        raise StartError(f"{files.name} holds {_first_of(odd)}, which is not supported")


def _first_of(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} tensors more"


def _stacked(read: Mapping[str, Tensor], numbers: Iterable[int], blocks: int) -> Heads:
    def stack(layer: int, name: str) -> Tensor:
        return torch.stack([read[f"{HEAD_KEYS}{each}.{layer}.linear.{name}"] for each in numbers])

    return tuple(
        ResidualBlocks(stack(layer, "weight"), stack(layer, "bias")) for layer in range(blocks)
    )


def _shortlist(name: str, ids: Tensor | None, model: WhisperModel) -> Tensor | None:
    """Return `ids`. Raises StartError unless they are distinct tokens of the vocabulary."""
    if ids is None:
        return None
    valid = ids.dtype == torch.int64 and ids.dim() == 1 and 0 < len(ids) == len(set(ids.tolist()))
    if not valid or not 0 <= int(ids.min()) <= int(ids.max()) < model.config.vocab_size:
        raise StartError(f"{name}: {SHORTLIST} is not a list of different tokens in int64")
    return ids


def _digest(weights: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the weights, concatenated as little-endian float32."""
    digest = hashlib.sha256()
    for weight in weights:
        numbers = weight.detach().to("cpu", torch.float32).contiguous().numpy()
        digest.update(numbers.astype("<f4", copy=False).tobytes())
    return digest.hexdigest()
