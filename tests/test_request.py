"""What a result says about its text."""

from __future__ import annotations

import numpy as np
import pytest

from whosaid.asr.engine.request import DecodeOptions, DecodeResult, Request


def test_the_average_counts_the_end_of_text_where_the_model_ended():
    assert DecodeResult((5, 6), 0.1, (-1.0, -2.0, -3.0), 0.0).avg_logprob == pytest.approx(-2.0)


def test_an_empty_text_is_not_unlikely():
    assert DecodeResult((), 0.1, (), 0.0).avg_logprob == 0.0


def test_requests_are_told_apart_by_identity_and_options_by_value():
    samples = np.zeros(3, np.float32)
    assert Request(0, samples, (1,)) != Request(0, samples, (1,))
    assert DecodeOptions(batch_size=3) == DecodeOptions(batch_size=3)
