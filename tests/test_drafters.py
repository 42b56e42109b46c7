"""Drafting with Medusa heads against transformers' greedy decoding, token for token, in float64."""

from __future__ import annotations

import functools

import oracle
import pytest
from oracle import TINY, decode, models_of, random_heads

from asr.checkpoint.medusa import BLOCK, HEADS_ONLY
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request

RAGGED = 142  # the token whose place the end of text takes: rows end far apart


@functools.cache
def engine_of(kind, count=10, blocks=1, scale=0.3):
    return DecodeEngine(random_heads(models_of(TINY, RAGGED), count, kind, blocks, scale))


@functools.cache
def windows_of(timestamps, count=8, max_tokens=30):
    prompts = oracle.prompts_of(models_of(TINY).special_tokens, timestamps, count)
    sounds = oracle.noise_windows(count)
    return [
        Request(number, samples, prompt, max_tokens)
        for number, (samples, prompt) in enumerate(zip(sounds, prompts, strict=True))
    ]


@functools.cache
def truth(timestamps):
    return oracle.greedy(models_of(TINY, RAGGED), windows_of(timestamps), timestamps)


def tokens_of(answers):
    return {key: answer.tokens for key, answer in answers.items()}


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("kind", [HEADS_ONLY, BLOCK])
@pytest.mark.parametrize(("drafts", "batch_size"), [(1, 8), (3, 1), (4, 5), (10, 8)])
def test_heads_change_no_token(kind, timestamps, drafts, batch_size):
    options = DecodeOptions(timestamps, True, batch_size, drafts=drafts)
    answers = decode(engine_of(kind), windows_of(timestamps), options)
    assert tokens_of(answers) == truth(timestamps)
