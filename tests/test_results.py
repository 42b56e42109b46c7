"""What is read of a finished row: its text, cut where it loops, and attention where needed."""

from __future__ import annotations

import dataclasses

import pytest
from oracle import TINY, decode
from test_engine import RAGGED, engine_of, truth, windows_of

from asr.engine import repetition
from asr.engine.fallback import Fallback
from asr.engine.request import DecodeOptions

STOPPING = Fallback((), logprob_threshold=-1e9, compression_ratio_threshold=1e9)


@pytest.fixture
def loops_are_short(monkeypatch):
    """Random models repeat a token three times at most."""
    monkeypatch.setattr(repetition, "LEAST_TOKENS", 3)
    monkeypatch.setattr(repetition, "LEAST_REPEATS", 2)


def answers_of(windows, **options):
    return decode(engine_of(TINY, None), windows, DecodeOptions(**options))


@pytest.mark.usefixtures("loops_are_short")
def test_a_cut_text_has_the_attention_of_what_was_kept():
    windows = windows_of(TINY, True, 3, None)
    whole = answers_of(windows, words=True)
    for key, answer in answers_of(windows, fallback=STOPPING).items():
        assert answer.cut
        assert answer.repetitive
        assert answer.tokens == whole[key].tokens[: len(answer.tokens)]
        assert answer.log_probs == pytest.approx(whole[key].log_probs[: len(answer.tokens)])
        assert answer.attention.shape[0] == len(answer.tokens)


@pytest.mark.usefixtures("loops_are_short")
def test_without_fallback_nothing_is_cut():
    windows = windows_of(TINY, True, 2, None)
    answers = answers_of(windows)
    assert {key: each.tokens for key, each in answers.items()} == truth(TINY, None, True, 2, None)
    assert not any(each.cut or each.repetitive for each in answers.values())


def test_a_text_that_compresses_too_well_is_repetitive_and_stays_whole():
    windows = windows_of(TINY, True, 2, 30)
    rejecting = dataclasses.replace(STOPPING, compression_ratio_threshold=0.0)
    expected = truth(TINY, RAGGED[TINY], True, 2, 30)
    answers = decode(
        engine_of(TINY, RAGGED[TINY]), windows, DecodeOptions(fallback=rejecting, batch_size=1)
    )
    assert {key: each.tokens for key, each in answers.items()} == expected
    assert all(each.repetitive and not each.cut for each in answers.values())
