"""Reads Medusa heads, small layers that draft tokens from the main model's own hidden state.

A head is h + SiLU(W h + b) before the model's own projection onto the vocabulary (Segal-Feldman et
al. 2024, "Whisper in Medusa's Ear"). There are three kinds, named by `medusa_heads_type`:
"base_head" (Medusa-Linear; its head 0 stands in the main path), "medusa_block" (a further decoder
layer feeds the heads) and our own "heads_only", a folder of heads beside a stock Whisper.

Nothing is taken for granted. Weights come from safetensors alone, every tensor that the
configuration promises must be there in its shape and none beside them, and heads alone are bound to
their main model by a digest: equal shapes prove nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from asr.checkpoint.tensors import Shape, Source, Tensors
from asr.checkpoint.whisper import DecoderLayerWeights, WhisperModel
from errors import StartError

ARCHITECTURE, HEADS_MODEL_TYPE = "WhisperMedusaModel", "medusa_heads"
LINEAR, BLOCK, HEADS_ONLY = "base_head", "medusa_block", "heads_only"
# Published checkpoints hold the whole Whisper under this prefix.
WHISPER_KEYS = "whisper_model."
HEAD_KEYS, BLOCK_KEYS = "medusa_heads.", "medusa_block."
# A frozen layer for a loss in training.
LEFT_OVER_KEYS = "whisper_layer."
SHORTLIST = "shortlist"
# What the digest is made of; tied checkpoints store the projection as the embeddings.
DIGESTED = (
    ("model.decoder.layer_norm.weight",),
    ("model.decoder.layer_norm.bias",),
    ("proj_out.weight", "model.decoder.embed_tokens.weight"),
)

NamedShape = tuple[str, Shape | None]


class ResidualBlocks(NamedTuple):
    """One block of each of some heads: h + SiLU(weight h + bias)."""

    weight: Tensor  # (heads, d_model, d_model)
    bias: Tensor  # (heads, d_model)


Heads = tuple[ResidualBlocks, ...]  # their blocks in order


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Heads that draft: number j, from 1, the j-th token after the newest one.

    Each reads the hidden state that chose the newest token, or with `block` that layer's output
    for it. `base` stands in the main path: the model's scores are those of its output. Drafts come
    from the tokens of `shortlist` (n,) alone where there is one.
    """

    name: str
    heads: Heads
    base: Heads | None = None
    block: DecoderLayerWeights | None = None
    shortlist: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All that they hold."""
        every = [each for blocks in (*self.heads, *(self.base or ())) for each in blocks]
        if self.block is not None:
            every += self.block.parameters()
        return every if self.shortlist is None else [*every, self.shortlist]


@dataclass(frozen=True, slots=True)
class HeadsConfig:
    """What a configuration says of its heads."""

    kind: str
    count: int
    blocks: int
    hidden_size: int
    base_digest: str | None = None
    has_shortlist: bool = False

    @classmethod
    def read(cls, name: str, config: Mapping[str, Any]) -> HeadsConfig:
        """Check the entries of a config.json. Raises StartError naming the first that is wrong."""
        kind = config.get("medusa_heads_type")
        if kind not in (LINEAR, BLOCK, HEADS_ONLY):
            raise StartError(
                f"{name}: medusa_heads_type is {kind!r}, not {LINEAR}, {BLOCK} or {HEADS_ONLY}"
            )
        for key in ("medusa_num_heads", "medusa_num_layers", "medusa_hidden_size"):
            value = config.get(key)
            if type(value) is not int or value < 1:
                raise StartError(f"{name}: {key} is {value!r}, not a number from 1 on")
        digest = config.get("base_digest")
        if kind == HEADS_ONLY and not isinstance(digest, str):
            raise StartError(f"{name}: base_digest is missing, which names the main model")
        return cls(
            kind,
            config["medusa_num_heads"],
            config["medusa_num_layers"],
            config["medusa_hidden_size"],
            digest,
            config.get(SHORTLIST) is True,
        )

    @property
    def modules(self) -> int:
        """How many heads the files hold: Medusa-Linear has one more, in the main path."""
        return self.count + (self.kind == LINEAR)


def base_digest(model: WhisperModel) -> str:
    """Names the main model that heads are made for: SHA-256 in hexadecimal digits.

    Of the decoder's final layer norm (weight, bias) and the projection onto the vocabulary, as
    float32. `model` must hold its weights as its files do, or in a wider type.
    """
    norm: Any = model.get_decoder().layer_norm
    return _digest([norm.weight, norm.bias, model.get_output_embeddings().weight])


def file_digest(source: Source) -> str:
    """`base_digest` of a checkpoint by its files, whatever a loaded model was rounded to.

    `source` holds the arguments of `from_pretrained`. Raises StartError where a tensor is missing.
    """
    tensors, keys = Tensors(source), []
    for names in DIGESTED:
        found = next((each for each in names if each in tensors.files), None)
        if found is None:
            raise StartError(f"{tensors.name} has no {names[0]}: no heads can be made for it")
        keys.append(found)
    read = dict(tensors.read(dict.fromkeys(keys)))
    return _digest(read[key] for key in keys)


def is_medusa(config: PretrainedConfig) -> bool:
    """Whether the configuration is that of a whole Medusa checkpoint."""
    architectures = config.architectures or ()
    return ARCHITECTURE in architectures or hasattr(config, "medusa_num_heads")


def heads_alone(source: Source) -> Mapping[str, Any] | None:
    """The config.json of a folder or repository of heads alone, else None."""
    config, _ = PretrainedConfig.get_config_dict(**source)
    return config if config.get("model_type") == HEADS_MODEL_TYPE else None


def read_heads(source: Source, config: Mapping[str, Any], model: WhisperModel) -> MedusaHeads:
    """The heads that a checkpoint's files hold, for `model`, on its device and in its dtype.

    `config` is the content of config.json. Raises StartError, in one line, where the configuration,
    a tensor's name or its shape is not as it should be.
    """
    tensors = Tensors(source)
    said = HeadsConfig.read(tensors.name, config)
    width = model.config.d_model
    if said.hidden_size != width:
        raise StartError(
            f"{tensors.name}: medusa_hidden_size is {said.hidden_size}, the model's d_model {width}"
        )
    block = _empty_block(model) if said.kind == BLOCK else None
    shapes = dict(_expected(said, block))
    _require_keys(tensors, shapes)
    read = {}
    for key, weight in tensors.read(shapes):
        dtype = weight.dtype if key == SHORTLIST else model.dtype
        read[key] = weight.to(model.device, dtype, copy=True)
    if block is not None:
        weights = {key: read[BLOCK_KEYS + key] for key in block.state_dict()}
        block.load_state_dict(weights, assign=True)
    heads = _stacked(read, range(said.modules - said.count, said.modules), said.blocks)
    base = _stacked(read, range(1), said.blocks) if said.kind == LINEAR else None
    shortlist = _shortlist(tensors.name, read.get(SHORTLIST), model)
    return MedusaHeads(tensors.name, heads, base, block, shortlist)


def _expected(said: HeadsConfig, block: DecoderLayerWeights | None) -> Iterator[NamedShape]:
    """Every tensor of the heads and its shape, None where any will do."""
    width = said.hidden_size
    for number in range(said.modules):
        for layer in range(said.blocks):
            yield f"{HEAD_KEYS}{number}.{layer}.linear.weight", (width, width)
            yield f"{HEAD_KEYS}{number}.{layer}.linear.bias", (width,)
    if block is not None:
        for key, weight in block.state_dict().items():
            yield BLOCK_KEYS + key, tuple(weight.shape)
    if said.has_shortlist:
        yield SHORTLIST, None


def _require_keys(tensors: Tensors, expected: Mapping[str, object]) -> None:
    """Raise StartError where a tensor is missing, or is one that nothing would read."""
    missing = sorted(set(expected) - set(tensors.files))
    if missing:
        raise StartError(f"{tensors.name} lacks {_some(missing)}")
    known = (WHISPER_KEYS, LEFT_OVER_KEYS)
    odd = sorted(key for key in tensors.files if key not in expected and not key.startswith(known))
    if odd:
        raise StartError(f"{tensors.name} holds {_some(odd)}, which nothing here reads")


def _some(keys: list[str]) -> str:
    """The first key, and how many more there are."""
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} tensors more"


def _empty_block(model: WhisperModel) -> DecoderLayerWeights:
    """A decoder layer in the shape of the model's own, without weights."""
    with torch.device("meta"):
        return DecoderLayerWeights.like(model.config).requires_grad_(False)


def _stacked(read: Mapping[str, Tensor], numbers: Iterable[int], blocks: int) -> Heads:
    """The heads with these numbers."""

    def stack(layer: int, name: str) -> Tensor:
        return torch.stack([read[f"{HEAD_KEYS}{each}.{layer}.linear.{name}"] for each in numbers])

    return tuple(
        ResidualBlocks(stack(layer, "weight"), stack(layer, "bias")) for layer in range(blocks)
    )


def _shortlist(name: str, ids: Tensor | None, model: WhisperModel) -> Tensor | None:
    """The ids as they are. Raises StartError unless they are different tokens of the vocabulary."""
    if ids is None:
        return None
    valid = ids.dtype == torch.int64 and ids.dim() == 1 and 0 < len(ids) == len(set(ids.tolist()))
    if not valid or not 0 <= int(ids.min()) <= int(ids.max()) < model.config.vocab_size:
        raise StartError(f"{name}: {SHORTLIST} is not a list of different tokens in int64")
    return ids


def _digest(weights: Iterable[Tensor]) -> str:
    """SHA-256 of the weights as float32, little-endian, one after the other."""
    digest = hashlib.sha256()
    for weight in weights:
        numbers = weight.detach().to("cpu", torch.float32).contiguous().numpy()
        digest.update(numbers.astype("<f4", copy=False).tobytes())
    return digest.hexdigest()
