"""Pairs of models that benchmarks time: depth and noise change acceptance and no token."""

import dataclasses

import pytest
import torch

from config import DEMO_MODELS
from tests.helpers.oracle import TINY, models_of, noise_windows
from tests.support.decoding import decode
from tests.support.model_pairs import add_noise, insert_layers
from tests.support.transformers_models import decoder_alone, in_transformers
from whosaid.asr.checkpoint.loading import Assistant, Checkpoint, load_whisper
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request

CPU = torch.device("cpu")


def decoded(models, windows, options, max_tokens=None):
    prompt = models.special_tokens.prompt("en", "transcribe", timestamps=True)
    requests = [Request(key, each, prompt, max_tokens) for key, each in enumerate(windows)]
    results, stats = decode(DecodeEngine(models), requests, options)
    return [results[each.key].tokens for each in requests], stats


def greedy(models, window):
    plain = dataclasses.replace(models, assistant=None)
    return decoded(plain, [window], DecodeOptions(batch_size=1))[0][0]


def drafted(models, windows):
    return decoded(models, windows, DecodeOptions(assisted=True, batch_size=4, drafts=4), 30)


def paired(models, main, assistant):
    decoder = decoder_alone(assistant)
    helper = Assistant("shallow", decoder, shares_encoder=True, only_language=None)
    return dataclasses.replace(models, model=main, assistant=helper)


def test_the_demo_model_made_deep_writes_the_same(sentence):
    models = load_whisper(Checkpoint(str(DEMO_MODELS / "asr")), CPU, torch.float32)
    own = in_transformers(models.model)
    deep = dataclasses.replace(models, model=insert_layers(own, 12, epsilon=0.0))
    assert deep.model.config.decoder_layers == len(deep.model.model.decoder.layers) == 12
    text = greedy(deep, sentence)
    assert text == greedy(models, sentence)
    assert "hotel near the museum" in models.tokenizer.decode(text, skip_special_tokens=True)


@pytest.mark.reliability
def test_noise_lowers_the_acceptance_and_changes_no_token():
    models, windows = models_of(TINY), noise_windows(4)
    texts, shares = [], []
    for noise in (0.0, 0.1, 1.0):
        noisy = add_noise(models.model, noise)
        tokens, stats = drafted(paired(models, models.model, noisy), windows)
        texts.append(tokens)
        shares.append(stats.acceptance)
    assert shares[0] == 1
    assert shares[2] < shares[1] < 1
    assert texts[0] == texts[1] == texts[2]
