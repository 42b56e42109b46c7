"""Reads a Whisper in CTranslate2's format, as faster-whisper uses it, without its libraries.

The file's format is that of CTranslate2's `model_spec.py` (`_serialize`, `_quantize`), and its
names are those of its `transformers.py` (`WhisperLoader`). In 8 or 16 bits a weight is its number
divided by its scale. config.json lists tokens and heads only; sizes follow from the weights.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whosaid.asr.checkpoint.weights import EMBEDDINGS, PLAIN, PROJECTION, Shape, require_finite
from whosaid.errors import StartError
from whosaid.payload.languages import CODES

FIRST_VERSION = 4  # of the format: earlier ones lack the types of arrays
BFLOAT16 = "<u2"  # numpy has no type for it
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: BFLOAT16}
NAME = re.compile(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(\w+)")
# CTranslate2 stacks the projections of queries, keys and values in one matrix.
MODULES = {
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
    "embeddings": ["embed_tokens"],
    "position_encodings": ["embed_positions"],
}
SCALE = "_scale"
PARAMETERS = {"gamma": "weight", "encodings": "weight", "beta": "bias"}
# The vocabulary of openai/whisper's English-only models.
ENGLISH_ONLY_SIZE = 51_864


class ModelBin:
    """The content of a `model.bin`; `keys` are transformers' names, without the file's aliases."""

    def __init__(self, name: str, data: bytes | mmap.mmap) -> None:
        """Find the arrays in `data`, which are read later. Raises StartError for other models."""
        self.name = name
        self._arrays = dict(_arrays(name, data))
        self._parts: dict[str, tuple[str, int, int]] = {}  # array, part, number of parts
        for stored, array in self._arrays.items():
            match = NAME.fullmatch(stored)
            if array.ndim == 0 or match is None or stored.endswith(SCALE):
                continue
            side, layer, source, parameter = match.groups()
            prefix = f"model.{side}.layers.{layer}" if layer else f"model.{side}"
            kind, modules = PARAMETERS.get(parameter, parameter), MODULES.get(source, [source])
            for part, module in enumerate(modules):
                if kind == "weight" or not module.endswith("k_proj"):  # keys have no bias
                    key = f"{prefix}.{module}.{kind}"
                    key = PROJECTION if source == "projection" and kind == "weight" else key
                    self._parts[key] = stored, part, len(modules)
        self.keys = self._parts.keys()

    def number(self, stored: str) -> int | None:
        return int(self._arrays[stored]) if stored in self._arrays else None

    def shape(self, key: str) -> Shape:
        if key not in self._parts:
            raise StartError(f"{self.name} lacks {key}")
        stored, _, parts = self._parts[key]
        first, *rest = self._arrays[stored].shape
        return first // parts, *rest

    def weight(self, key: str) -> NDArray[np.float32]:
        """Return a weight in float32, divided by its scale if it is stored as integers."""
        stored, part, parts = self._parts[key]
        array, scale = self._arrays[stored], self._arrays.get(stored + SCALE)
        integers = array.dtype.kind == "i"
        if integers is (scale is None) or array.dtype == DTYPES[3]:
            raise StartError(f"{self.name} stores {stored} in {array.dtype}: {PLAIN}")
        chosen = np.split(array, parts)[part]
        if array.dtype == BFLOAT16:
            chosen = (chosen.astype("<u4") << 16).view("<f4")
        weight = chosen.astype(np.float32)
        if scale is None:
            return weight
        if scale.ndim:
            scale = np.split(scale, parts)[part].reshape(-1, *[1] * (array.ndim - 1))
        return np.asarray(weight / scale, np.float32)

    def read(self, shapes: Mapping[str, Shape | None]) -> Iterator[tuple[str, Tensor]]:
        for key, shape in shapes.items():
            if shape not in (None, self.shape(key)):
                raise StartError(f"{self.name}: {key} is {self.shape(key)}, not {shape}")
            tensor = torch.from_numpy(self.weight(key))
            require_finite(self.name, key, tensor)
            yield key, tensor


def open_model_bin(
    name: str, path: str, stated: Mapping[str, Any]
) -> tuple[dict[str, Any], ModelBin]:
    """Return transformers' entries, with those `stated`, and the tensors of a `model.bin`."""
    with open(path, "rb") as stream:
        tensors = ModelBin(name, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    size, width = tensors.shape(EMBEDDINGS)
    entries = {**stated, "model_type": "whisper", "d_model": width, "vocab_size": size}
    entries["tie_word_embeddings"] = PROJECTION not in tensors.keys
    entries["num_mel_bins"] = tensors.shape("model.encoder.conv1.weight")[1]
    for side, positions in ("encoder", "max_source_positions"), ("decoder", "max_target_positions"):
        layers = {key.split(".")[3] for key in tensors.keys if f"{side}.layers." in key}
        entries[f"{side}_layers"] = len(layers)
        entries[f"{side}_attention_heads"] = tensors.number(f"{side}/num_heads") or width // 64
        entries[f"{side}_ffn_dim"] = tensors.shape(f"model.{side}.layers.0.fc1.weight")[0]
        entries[positions] = tensors.shape(f"model.{side}.embed_positions.weight")[0]
    return entries, tensors


def generation_entries(
    entries: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return the entries of a generation configuration; None if `entries` are not CTranslate2's.

    CTranslate2 may list other tokens than languages, and languages of English-only checkpoints.
    """
    if "suppress_ids_begin" not in entries:
        return None
    listed, tokens = set(entries.get("lang_ids") or ()), [f"<|{code}|>" for code in CODES]
    lang_to_id = {each: vocabulary[each] for each in tokens if vocabulary.get(each) in listed}
    return {
        "alignment_heads": entries.get("alignment_heads"),
        "suppress_tokens": entries.get("suppress_ids"),
        "begin_suppress_tokens": entries.get("suppress_ids_begin"),
        "eos_token_id": vocabulary.get("<|endoftext|>"),
        "decoder_start_token_id": vocabulary.get("<|startoftranscript|>"),
        "is_multilingual": bool(lang_to_id) and entries["vocab_size"] != ENGLISH_ONLY_SIZE,
        "lang_to_id": lang_to_id,
        "max_initial_timestamp_index": 50,  # openai/whisper's, a second
    }


def _arrays(name: str, data: bytes | mmap.mmap) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each stored array and its name. The arrays are views of `data`."""
    place = 0

    def take(form: str) -> int:
        nonlocal place
        place += struct.calcsize(form)
        return int(struct.unpack_from(form, data, place - struct.calcsize(form))[0])

    def text() -> str:
        nonlocal place
        length = take("<H")
        place += length
        return data[place - length : place].rstrip(b"\0").decode()

    if take("<I") < FIRST_VERSION or text() != "WhisperSpec":
        raise StartError(f"{name}: its model.bin is not CTranslate2's of a Whisper")
    take("<I")  # the model's revision
    for _ in range(take("<I")):
        stored = text()
        shape = [take("<I") for _ in range(take("<B"))]
        dtype = np.dtype(DTYPES[take("<B")])
        size = take("<I")
        yield stored, np.frombuffer(data, dtype, size // dtype.itemsize, place).reshape(shape)
        place += size
