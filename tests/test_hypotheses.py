"""Ranking against openai/whisper's, and texts read back from what beams wrote down."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from whisper.decoding import MaximumLikelihoodRanker

from whosaid.asr.engine.beam_search import Hypothesis, best_text, rank
from whosaid.asr.engine.results import only_text
from whosaid.asr.engine.state import BeamState, SequenceState

BEGIN, CPU = 2, torch.device("cpu")


@given(
    some.lists(some.tuples(some.integers(1, 30), some.floats(-90, -0.1)), min_size=1, max_size=8),
    some.none() | some.floats(0, 1),
)
def test_the_best_is_openais(found, length_penalty):
    ranker = MaximumLikelihoodRanker(length_penalty)
    texts = [torch.zeros(length) for length, _ in found]
    (expected,) = ranker.rank([texts], [[total for _, total in found]])
    hypotheses = [Hypothesis(0, BEGIN + length, total) for length, total in found]
    assert rank(hypotheses, BEGIN, length_penalty) is hypotheses[expected]


def test_a_text_without_tokens_can_be_ranked():
    assert rank([Hypothesis(0, BEGIN, -1.0, -1.0)], BEGIN, None).length == BEGIN


@pytest.fixture
def beams():
    """Row 1 of 3 beams: `ab` and `ac` part after their first token; `ac` has ended."""
    beams = BeamState.allocate(2, 3, 8, CPU)
    for place, position, token, parent, log_prob in (
        (0, 2, 10, 0, -1.0),
        (1, 2, 20, 0, -2.0),
        (2, 3, 11, 0, -0.5),
        (0, 3, 12, 0, -0.25),
        (1, 3, 21, 1, -3.0),
    ):
        beams.written[1, place, position] = token
        beams.parents[1, place, position] = parent
        beams.log_probs[1, place, position] = log_prob
    beams.sums[1] = torch.tensor([-1.25, -5.0, -1.5])
    return beams


def test_a_text_is_read_back_from_its_last_token(beams):
    text = best_text(beams, 1, BEGIN, 4, None)
    assert (text.tokens, text.log_probs, text.beams) == ((10, 12), (-1.0, -0.25), (0, 0))


def test_a_text_that_has_ended_counts_its_end(beams):
    beams.ended[1], beams.end_beam[1, 0], beams.end_length[1, 0] = 1, 2, 4
    beams.end_sum[1, 0], beams.end_log_prob[1, 0], beams.sums[1] = -1.6, -0.1, -9.0
    text = best_text(beams, 1, BEGIN, 5, None)
    assert text.tokens == (10, 11)
    assert text.log_probs == pytest.approx((-1.0, -0.5, -0.1))
    assert text.beams == (0, 0, 2)


def test_no_more_texts_are_ranked_than_there_are_beams(beams):
    """With three ended, those that go on do not count, however likely."""
    beams.ended[1] = 3
    beams.end_length[1], beams.end_sum[1] = 3, -9.0
    assert best_text(beams, 1, BEGIN, 4, None).tokens == (10,)


def test_a_row_without_beams_has_one_text():
    rows = SequenceState.allocate(1, 8, CPU)
    rows.tokens[0, :5] = torch.tensor([1, 2, 7, 8, 50])
    rows.log_probs[0, 2:5] = -1.0
    ended, cut = only_text(rows, 0, BEGIN, 5, 50), only_text(rows, 0, BEGIN, 4, 50)
    assert (ended.tokens, len(ended.log_probs)) == ((7, 8), 3)
    assert (cut.tokens, len(cut.log_probs), cut.beams) == ((7, 8), 2, (0, 0))
