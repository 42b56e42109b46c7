"""Reads a checkpoint's weights: tensors by the names that transformers gives them.

Only safetensors files are read: a pickle can run code.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from whosaid.errors import StartError

FLOATS, EIGHT_BITS = ("F64", "F32", "F16", "BF16"), ("F8_E4M3", "I8")
SCALES = ("weight_scale", "input_scale")  # in 8 bits; an input's concerns activations in 8 bits
PLAIN = "use the checkpoint in 16 or 32 bits that it was made from"
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


class Tensors(Protocol):
    """A checkpoint's tensors, in whatever format they are stored."""

    name: str

    @property
    def keys(self) -> Collection[str]: ...

    def read(self, shapes: Mapping[str, Shape | None]) -> Iterator[tuple[str, Tensor]]:
        """Yield keys and tensors on the CPU, in any order. Raises StartError for another shape,
        unless it is None, another type than a plain weight's, and a number that is not finite.
        """


class TensorFiles:
    """Safetensors files, by the key of every tensor. If `scaled`, a weight may be stored in 8 bits
    beside its scale, `<key>_scale`, by which it is multiplied; `keys` leaves the scales out.
    """

    def __init__(self, name: str, files: Mapping[str, str], scaled: bool = False) -> None:
        self.name, self.files, self.scaled = name, files, scaled
        scales = [key for key in files if scaled and key.endswith(SCALES)]
        self.keys: Collection[str] = files.keys() - set(scales)

    def read(self, shapes: Mapping[str, Shape | None]) -> Iterator[tuple[str, Tensor]]:
        """Yield keys and tensors as specified by `Tensors.read`; they may map parts of a file."""
        by_file = defaultdict(list)
        for key in shapes:
            by_file[self.files[key]].append(key)
        for file, keys in by_file.items():
            with safe_open(file, framework="pt") as opened:
                for key in keys:
                    dtype = self._stored_dtype(key, opened.get_slice(key), shapes[key])
                    tensor = opened.get_tensor(key)
                    if dtype in EIGHT_BITS:
                        tensor = self._scale(key, tensor)
                    require_finite(self.name, key, tensor)
                    yield key, tensor

    def _stored_dtype(self, key: str, stored: Any, shape: Shape | None) -> str:  # noqa: ANN401
        """Return a tensor's type in the file. Raises StartError if it is not a plain weight's."""
        found, dtype = tuple(stored.get_shape()), str(stored.get_dtype())
        if shape not in (None, found):
            raise StartError(f"{self.name}: {key} is {found}, not {shape}")
        has_scale = f"{key}_scale" in self.files
        in_eight_bits = dtype in EIGHT_BITS and has_scale and self.scaled
        is_list = dtype == "I64" and shape is None
        if not (in_eight_bits or is_list or (dtype in FLOATS and not has_scale)):
            scale = " with a scale" if has_scale else ""
            raise StartError(f"{self.name}: {key} is stored in {dtype}{scale}: {PLAIN}")
        return dtype

    def _scale(self, key: str, tensor: Tensor) -> Tensor:
        """Return a weight (outputs, ...) times its scale, one number or one for each output."""
        scale_key = f"{key}_scale"
        with safe_open(self.files[scale_key], framework="pt") as opened:
            scale: Tensor = opened.get_tensor(scale_key).float()
        if scale.numel() not in (1, len(tensor)):
            shapes = f"{tuple(scale.shape)} for {tuple(tensor.shape)}"
            raise StartError(f"{self.name}: {scale_key} is {shapes}: {PLAIN}")
        return tensor.float() * scale.view(-1, *[1] * (tensor.dim() - 1))


def open_safetensors(source: Source, scaled: bool = False) -> TensorFiles:
    """Return a checkpoint's single file, or its index's files. Raises OSError if it has none."""
    name, options = str(source["pretrained_model_name_or_path"]), hub_options(source)
    index = find_file(source, INDEX_FILE)
    if index is None:
        return open_file(name, str(cached_file(name, SINGLE_FILE, **options)), scaled)
    with open(index, encoding="utf-8") as stream:
        listed = json.load(stream)["weight_map"]
    paths = {file: str(cached_file(name, file, **options)) for file in set(listed.values())}
    return TensorFiles(name, {key: paths[file] for key, file in listed.items()}, scaled)


def open_file(name: str, path: str, scaled: bool = False) -> TensorFiles:
    with safe_open(path, framework="pt") as opened:
        return TensorFiles(name, dict.fromkeys(opened.keys(), path), scaled)


def find_file(source: Source, file: str) -> str | None:
    """Return the path of a source's file, downloaded if it is on the Hub; None if it has none."""
    name, options = source["pretrained_model_name_or_path"], hub_options(source)
    path = cached_file(name, file, **options, _raise_exceptions_for_missing_entries=False)
    return None if path is None else str(path)


def hub_options(source: Source) -> dict[str, Any]:
    return {key: source.get(key) for key in ("revision", "token")}


def require_finite(name: str, key: str, tensor: Tensor) -> None:
    """Raise StartError if `tensor` holds NaN or infinity. A sum takes no memory, and keeps both."""
    if tensor.is_floating_point() and not tensor.sum(dtype=torch.float32).isfinite():
        raise StartError(f"{name}: {key} holds numbers that are not finite: the file is damaged")
