"""Beam search against openai/whisper's own decoder, token for token, in float64."""

import dataclasses
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from whisper.decoding import MaximumLikelihoodRanker

from tests.helpers import beam_oracle, oracle
from tests.helpers.nightly import some
from tests.helpers.oracle import (
    TINY,
    TINY_ENGLISH,
    decode,
    interleaved,
    models_of,
    tokens_of,
    windows_of,
)
from whosaid.asr.engine.beam_search import BeamHypothesis, _order, rank
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.model import decoder

# Texts end where this token would have come: some at once, some late, some never.
ENDING = 142
LONGEST = 464  # positions of a row
RETRIED = Fallback(5, logprob_threshold=-4.2, no_speech_threshold=1.0)


@functools.cache
def engine_of(shape=TINY, ending=ENDING):
    return DecodeEngine(models_of(shape, ending))


@functools.cache
def truth(shape, ending, timestamps, num_beams, length_penalty=None, count=6, max_tokens=24):
    windows = windows_of(timestamps, count, max_tokens, shape)
    models = models_of(shape, ending)
    return beam_oracle.beam_search(models, windows, timestamps, num_beams, length_penalty)


@pytest.mark.parametrize(
    ("shape", "num_beams", "timestamps", "batch_size"),
    some(
        3,
        [
            (TINY, 2, False, 1), (TINY, 5, True, 1), (TINY_ENGLISH, 5, True, 4), (TINY, 2, True, 4),
            (TINY, 5, False, 4), (TINY_ENGLISH, 5, False, 1),
        ],
    ),
)  # fmt: skip
def test_texts_are_those_of_openai_at_every_batch_size(shape, timestamps, num_beams, batch_size):
    options = DecodeOptions(timestamps, batch_size=batch_size, num_beams=num_beams)
    answers = decode(engine_of(shape), windows_of(timestamps, shape=shape), options)
    assert tokens_of(answers) == tokens_of(truth(shape, ENDING, timestamps, num_beams))


@pytest.mark.parametrize("num_beams", [3, 8])
def test_every_number_of_beams(num_beams):
    answers = decode(engine_of(), windows_of(False, 3), DecodeOptions(False, num_beams=num_beams))
    assert tokens_of(answers) == tokens_of(truth(TINY, ENDING, False, num_beams, count=3))


@pytest.mark.parametrize(
    ("timestamps", "length_penalty"), some(1, [(False, 0.5), (True, 0.0), (True, 1.0)])
)
def test_the_length_penalty_is_openais(timestamps, length_penalty):
    options = DecodeOptions(timestamps, num_beams=5, length_penalty=length_penalty)
    answers = decode(engine_of(), windows_of(timestamps), options)
    assert tokens_of(answers) == tokens_of(truth(TINY, ENDING, timestamps, 5, length_penalty))


def test_the_rules_that_choose_the_best_differ_on_these_windows():
    by_mean = tokens_of(truth(TINY, ENDING, True, 5))
    assert by_mean != tokens_of(truth(TINY, ENDING, True, 5, 0.0))
    lengths = {len(tokens) for tokens in by_mean.values()}
    assert len(lengths) > 2
    assert min(lengths) < 24 == max(lengths)


def test_endless_beam_reaches_the_longest_text():
    """openai/whisper ends beams at half of that; scripts of many tokens a letter need more."""
    (window, *_) = windows_of()
    special = models_of(TINY).special_tokens
    previous = tuple(5 + each % 200 for each in range(special.max_length - 30))
    prompt = special.prompt("en", "transcribe", True, previous)
    window = dataclasses.replace(window, prompt=prompt, max_tokens=None)
    answers = decode(engine_of(ending=None), [window], DecodeOptions(num_beams=3))
    expected = beam_oracle.beam_search(models_of(TINY), [window], True, 3)
    assert tokens_of(answers) == tokens_of(expected)
    assert len(answers[window.key].tokens) + len(prompt) == special.max_length


def test_statistics_are_openais():
    answers = decode(engine_of(), windows_of(False), DecodeOptions(False, num_beams=5))
    for key, expected in truth(TINY, ENDING, False, 5).items():
        answer = answers[key]
        assert answer.no_speech_prob == pytest.approx(expected.no_speech_prob)
        assert len(answer.log_probs) in (len(answer.tokens), len(answer.tokens) + 1)
        total = expected.avg_logprob * (len(expected.tokens) + 1)
        assert sum(answer.log_probs) == pytest.approx(total)


@pytest.mark.parametrize("batch_size", [1, 6])
def test_attention_is_that_of_transformers_for_the_best_text(monkeypatch, batch_size):
    monkeypatch.setattr(decoder, "normalize_attention", lambda attention: attention)
    engine, windows = engine_of(), windows_of(False)
    answers = decode(engine, windows, DecodeOptions(False, batch_size=batch_size, num_beams=5))
    end = engine.models.special_tokens.end_of_text
    for window in windows:
        answer = answers[window.key]
        said = [*answer.tokens, end][: len(answer.log_probs)]
        heads = oracle.cross_attention(engine.models, window, said, [(1, 0), (1, 1)])
        expected = oracle.sharpest(heads)
        attention = torch.from_numpy(answer.attention)
        torch.testing.assert_close(attention, expected, atol=1e-6, rtol=1e-5)


KINDS = [
    DecodeOptions(True, num_beams=5, batch_size=3),
    DecodeOptions(False, num_beams=5, length_penalty=0.5),
    DecodeOptions(False, num_beams=2, batch_size=2),
    DecodeOptions(True, batch_size=4),
    DecodeOptions(True, num_beams=5, batch_size=4, fallback=RETRIED),
    DecodeOptions(False, batch_size=4, fallback=RETRIED),
]


def test_sessions_with_and_without_beams_answer_as_alone():
    engine = engine_of()
    asked = [(each, windows_of(each.timestamps)) for each in KINDS]
    alone = [decode(engine, windows, options) for options, windows in asked]
    for ours, expected in zip(interleaved(engine, asked), alone, strict=True):
        oracle.check_alike(ours, expected)
    assert {each.timestamps for each in alone[-2].values()} == {True, False}


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(-90, -0.1)), min_size=1, max_size=8),
    st.none() | st.floats(0, 1),
)
def test_the_best_is_openais(found, length_penalty):
    ranker = MaximumLikelihoodRanker(length_penalty)
    texts = [torch.zeros(length) for length, _ in found]
    (expected,) = ranker.rank([texts], [[total for _, total in found]])
    hypotheses = [BeamHypothesis(0, 2 + length, total) for length, total in found]
    assert rank(hypotheses, 2, length_penalty) is hypotheses[expected]


def test_second_continuation_replaces_a_dead_beam():
    parents = torch.tensor([[0, 1, 2], [2, 2, 2], [1, 1, 0], [2, 0, 2], [1, 0, 2]])
    taken = parents.gather(1, _order(parents))
    assert taken.tolist() == [[0, 1, 2], [2, 2, 2], [0, 1, 1], [0, 2, 2], [0, 1, 2]]
    assert all(sorted(row) == [0, 1, 2] for row in _order(parents).tolist())
