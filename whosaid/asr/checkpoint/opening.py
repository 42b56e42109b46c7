"""Opens a checkpoint of any format that loads: transformers' own, an adapter, CTranslate2's.

Its files reveal the format. `Opened` has the entries of a config.json and the tensors by
transformers' names, so that no other module depends on a format.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, WhisperConfig

from whosaid.asr.checkpoint.adapter import MergedTensors
from whosaid.asr.checkpoint.conditioning import DICOW
from whosaid.asr.checkpoint.ctranslate2 import open_model_bin
from whosaid.asr.checkpoint.medusa import HEADS_MODEL_TYPE
from whosaid.asr.checkpoint.quantised import is_scaled
from whosaid.asr.checkpoint.weights import (
    INDEX_FILE,
    SINGLE_FILE,
    Source,
    Tensors,
    find_file,
    open_safetensors,
)
from whosaid.errors import StartError
from whosaid.model_reference import ModelReference
from whosaid.runtime.errors import loading

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE, MODEL_BIN = "base_model_name_or_path", "model.bin"
MODEL_TYPES = (WhisperConfig.model_type, HEADS_MODEL_TYPE)
# Files of formats that do not load.
FORMATS = {
    "*.gguf": "GGUF",
    "ggml*.bin": "whisper.cpp",
    "weights.npz": "MLX",
    "*.nemo": "NeMo",
    "*.onnx": "ONNX",
    "onnx/*.onnx": "ONNX",
    "*.tflite": "TFLite",
    "*.h5": "TensorFlow",
    "*.mlmodelc": "Core ML",
    "*.mlpackage": "Core ML",
    "openvino*.xml": "OpenVINO",
    "*.msgpack": "Flax",
    "*.engine": "TensorRT",
    **dict.fromkeys(("*.pt", "*.pth", "*.bin"), "pickled"),
}
# A Whisper's sizes, and the largest value of each. Larger ones would fill the memory with names and
# filters before a file is read; published checkpoints are far below.
SMALL = ("encoder_attention_heads", "decoder_attention_heads", "num_mel_bins")
LARGE = ("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size")
LARGEST = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 256),
    **dict.fromkeys(SMALL, 1024),
    **dict.fromkeys((*LARGE, "max_source_positions", "max_target_positions"), 2**20),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint's tensors and config.json; an adapter's `source` of other files is its base."""

    source: Source
    entries: Mapping[str, Any]
    tensors: Tensors

    @property
    def name(self) -> str:
        return self.tensors.name


def open_checkpoint(source: Source) -> Opened:
    """Open a folder or repository. Raises StartError for a format, OSError for missing files."""
    name = str(source["pretrained_model_name_or_path"])
    if adapter := find_file(source, ADAPTER):
        return _open_adapter(source, json.loads(Path(adapter).read_text(encoding="utf-8")))
    if not _has_model(source) and (model_bin := find_file(source, MODEL_BIN)):
        entries, tensors = open_model_bin(name, model_bin, _entries(source))
        return Opened(source, entries, tensors)
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        for pattern, kind in FORMATS.items():
            if any(folder.glob(pattern)):
                raise StartError(
                    f"{name} has no safetensors weights, and {kind} files are not loaded: "
                    "use the checkpoint in safetensors that they were made from"
                )
    entries = _entries(source)
    if not entries:
        raise StartError(f"{name} has no config.json of a model")
    if "n_audio_state" in entries:
        raise StartError(f"{name} is in the format of MLX or openai/whisper, not of transformers")
    is_dicow = DICOW in (entries.get("architectures") or ())
    if entries.get("model_type") not in MODEL_TYPES and not is_dicow:
        raise StartError(f"{name} is a {entries.get('model_type')} model, not a Whisper")
    return Opened(source, entries, open_safetensors(source, is_scaled(name, entries)))


def read_config(opened: Opened) -> PretrainedConfig:
    """Return a Whisper's or DiCoW's configuration. Raises StartError for sizes no Whisper has."""
    entries, name = opened.entries, opened.name
    _require_sizes(name, entries)
    config = WhisperConfig.from_dict({**entries, "model_type": WhisperConfig.model_type})
    _require_sizes(name, {key: getattr(config, key) for key in LARGEST})  # by their other names
    for key in ("encoder_attention_heads", "decoder_attention_heads"):
        if config.d_model % getattr(config, key):
            raise StartError(f"{name}: {key} is {getattr(config, key)}, d_model {config.d_model}")
    if config.activation_function != "gelu":
        raise StartError(f"{name} activates by {config.activation_function}, not gelu")
    if config.scale_embedding:
        raise StartError(f"{name} scales its embeddings, as no published Whisper does")
    return config


def _require_sizes(name: str, sizes: Mapping[str, Any]) -> None:
    for key, most in LARGEST.items():
        value = sizes.get(key, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise StartError(f"{name}: {key} is {value!r}, not a number from 1 to {most}")


def _open_adapter(source: Source, config: Mapping[str, Any]) -> Opened:
    name = str(source["pretrained_model_name_or_path"])
    if _has_model(source):
        raise StartError(f"{name} holds a whole model and an adapter: move one elsewhere")
    weights = find_file(source, ADAPTER_WEIGHTS)
    if weights is None:
        raise StartError(f"{name} has no {ADAPTER_WEIGHTS}; pickled adapters are not loaded")
    try:
        base = ModelReference.parse(str(config.get(BASE) or ""))
    except ValueError as error:
        reason = f"{config.get(BASE)!r} is {error}: put the base's folder or hub id there"
        raise StartError(f"{name}/{ADAPTER}: {BASE}: {reason}") from error
    revision = base.revision or config.get("revision")
    base_source = {**source, "pretrained_model_name_or_path": base.name, "revision": revision}
    with loading(BASE, base.name):
        if find_file(base_source, ADAPTER):
            raise StartError(f"{base} is an adapter too: merge it into its own base")
        opened = open_checkpoint(base_source)
    tied = bool(opened.entries.get("tie_word_embeddings", True))
    tensors = MergedTensors(name, opened.tensors, weights, config, tied)
    entries = {**opened.entries, "tie_word_embeddings": tied and not tensors.unties}
    return Opened(base_source, entries, tensors)


def _has_model(source: Source) -> bool:
    return any(find_file(source, file) for file in (SINGLE_FILE, INDEX_FILE))


def _entries(source: Source) -> dict[str, Any]:
    entries, _ = PretrainedConfig.get_config_dict(**source)
    return dict(entries)
