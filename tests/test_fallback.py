"""OpenAI's conditions for another attempt, and chance that depends on the window alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asr.engine.fallback import Fallback, compression_ratio, uniform

PLAIN = "the quick brown fox jumps over the lazy dog while nobody looks"
LOOP = "and then and then and then " * 20


@pytest.mark.parametrize(
    ("text", "avg_logprob", "no_speech_prob", "again"),
    [
        (PLAIN, -0.3, 0.0, False),
        (PLAIN, -1.1, 0.0, True),
        (LOOP, -0.1, 0.0, True),
        (LOOP, -0.1, 0.9, True),
        (PLAIN, -1.1, 0.9, False),
        (LOOP, -1.1, 0.9, False),
        ("", -0.1, 0.0, False),
    ],
)
def test_when_a_text_is_decoded_again(text, avg_logprob, no_speech_prob, again):
    assert Fallback().rejects(text, avg_logprob, no_speech_prob) is again


def test_temperatures_rise_and_end():
    fallback = Fallback((0.0, 0.2, 1.0))
    assert [fallback.next_temperature(attempt) for attempt in range(3)] == [0.2, 1.0, None]


def test_compression_tells_loops_from_speech():
    assert compression_ratio(PLAIN) < 2.4 < compression_ratio(LOOP)


def test_chance_depends_on_samples_and_attempt_alone():
    samples = np.random.default_rng(0).normal(size=100).astype(np.float32)
    first = uniform(samples, 1, 8)
    torch.rand(3)
    assert torch.equal(first, uniform(samples.copy(), 1, 8))
    assert not torch.equal(first, uniform(samples, 2, 8))
    assert not torch.equal(first, uniform(samples[1:], 1, 8))
    assert first.min() >= 0
    assert first.max() < 1
