"""Whisper's weights from CTranslate2's format. The oracle is CTranslate2's own converter: what it
makes of a checkpoint is turned back into that checkpoint.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from ctranslate2.converters import TransformersConverter
from transformers import WhisperForConditionalGeneration

from whosaid.models.ctranslate2_weights import whisper_weights


@pytest.mark.parametrize("quantization", ["float16", None])
def test_weights_come_back(quantization, whisper_folder, tmp_path):
    model = WhisperForConditionalGeneration.from_pretrained(whisper_folder)
    with torch.no_grad():  # equal weights, such as zero biases, would be stored once
        for weight in model.parameters():
            weight.normal_()
    shutil.copytree(whisper_folder, tmp_path / "hf")
    model.save_pretrained(tmp_path / "hf")
    TransformersConverter(str(tmp_path / "hf")).convert(
        str(tmp_path / "ct2"), quantization=quantization
    )
    found = whisper_weights((tmp_path / "ct2" / "model.bin").read_bytes())
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        rounded = weight if quantization is None else weight.half().float()
        assert torch.equal(torch.from_numpy(found[name]), rounded), name
