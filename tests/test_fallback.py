"""When a window is decoded again, which attempt is kept, and chance that depends on the window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asr.engine.fallback import (
    DEFAULT_FALLBACK,
    Attempt,
    Fallback,
    compression_ratio,
    is_better,
    uniform,
)
from asr.engine.request import DecodeResult

PLAIN = "the quick brown fox jumps over the lazy dog while nobody looks"
LOOP = "and then and then and then " * 20


def result_of(logprob: float, no_speech_prob: float = 0.0, repetitive: bool = False):
    return DecodeResult((1,), no_speech_prob, (logprob,), 0.0, repetitive=repetitive)


@pytest.mark.parametrize(
    ("avg_logprob", "no_speech_prob", "repetitive", "again"),
    [
        (-0.3, 0.0, False, False),
        (-1.1, 0.0, False, True),
        (-0.1, 0.0, True, True),
        (-0.1, 0.9, True, True),
        (-1.1, 0.9, False, False),
        (-1.1, 0.9, True, True),
    ],
)
def test_when_a_window_is_decoded_again(avg_logprob, no_speech_prob, repetitive, again):
    result = result_of(avg_logprob, no_speech_prob, repetitive)
    assert Fallback().rejects(result) is again


def test_a_text_that_compresses_too_well_repeats_itself():
    assert Fallback().repeats_itself(LOOP)
    assert not Fallback().repeats_itself(PLAIN)
    assert not Fallback().repeats_itself("")


def test_attempts_come_in_order_and_end():
    fallback = Fallback((Attempt(0.2), Attempt(1.0)))
    for timestamps in (True, False):
        made = [fallback.next_attempt(count, timestamps) for count in (1, 2, 3)]
        assert made == [*fallback.attempts, None]


def test_by_default_a_window_is_decoded_once_more_where_it_had_timestamps():
    assert DEFAULT_FALLBACK.next_attempt(1, timestamps=True) == Attempt(without_timestamps=True)
    assert DEFAULT_FALLBACK.next_attempt(2, timestamps=True) is None
    assert DEFAULT_FALLBACK.next_attempt(1, timestamps=False) is None


@pytest.mark.parametrize(
    ("one", "other", "better"),
    [
        ((-0.5, False), (-0.6, False), True),
        ((-0.6, False), (-0.5, False), False),
        ((-0.9, False), (-0.1, True), True),
        ((-0.1, True), (-0.9, False), False),
        ((-0.1, True), (-0.2, True), True),
        ((-0.2, True), (-0.2, True), False),
    ],
)
def test_which_attempt_is_kept(one, other, better):
    results = [result_of(logprob, repetitive=repetitive) for logprob, repetitive in (one, other)]
    assert is_better(*results) is better


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
