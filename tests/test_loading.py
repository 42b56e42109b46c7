"""Checkpoints that load and ones that are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, WhisperFeatureExtractor

from asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from asr.engine.request import DecodeOptions
from asr.options import TranscriptionOptions
from asr.transcriber import Transcriber
from errors import StartError
from testing.tiny_whispers import (
    PUBLISHED,
    SMALL,
    feature_extractor_of,
    hears_sound,
    model_of,
    noise,
    save,
    tokenizer_of,
)

CPU = torch.device("cpu")


def load(folder) -> WhisperModels:
    return load_whisper(Checkpoint(str(folder)), CPU, torch.float32)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_load_and_answer(name, tmp_path):
    shape = PUBLISHED[name]
    models = load(save(tmp_path, shape, model_of(shape, seed=3)))
    transcriber = Transcriber(models, fallback=None, detect_speech=hears_sound)
    transcript = transcriber.transcribe(noise(2.0), transcriber.validate(TranscriptionOptions()))
    assert transcript.language in (
        models.special_tokens.languages if shape.multilingual else {"en"}
    )
    assert all(0 <= chunk.start <= chunk.end <= 2.0 for chunk in transcript.chunks)
    options = TranscriptionOptions(language="English", decode=DecodeOptions(timestamps=False))
    untimed = transcriber.transcribe(noise(2.0), transcriber.validate(options))
    assert len(untimed.chunks) <= 1


def test_the_sampling_options_of_a_checkpoint_have_no_effect(tmp_path):
    transcripts = []
    for name, options in (
        ("plain", {}),
        ("sampling", {"num_beams": 5, "temperature": 0.7, "do_sample": True}),
    ):
        model = model_of(SMALL, seed=3)
        model.generation_config.update(**options)
        transcriber = Transcriber(
            load(save(tmp_path / name, SMALL, model)), fallback=None, detect_speech=hears_sound
        )
        transcripts.append(
            transcriber.transcribe(
                noise(2.0), TranscriptionOptions(decode=DecodeOptions(timestamps=False))
            )
        )
    assert transcripts[0].text
    assert transcripts[0] == transcripts[1]


def test_attention_dtype_and_mode(tmp_path):
    model = load_whisper(Checkpoint(str(save(tmp_path, SMALL))), CPU, torch.float16).model
    assert model.dtype == torch.float16
    assert model.config._attn_implementation == "sdpa"
    assert not model.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_in_a_lower_precision_a_cpu_multiplies_and_stores_float32(tmp_path, dtype):
    models = load_whisper(Checkpoint(str(save(tmp_path, SMALL))), CPU, dtype)
    assert (models.model.dtype, models.product_dtype) == (torch.float32, dtype)
    assert load(tmp_path).product_dtype is None


def test_another_architecture_is_refused(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(StartError, match="is a bert model, not a Whisper"):
        load(tmp_path)


def test_a_feature_extractor_of_another_checkpoint_is_refused(tmp_path):
    save(tmp_path, SMALL)
    WhisperFeatureExtractor(feature_size=128, chunk_length=3).save_pretrained(tmp_path)
    with pytest.raises(StartError, match="128 mel bins by 300 frames, its encoder reads 80 by 300"):
        load(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    save(tmp_path, SMALL)
    torch.save(model_of(SMALL).state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        load(tmp_path)


def test_a_token_is_not_printed():
    assert "hf_secret" not in repr(Checkpoint("owner/name", token="hf_secret"))


def test_tokenizer_and_features_come_with_the_model(tmp_path):
    models = load(save(tmp_path, SMALL))
    assert len(models.tokenizer) == len(tokenizer_of(SMALL)) == models.special_tokens.size
    assert models.window_seconds == feature_extractor_of(SMALL).chunk_length
