"""Reads a checkpoint's weights: tensors by the names that transformers gives them.

Only safetensors files are read: a pickle can run code.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from whosaid.errors import StartError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
EMBEDDINGS, PROJECTION = "model.decoder.embed_tokens.weight", "proj_out.weight"

Shape = tuple[int, ...]
Source = Mapping[str, Any]  # the arguments common to every `from_pretrained`
Weights = Mapping[str, Tensor]
T = TypeVar("T")


class WhisperModel(Protocol):
    """A `Whisper`, or transformers' WhisperForConditionalGeneration or WhisperForCausalLM."""

    config: Any
    generation_config: Any

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Return every weight once. A model with tied embeddings has no `proj_out.weight`."""


@dataclass(eq=False)
class Whisper:
    """Weights by name, and the checkpoint's configurations.

    An assistant that shares the main model's encoder has no encoder weights.
    """

    config: Any
    generation_config: Any
    weights: Weights

    @property
    def device(self) -> torch.device:
        return self.weights[EMBEDDINGS].device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[EMBEDDINGS].dtype

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return self.weights.items()

    def without_encoder(self) -> Whisper:
        names = [name for name in self.weights if not name.startswith("model.encoder.")]
        return replace(self, weights={name: self.weights[name] for name in names})

    def to(self, device: torch.device) -> Whisper:
        moved = {name: weight.to(device) for name, weight in self.weights.items()}
        return replace(self, weights=moved)


def below(weights: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Return the weights or shapes whose names begin with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): weight
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def projection_of(weights: Weights) -> Tensor:
    """Return the projection onto the vocabulary (tokens, d_model); it may be the embeddings."""
    return weights[PROJECTION if PROJECTION in weights else EMBEDDINGS]


def whisper_shapes(config: Any, encoder: bool = True) -> dict[str, Shape]:  # noqa: ANN401
    """Return the shapes of a WhisperConfig's weights by their names."""
    width, inner = config.d_model, config.encoder_ffn_dim
    shapes: dict[str, Shape] = {}
    if encoder:
        shapes["model.encoder.conv1.weight"] = (width, config.num_mel_bins, 3)
        shapes["model.encoder.conv2.weight"] = (width, width, 3)
        shapes |= {f"model.encoder.conv{number}.bias": (width,) for number in (1, 2)}
        shapes["model.encoder.embed_positions.weight"] = (config.max_source_positions, width)
        shapes |= _norm_shapes("model.encoder.layer_norm", width)
        for layer in range(config.encoder_layers):
            of_layer = _layer_shapes(width, inner, "self_attn")
            shapes |= {f"model.encoder.layers.{layer}.{name}": of_layer[name] for name in of_layer}
    shapes[EMBEDDINGS] = (config.vocab_size, width)
    shapes["model.decoder.embed_positions.weight"] = (config.max_target_positions, width)
    shapes |= _norm_shapes("model.decoder.layer_norm", width)
    of_layer = decoder_layer_shapes(config)
    for layer in range(config.decoder_layers):
        shapes |= {f"model.decoder.layers.{layer}.{name}": of_layer[name] for name in of_layer}
    if not config.tie_word_embeddings:
        shapes[PROJECTION] = (config.vocab_size, width)
    return shapes


def decoder_layer_shapes(config: Any) -> dict[str, Shape]:  # noqa: ANN401
    """Return the shapes of one decoder layer's weights, by their names in the layer."""
    return _layer_shapes(config.d_model, config.decoder_ffn_dim, "self_attn", "encoder_attn")


def _layer_shapes(width: int, inner: int, *attentions: str) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name in attentions:
        projections = [f"{name}.{each}_proj" for each in ("k", "v", "q", "out")]
        shapes |= {f"{each}.weight": (width, width) for each in projections}
        shapes |= {f"{each}.bias": (width,) for each in projections[1:]}  # keys have no bias
        shapes |= _norm_shapes(f"{name}_layer_norm", width)
    shapes |= {"fc1.weight": (inner, width), "fc1.bias": (inner,)}
    shapes |= {"fc2.weight": (width, inner), "fc2.bias": (width,)}
    return shapes | _norm_shapes("final_layer_norm", width)


def _norm_shapes(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


class TensorFiles:
    """A checkpoint's safetensors files. `files` maps the key of every tensor to its file."""

    def __init__(self, source: Source) -> None:
        """Find the single file, or the files of an index. Raises OSError if there are none."""
        self.name = str(source["pretrained_model_name_or_path"])
        self.options = {key: source.get(key) for key in ("revision", "token")}
        index = cached_file(
            self.name, INDEX_FILE, **self.options, _raise_exceptions_for_missing_entries=False
        )
        if index is None:
            single = self._path(SINGLE_FILE)
            with safe_open(single, framework="pt") as opened:
                self.files = dict.fromkeys(opened.keys(), single)
            return
        with open(index, encoding="utf-8") as stream:
            listed = json.load(stream)["weight_map"]
        paths = {file: self._path(file) for file in set(listed.values())}
        self.files = {key: paths[file] for key, file in listed.items()}

    def read(self, shapes: Mapping[str, Shape | None]) -> Iterator[tuple[str, Tensor]]:
        """Yield keys and tensors on the CPU, in any order; a tensor may map a part of a file.

        Raises StartError at the first tensor whose shape is not the one in `shapes`. None allows
        any shape.
        """
        by_file = defaultdict(list)
        for key in shapes:
            by_file[self.files[key]].append(key)
        for file, keys in by_file.items():
            with safe_open(file, framework="pt") as opened:
                for key in keys:
                    tensor, shape = opened.get_tensor(key), shapes[key]
                    if shape not in (None, tuple(tensor.shape)):
                        raise StartError(
                            f"{self.name}: {key} is {tuple(tensor.shape)}, not {shape}"
                        )
                    yield key, tensor

    def _path(self, file: str) -> str:
        """Return the path of a file, downloaded if it is on the Hub."""
        return str(cached_file(self.name, file, **self.options))
