"""Sentences of a text without timestamps: whole, in order, no longer than their words."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_whispers import SMALL, loaded
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.output.alignment import aligned_words
from whosaid.asr.output.segments import SENTENCE_PAUSE, Segment, split_sentences
from whosaid.transcript import ends_sentence

MODELS = loaded(SMALL, seed=2)
STOP = MODELS.tokenizer.encode(".", add_special_tokens=False)[0]
SAMPLES = np.random.default_rng(0).normal(0, 0.1, 3 * 16_000).astype(np.float32)


def sentences(result, segment, samples=SAMPLES):
    words = aligned_words(result, [segment], samples, MODELS, "en")
    return split_sentences([segment], words, MODELS.special_tokens)


@given(st.lists(st.sampled_from([301, 302, 303, STOP]), min_size=1, max_size=12))
def test_sentences_end_after_full_stops(tokens):
    attention = np.random.default_rng(1).normal(size=(len(tokens), 150)).astype(np.float32)
    result = DecodeResult(tuple(tokens), 0.0, (-0.1,) * len(tokens), 0.0, attention)
    found = sentences(result, Segment(tuple(tokens), 0.0, 3.0))
    assert [token for segment in found for token in segment.tokens] == tokens
    texts = [MODELS.tokenizer.decode(list(segment.tokens)) for segment in found]
    for text, before, after in zip(texts, found, found[1:], strict=False):
        assert ends_sentence(text) or after.start - before.end >= SENTENCE_PAUSE
    assert all(segment.end > segment.start for segment in found)
    assert all(one.start <= other.start for one, other in itertools.pairwise(found))


@pytest.mark.parametrize(
    "text",
    [
        *("no.", ' "No."', "(gone.)", "い。」", "»Nein!«", "चाहिए।", "ነው።", "؟نعم؟ ", "„Ja.“"),
        "ہے\N{ARABIC FULL STOP}",
    ],
)
def test_sentences_end_in_every_script_and_within_quotes(text):
    assert ends_sentence(text)


@pytest.mark.parametrize("text", ["no", "no,", "(no)", "1.5", "…and", ""])
def test_an_unfinished_sentence_has_no_end(text):
    assert not ends_sentence(text)


def test_a_sentence_goes_on_behind_an_initial():
    """A letter and a full stop, and at once the next word."""
    tokens = MODELS.tokenizer.encode(" a J. a.", add_special_tokens=False)
    attention = np.full((len(tokens), 150), -1.0, np.float32)
    letters = [place for place, token in enumerate(tokens) if MODELS.text_of([token]) in "aJ"]
    for place, row in enumerate(letters):
        attention[row, 50 * place : 50 * place + 50] = 3.0
    result = DecodeResult(tuple(tokens), 0.0, (-0.1,) * len(tokens), 0.0, attention)
    (found,) = sentences(result, Segment(tuple(tokens), 0.0, 3.0))
    assert found.tokens == tuple(tokens)


def test_a_segment_without_words_stays_as_it_is():
    result = DecodeResult((), 0.0, (-0.1,), 0.0, np.zeros((1, 150), np.float32))
    empty = Segment((), 0.0, 3.0)
    assert sentences(result, empty) == [empty]


def test_only_a_long_pause_ends_a_sentence():
    words = [301, 302, 303]
    attention = np.full((3, 150), -1.0, np.float32)
    for row, start in enumerate((0, 40, 115)):
        attention[row, start : start + 20] = 3.0
    samples = np.zeros(3 * 16_000, np.float32)
    for start in (0, 40, 115):
        samples[start * 320 : (start + 20) * 320] = SAMPLES[: 20 * 320]
    result = DecodeResult(tuple(words), 0.0, (-0.1,) * 3, 0.0, attention)
    found = sentences(result, Segment(tuple(words), 0.0, 3.0), samples)
    assert [segment.tokens for segment in found] == [(301, 302), (303,)]
    assert [(segment.start, segment.end) for segment in found] == [
        (pytest.approx(0, abs=0.05), pytest.approx(1.2, abs=0.05)),
        (pytest.approx(2.3, abs=0.05), pytest.approx(2.7, abs=0.05)),
    ]
