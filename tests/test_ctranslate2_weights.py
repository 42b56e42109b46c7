"""Whisper's weights from CTranslate2's format. The oracle is CTranslate2's own converter: what it
makes of a checkpoint is turned back into that checkpoint.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from ctranslate2.converters import TransformersConverter
from safetensors.numpy import load_file

from asr.checkpoint.loading import Checkpoint, load_whisper
from model_sources.ctranslate2_weights import convert, read_variables

CPU = torch.device("cpu")


def converted(model: Path, folder: Path, quantization: str | None = "float16") -> Path:
    """CTranslate2's form of a checkpoint, with the tokenizer beside it, as published ones have."""
    TransformersConverter(str(model), copy_files=["tokenizer.json"]).convert(
        str(folder), quantization=quantization
    )
    return folder


@pytest.fixture(scope="module")
def source(whisper_folder, tmp_path_factory) -> Path:
    return converted(whisper_folder, tmp_path_factory.mktemp("converted") / "ctranslate2")


@pytest.mark.parametrize("quantization", ["float16", None])
def test_weights_and_special_tokens_come_back(quantization, whisper_folder, tmp_path):
    convert(converted(whisper_folder, tmp_path / "ct2", quantization), tmp_path / "hf")
    before = load_whisper(Checkpoint(str(whisper_folder)), CPU, torch.float32)
    after = load_whisper(Checkpoint(str(tmp_path / "hf")), CPU, torch.float32)
    weights = dict(after.model.named_parameters())
    assert weights.keys() == dict(before.model.named_parameters()).keys()
    for name, weight in before.model.named_parameters():
        expected = weight if quantization is None else weight.half().float()
        assert torch.equal(weights[name], expected), name
    assert after.special_tokens == before.special_tokens
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    assert after.window_seconds == before.window_seconds
    assert after.model.generation_config.alignment_heads == [[0, 0], [0, 1]]
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == weights.keys()


def test_features_are_those_of_the_checkpoint(source, whisper_folder, tmp_path):
    convert(source, tmp_path)
    read = [
        json.loads((folder / "preprocessor_config.json").read_text())
        for folder in (whisper_folder, tmp_path)
    ]
    assert {name: read[0][name] for name in read[1]} == read[1]


def test_a_file_that_is_cut_short_is_refused(source):
    data = (source / "model.bin").read_bytes()
    assert "encoder/conv1/weight" in read_variables(data)
    for size in (3, 9, 200, len(data) // 2, len(data) - 1):
        with pytest.raises(ValueError, match="cut short"):
            read_variables(data[:size])


def test_another_model_or_version_is_refused(source):
    data = (source / "model.bin").read_bytes()
    with pytest.raises(ValueError, match="version 5"):
        read_variables(struct.pack("<I", 5) + data[4:])
    with pytest.raises(ValueError, match="WhisperSpex"):
        read_variables(data.replace(b"WhisperSpec", b"WhisperSpex", 1))


def test_quantised_weights_are_refused(whisper_folder, tmp_path):
    data = (converted(whisper_folder, tmp_path / "int8", "int8") / "model.bin").read_bytes()
    with pytest.raises(ValueError, match="quantised"):
        read_variables(data)


def test_variables_are_views_of_the_file(source):
    data = (source / "model.bin").read_bytes()
    weight = read_variables(data)["decoder/embeddings/weight"]
    assert weight.dtype == np.float16
    assert not weight.flags.writeable
