"""The random checkpoints have the published numbers and write texts worth decoding."""

import pytest
import torch

from tests.support import tiny_whispers


@pytest.mark.parametrize("name", ["large-v3", "tiny.en"])
def test_special_tokens_have_the_published_numbers(name):
    shape = tiny_whispers.PUBLISHED[name]
    tokenizer = tiny_whispers.tokenizer_of(shape)
    generation = tiny_whispers.generation_config_of(shape)
    assert len(tokenizer) == tiny_whispers.VOCABULARY_SIZES[name]
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == generation.eos_token_id
    notimestamps = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    assert notimestamps == generation.no_timestamps_token_id
    assert tokenizer.convert_tokens_to_ids("<|0.00|>") == notimestamps + 1


def test_texts_depend_on_audio_and_earlier_tokens():
    models = tiny_whispers.loaded(tiny_whispers.SMALL, dtype=torch.float32)
    windows = [tiny_whispers.noise(3.0, seed) / 4**seed for seed in range(5)]
    features = models.feature_extractor(windows, sampling_rate=16_000, return_tensors="pt")
    tokens = torch.tensor([models.special_tokens.prompt("en", "transcribe", False)] * 5)
    with torch.inference_mode():
        for _ in range(12):
            logits = models.model(features.input_features, decoder_input_ids=tokens).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=-1)], dim=1)
    texts = {tuple(text) for text in tokens[:, -12:].tolist()}
    assert len(texts) > 2
    assert all(len(set(text)) > 6 for text in texts)
