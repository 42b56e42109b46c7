"""The time base is that of transformers' Whisper: its feature extractor, encoder and tokenizer."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperConfig, WhisperFeatureExtractor

from tests.support.tiny_whispers import SMALL, tokenizer_of
from whosaid import timebase

row = st.lists(st.integers(-200, 0), min_size=3, max_size=3)
evidence = st.lists(row, min_size=1, max_size=6)


def test_the_sampling_rate_is_the_feature_extractors():
    assert WhisperFeatureExtractor().sampling_rate == timebase.SAMPLE_RATE


def test_a_token_covers_one_encoder_position():
    extractor, config = WhisperFeatureExtractor(), WhisperConfig()
    assert config.max_source_positions * timebase.SAMPLES_PER_TOKEN == extractor.n_samples
    assert config.max_source_positions == timebase.TOKENS_PER_SECOND * extractor.chunk_length


@pytest.mark.parametrize("steps", [0, 1, 57, 1500])
def test_timestamp_tokens_are_one_precision_apart(steps):
    tokenizer = tokenizer_of(SMALL)
    begin = tokenizer.convert_tokens_to_ids("<|0.00|>")
    text = tokenizer.decode([begin + steps], decode_with_timestamps=True)
    assert text == f"<|{steps * timebase.TIME_PRECISION:.2f}|>"


@given(st.lists(st.booleans()))
def test_runs_are_where_flags_are_true(values):
    found = timebase.runs(np.array(values, bool)).tolist()
    inside = {place for start, stop in found for place in range(start, stop)}
    assert inside == {place for place, value in enumerate(values) if value}
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))


@settings(max_examples=30)
@given(evidence, st.integers(0, 60))
def test_the_likeliest_path_is_the_best_of_all(rows, cost):
    values = np.array(rows, float)

    def score(path):
        changes = sum(one != other for one, other in pairwise(path))
        return sum(values[index, each] for index, each in enumerate(path)) - cost * changes

    best = max(map(score, product(range(3), repeat=len(rows))))
    assert score(timebase.likeliest_path(values, cost)) == best
