"""The random checkpoints load as published ones do and write texts worth decoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from tests.support.tiny_whispers import (
    PUBLISHED,
    SMALL,
    VOCABULARY_SIZES,
    generation_config_of,
    hears_sound,
    loaded,
    model_of,
    noise,
    save,
    tokenizer_of,
    without_layers,
)
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper


@pytest.mark.parametrize("name", ["large-v3", "tiny.en"])
def test_special_tokens_have_the_published_numbers(name):
    shape = PUBLISHED[name]
    tokenizer, generation = tokenizer_of(shape), generation_config_of(shape)
    assert len(tokenizer) == VOCABULARY_SIZES[name]
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == generation.eos_token_id
    notimestamps = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    assert notimestamps == generation.no_timestamps_token_id
    assert tokenizer.convert_tokens_to_ids("<|0.00|>") == notimestamps + 1


def test_a_saved_checkpoint_loads_as_the_one_in_memory(tmp_path):
    save(tmp_path, SMALL, model_of(SMALL, seed=1))
    from_disk = load_whisper(Checkpoint(str(tmp_path)), torch.device("cpu"), torch.float64)
    in_memory = loaded(SMALL, seed=1)
    assert from_disk.special_tokens == in_memory.special_tokens
    for name, weight in in_memory.model.named_parameters():
        read = from_disk.model.weights[name]
        torch.testing.assert_close(read, weight.detach(), atol=1e-6, rtol=1e-6)
    assert AutoConfig.from_pretrained(tmp_path).vocab_size == len(
        AutoTokenizer.from_pretrained(tmp_path)
    )


def test_texts_depend_on_the_audio_and_on_the_tokens_before():
    models = loaded(SMALL, dtype=torch.float32)
    windows = [noise(3.0, seed) / 4**seed for seed in range(5)]
    features = models.feature_extractor(windows, sampling_rate=16_000, return_tensors="pt")
    tokens = torch.tensor([models.special_tokens.prompt("en", "transcribe", False)] * 5)
    with torch.inference_mode():
        for _ in range(12):
            logits = models.model(features.input_features, decoder_input_ids=tokens).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=-1)], dim=1)
    texts = {tuple(text) for text in tokens[:, -12:].tolist()}
    assert len(texts) > 2
    assert all(len(set(text)) > 6 for text in texts)


def test_kept_layers_are_copied():
    model = model_of(SMALL)
    smaller = without_layers(model, (1,))
    assert len(smaller.model.decoder.layers) == 1
    kept, original = smaller.model.decoder.layers[0], model.model.decoder.layers[1]
    torch.testing.assert_close(kept.fc1.weight, original.fc1.weight)


def test_all_but_digital_silence_counts_as_speech():
    silent, loud = np.zeros(16_000, np.float32), noise(1.0)
    (span,) = hears_sound(np.concatenate([silent, loud, silent]))
    assert span.start == pytest.approx(16_000, abs=1_600)
    assert span.stop == pytest.approx(32_000, abs=1_600)
