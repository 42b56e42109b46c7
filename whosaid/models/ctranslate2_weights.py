"""Reads a Whisper's weights from CTranslate2's `model.bin`, without CTranslate2's libraries.

The file's format is that of CTranslate2's `model_spec.py` (`_serialize`), and its names are those
of its `transformers.py` (`WhisperLoader`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
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
BIASES = ("bias", "beta")


def whisper_weights(data: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the weights in `data`, a `model.bin`, by their names in transformers."""
    weights = {}
    for name, array in _variables(data):
        if array.ndim == 0 or not (match := NAME.fullmatch(name)):
            continue
        side, layer, source, parameter = match.groups()
        prefix = f"model.{side}.layers.{layer}" if layer else f"model.{side}"
        kind = "bias" if parameter in BIASES else "weight"
        modules = MODULES.get(source, [source])
        for module, part in zip(modules, np.split(array, len(modules)), strict=True):
            if kind == "weight" or not module.endswith("k_proj"):  # keys have no bias
                weights[f"{prefix}.{module}.{kind}"] = part.astype(np.float32)
    return weights


def _variables(data: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each stored array and its name; aliases, at the end of the file, are left out."""
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        place += size
        return data[place - size : place]

    def number(form: str) -> int:
        return int(struct.unpack(form, take(struct.calcsize(form)))[0])

    def text() -> str:
        return take(number("<H")).rstrip(b"\0").decode()

    take(4)  # the format's version
    text()  # the model's name
    take(4)  # the model's revision
    for _ in range(number("<I")):
        name = text()
        shape = [number("<I") for _ in range(number("<B"))]
        dtype = DTYPES[number("<B")]
        yield name, np.frombuffer(take(number("<I")), dtype).reshape(shape)
