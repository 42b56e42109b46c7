"""What a result says about its text."""

from __future__ import annotations

import pytest

from whosaid.asr.engine.request import DecodeResult


def test_the_average_counts_the_end_of_text_where_the_model_ended():
    assert DecodeResult((5, 6), 0.1, (-1.0, -2.0, -3.0), 0.0).avg_logprob == pytest.approx(-2.0)


def test_an_empty_text_is_not_unlikely():
    assert DecodeResult((), 0.1, (), 0.0).avg_logprob == 0.0
