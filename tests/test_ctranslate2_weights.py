"""Whisper's weights in CTranslate2's format, made by CTranslate2's own converter."""

import struct

import pytest
import torch
from ctranslate2.converters import TransformersConverter

from tests.support.tiny_whispers import SMALL, model_of, save
from tests.test_checkpoint_formats import load, refusal
from whosaid.asr.checkpoint.special_tokens import SpecialTokens

# The largest rounding of each type, of the largest number that shares a scale.
ROUNDED = {None: 0, "float16": 2**-11, "bfloat16": 2**-8, "int16": 2**-10, "int8": 1 / 250}


@pytest.fixture(params=ROUNDED)
def converted(request, tmp_path):
    """A checkpoint without equal weights, which would be stored once, and its conversion."""
    model = model_of(SMALL, seed=3)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * torch.randn_like(weight)
    source = save(tmp_path / "hf", SMALL, model)
    converter = TransformersConverter(str(source), copy_files=["tokenizer.json"])
    converter.convert(str(tmp_path / "ct2"), quantization=request.param)
    return source, tmp_path / "ct2", ROUNDED[request.param]


def test_a_folder_is_the_checkpoint_that_it_was_made_from(converted):
    source, folder, rounding = converted
    expected, found = load(source), load(folder)
    for key, weight in expected.model.weights.items():
        error = (found.model.weights[key] - weight).abs().max()
        assert error <= rounding * weight.abs().max(), key
    for name in SpecialTokens.__dataclass_fields__:
        assert getattr(found.special_tokens, name) == getattr(expected.special_tokens, name), name
    assert found.model.generation_config.alignment_heads == [[0, 0], [0, 1]]
    assert found.window_seconds == expected.window_seconds == SMALL.seconds
    assert found.model.weights.keys() == expected.model.weights.keys()


@pytest.mark.parametrize("converted", ["float16"], indirect=True)
def test_other_models_are_refused(converted):
    file = converted[1] / "model.bin"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"WhisperSpec", b"WhisperSpex", 1))
    assert refusal(converted[1]) == ": its model.bin is not CTranslate2's of a Whisper"
    file.write_bytes(struct.pack("<I", 3) + content[4:])
    assert refusal(converted[1]) == ": its model.bin is not CTranslate2's of a Whisper"
