"""Whisper's weights from CTranslate2's format. The oracle is CTranslate2's own converter: what it
makes of a checkpoint is turned back into that checkpoint.
"""

from __future__ import annotations

import pytest
import torch
from ctranslate2.converters import TransformersConverter

from asr.checkpoint.loading import Checkpoint, load_whisper
from model_sources.ctranslate2_weights import whisper_weights


@pytest.mark.parametrize("quantization", ["float16", None])
def test_weights_come_back(quantization, whisper_folder, tmp_path):
    TransformersConverter(str(whisper_folder)).convert(
        str(tmp_path / "ct2"), quantization=quantization
    )
    found = whisper_weights((tmp_path / "ct2" / "model.bin").read_bytes())
    checkpoint = load_whisper(Checkpoint(str(whisper_folder)), torch.device("cpu"), torch.float32)
    expected = dict(checkpoint.model.named_parameters())
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        rounded = weight if quantization is None else weight.half().float()
        assert torch.equal(torch.from_numpy(found[name]), rounded), name
