"""A Whisper of CTranslate2's rewritten as a checkpoint of transformers'.

Everything is read and written here as bytes, arrays and JSON, by neither of the two libraries. So
what is written does not depend on which release of transformers is installed, and both servers'
releases load it. The format read is that of CTranslate2's `model_spec.py` (`_serialize`), the names
are those of its `transformers.py` (`WhisperLoader`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from timebase import SAMPLE_RATE, TOKENS_PER_SECOND

BINARY_VERSION = 6
SPECIFICATION = "WhisperSpec"
# By CTranslate2's numbers of types; the others hold quantised weights.
DTYPES: dict[int, str] = {0: "<f4", 3: "<i4", 4: "<f2"}
# Scalars such as the number of heads may have these.
INTEGERS: dict[int, str] = {1: "<i1", 2: "<i2"}
HOP = 160
# Where published checkpoints have it, in steps of 20 ms; CTranslate2 leaves it to its callers.
LATEST_FIRST_TIMESTAMP = 50

Array = NDArray[Any]
Arrays = Mapping[str, Array]


def convert(source: Path, target: Path) -> None:
    """Write `target`, a folder, from CTranslate2's `source`, in float32.

    Raises ValueError where it is no multilingual Whisper in float16 or float32.
    """
    variables = read_variables((source / "model.bin").read_bytes())
    tensors = transformers_tensors(variables)
    tokenizer = (source / "tokenizer.json").read_text(encoding="utf-8")
    ids = {entry["content"]: entry["id"] for entry in json.loads(tokenizer)["added_tokens"]}
    declared = json.loads((source / "config.json").read_text(encoding="utf-8"))
    target.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": _model_config(variables, tensors, ids),
        "generation_config.json": _generation_config(declared, ids, tensors),
        "preprocessor_config.json": _feature_config(tensors),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in files.items():
        (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (target / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def read_variables(data: bytes) -> dict[str, Array]:
    """The arrays of a `model.bin` by name, aliases included, as views of `data`.

    Raises ValueError where it is another version, another model, or cut short.
    """
    try:
        return _Reader(data).variables()
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"model.bin is cut short: {error}") from error


class _Reader:
    """Reads little-endian values one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def variables(self) -> dict[str, Array]:
        version, name = self._integer("<I"), self._text()
        if (version, name) != (BINARY_VERSION, SPECIFICATION):
            raise ValueError(f"model.bin is {name} in version {version}")
        self._integer("<I")  # the specification's revision
        read = dict(self._variable() for _ in range(self._integer("<I")))
        for _ in range(self._integer("<I")):
            alias = self._text()
            read[alias] = read[self._text()]
        return read

    def _variable(self) -> tuple[str, Array]:
        name = self._text()
        shape = [self._integer("<I") for _ in range(self._integer("<B"))]
        dtype, size = self._integer("<B"), self._integer("<I")
        known = DTYPES if shape else DTYPES | INTEGERS
        if dtype not in known:
            raise ValueError(f"model.bin: {name} is quantised")
        array = np.frombuffer(self._bytes(size), np.dtype(known[dtype]))
        return name, array.reshape(shape)

    def _integer(self, form: str) -> int:
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return int(value)

    def _text(self) -> str:
        return bytes(self._bytes(self._integer("<H"))).rstrip(b"\0").decode()

    def _bytes(self, size: int) -> memoryview:
        start, self.place = self.place, self.place + size
        if self.place > len(self.data):
            raise struct.error(f"{self.place} bytes wanted of {len(self.data)}")
        return memoryview(self.data)[start : self.place]


def transformers_tensors(variables: Arrays) -> dict[str, NDArray[np.float32]]:
    """The weights of `WhisperForConditionalGeneration`, float32, by transformers' names.

    CTranslate2 keeps one product for queries, keys and values, whose rows stand in this order;
    keys have no bias, there it is zero.
    """
    tensors = dict(_outer(variables))
    for side in ("encoder", "decoder"):
        for number in range(_layers(variables, side)):
            source, target = f"{side}/layer_{number}", f"model.{side}.layers.{number}"
            tensors |= _layer(variables, source, target, crossed=side == "decoder")
    return {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}


def _outer(variables: Arrays) -> Iterator[tuple[str, Array]]:
    """What stands outside the layers."""
    for side in ("encoder", "decoder"):
        positions = variables[f"{side}/position_encodings/encodings"]
        yield f"model.{side}.embed_positions.weight", positions
        yield from _norm(variables, f"{side}/layer_norm", f"model.{side}.layer_norm")
    for name in ("conv1", "conv2"):
        yield from _linear(variables, f"encoder/{name}", f"model.encoder.{name}")
    yield "model.decoder.embed_tokens.weight", variables["decoder/embeddings/weight"]


def _layer(variables: Arrays, source: str, target: str, crossed: bool) -> dict[str, Array]:
    own, cross = f"{source}/self_attention", f"{source}/attention"
    parts = [
        *_norm(variables, f"{own}/layer_norm", f"{target}.self_attn_layer_norm"),
        *_split(variables, f"{own}/linear_0", f"{target}.self_attn", "qkv"),
        *_linear(variables, f"{own}/linear_1", f"{target}.self_attn.out_proj"),
        *_norm(variables, f"{source}/ffn/layer_norm", f"{target}.final_layer_norm"),
        *_linear(variables, f"{source}/ffn/linear_0", f"{target}.fc1"),
        *_linear(variables, f"{source}/ffn/linear_1", f"{target}.fc2"),
    ]
    if crossed:
        parts += [
            *_norm(variables, f"{cross}/layer_norm", f"{target}.encoder_attn_layer_norm"),
            *_split(variables, f"{cross}/linear_0", f"{target}.encoder_attn", "q"),
            *_split(variables, f"{cross}/linear_1", f"{target}.encoder_attn", "kv"),
            *_linear(variables, f"{cross}/linear_2", f"{target}.encoder_attn.out_proj"),
        ]
    return dict(parts)


def _norm(variables: Arrays, source: str, target: str) -> Iterator[tuple[str, Array]]:
    yield f"{target}.weight", variables[f"{source}/gamma"]
    yield f"{target}.bias", variables[f"{source}/beta"]


def _linear(variables: Arrays, source: str, target: str) -> Iterator[tuple[str, Array]]:
    yield f"{target}.weight", variables[f"{source}/weight"]
    yield f"{target}.bias", variables[f"{source}/bias"]


def _split(
    variables: Arrays, source: str, target: str, letters: str
) -> Iterator[tuple[str, Array]]:
    """The products that stand in one; `letters` are the first of query, key and value."""
    weights = np.split(variables[f"{source}/weight"], len(letters))
    biases = np.split(variables[f"{source}/bias"], len(letters))
    for letter, weight, bias in zip(letters, weights, biases, strict=True):
        yield f"{target}.{letter}_proj.weight", weight
        if letter != "k":
            yield f"{target}.{letter}_proj.bias", bias


def _layers(variables: Arrays, side: str) -> int:
    counted = 0
    while f"{side}/layer_{counted}/ffn/linear_0/weight" in variables:
        counted += 1
    return counted


def _model_config(variables: Arrays, tensors: Arrays, ids: dict[str, int]) -> dict[str, Any]:
    size, width = tensors["model.decoder.embed_tokens.weight"].shape
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": size,
        "d_model": width,
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(tensors["model.decoder.embed_positions.weight"]),
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
        "begin_suppress_tokens": None,
        "suppress_tokens": None,
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_layers"] = _layers(variables, side)
        config[f"{side}_attention_heads"] = int(variables[f"{side}/num_heads"])
        config[f"{side}_ffn_dim"] = len(tensors[f"model.{side}.layers.0.fc1.weight"])
    return config


def _generation_config(
    declared: dict[str, Any], ids: dict[str, int], tensors: Arrays
) -> dict[str, Any]:
    """What Whisper's decoding reads: lists that CTranslate2 keeps, and special tokens' numbers."""
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    tasks = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    languages = set(declared["lang_ids"])
    return {
        "alignment_heads": declared["alignment_heads"],
        "suppress_tokens": declared["suppress_ids"],
        "begin_suppress_tokens": declared["suppress_ids_begin"],
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "is_multilingual": True,
        "lang_to_id": {token: number for token, number in ids.items() if number in languages},
        "task_to_id": tasks,
        "max_initial_timestamp_index": LATEST_FIRST_TIMESTAMP,
        "max_length": len(tensors["model.decoder.embed_positions.weight"]),
        "return_timestamps": False,
    }


def _feature_config(tensors: Arrays) -> dict[str, Any]:
    seconds = len(tensors["model.encoder.embed_positions.weight"]) // TOKENS_PER_SECOND
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": tensors["model.encoder.conv1.weight"].shape[1],
        "sampling_rate": SAMPLE_RATE,
        "hop_length": HOP,
        "n_fft": 400,
        "chunk_length": seconds,
        "n_samples": seconds * SAMPLE_RATE,
        "nb_max_frames": seconds * SAMPLE_RATE // HOP,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _tokenizer_config() -> dict[str, Any]:
    """All else is in `tokenizer.json`."""
    end = "<|endoftext|>"
    return {
        "tokenizer_class": "WhisperTokenizer",
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
        "pad_token": end,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "model_max_length": 1024,
    }
