"""Sentences of a text without timestamps: whole, in order, no longer than their words."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.engine.request import DecodeResult
from asr.output.segments import Segment
from asr.output.sentences import SENTENCE_ENDS, split_sentences
from testing.tiny_whispers import SMALL, loaded

MODELS = loaded(SMALL, seed=2)
STOP = MODELS.tokenizer.encode(".", add_special_tokens=False)[0]
SAMPLES = np.random.default_rng(0).normal(0, 0.1, 3 * 16_000).astype(np.float32)


@settings(deadline=None)
@given(st.lists(st.sampled_from([301, 302, 303, STOP]), min_size=1, max_size=12))
def test_sentences_are_the_text_cut_after_its_full_stops(tokens):
    attention = np.random.default_rng(1).normal(size=(len(tokens), 150)).astype(np.float32)
    result = DecodeResult(tuple(tokens), 0.0, (-0.1,) * len(tokens), 0.0, attention)
    whole = Segment(tuple(tokens), 0.0, 3.0)
    found = split_sentences(result, [whole], SAMPLES, MODELS, "en")
    assert [token for segment in found for token in segment.tokens] == tokens
    texts = [MODELS.tokenizer.decode(list(segment.tokens)) for segment in found]
    assert all(text.rstrip().endswith(SENTENCE_ENDS) for text in texts[:-1])
    assert all(segment.end > segment.start for segment in found)
    assert all(one.start <= other.start for one, other in itertools.pairwise(found))


def test_a_segment_without_words_stays_as_it_is():
    result = DecodeResult((), 0.0, (-0.1,), 0.0, np.zeros((1, 150), np.float32))
    empty = Segment((), 0.0, 3.0)
    assert split_sentences(result, [empty], SAMPLES, MODELS, "en") == [empty]
