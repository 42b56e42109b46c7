"""Segments of token sequences, against transformers' own and by their properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_whispers import SMALL, model_of
from whosaid.asr.output.segments import Segment, read_segments

BEGIN = 1000


def at(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


def test_closed_segments():
    found = read_segments([at(0), 5, 6, at(1.2), at(1.8), 7, at(2.9)], BEGIN, 30.0)
    assert found.closed == (Segment((5, 6), 0.0, 1.2), Segment((7,), 1.8, pytest.approx(2.9)))
    assert found.unfinished is None


def test_a_lone_start_is_an_unfinished_segment_from_the_last_end():
    found = read_segments([at(0), 5, at(12), at(12.5)], BEGIN, 30.0)
    assert found.closed == (Segment((5,), 0.0, 12.0),)
    assert found.unfinished == Segment((), 12.0, 30.0)


@pytest.mark.parametrize(
    ("tokens", "seconds", "closed", "unfinished"),
    [
        ([at(0), 5, at(12), at(12.5), 6, 7], 30.0, [((5,), 0.0, 12.0)], ((6, 7), 12.0, 30.0)),
        ([at(0.5), 5, 6], 14.0, [((5, 6), 0.5, 14.0)], None),  # closed by the window
        ([at(0), 5, at(12)], 30.0, [((5,), 0.0, 12.0)], None),  # silence follows
        ([], 30.0, [], None),
        ([at(0)], 30.0, [], None),
    ],
)
def test_text_without_an_end(tokens, seconds, closed, unfinished):
    found = read_segments(tokens, BEGIN, seconds)
    assert found.closed == tuple(Segment(*each) for each in closed)
    assert found.unfinished == (Segment(*unfinished) if unfinished else None)


def test_times_beyond_the_window_are_its_end():
    found = read_segments([at(0), 5, at(9), at(9), 6, at(20), at(20)], BEGIN, 10.0)
    assert [segment.end for segment in found.closed] == [9.0, 10.0]
    assert found.unfinished is None


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(BEGIN, BEGIN + 1500)), max_size=30),
    st.floats(0.1, 30),
)
def test_any_tokens_give_ordered_times_and_lose_no_text(tokens, seconds):
    found = read_segments(tokens, BEGIN, seconds)
    segments = [*found.closed, *([found.unfinished] if found.unfinished else [])]
    kept = [token for segment in segments for token in segment.tokens]
    text = [token for token in tokens if token < BEGIN]
    assert kept == text or (kept == text[: len(kept)] and found.closed[-1].end == seconds)
    assert all(0 <= segment.start <= segment.end <= seconds for segment in segments)


def published_rules(tokens: list[int], begin: int) -> tuple[list[dict], int]:
    """transformers' segments of a window of 30 seconds, and the mel frame at which it continues."""
    model = model_of(SMALL)
    return model._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[torch.tensor(tokens)],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=begin,
        seek_num_frames=torch.tensor([3000]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 0),
    )


@pytest.mark.parametrize(
    "tokens",
    [
        [at(0), 5, at(1), at(1), 6, at(2)],
        [at(0), 5, at(1), at(1.5), 6, at(2), at(2)],
        [at(0), 5, at(1), at(1.5), 6, at(2), at(2.5), 7, 8],
        [at(1), 5, 6],
        [at(0), 5, at(7)],
    ],
)
def test_segments_and_seek_are_those_of_transformers(tokens):
    theirs, seek = published_rules(tokens, BEGIN)
    ours = read_segments(tokens, BEGIN, 30.0)
    text = [[token for token in segment["tokens"].tolist() if token < BEGIN] for segment in theirs]
    assert [list(segment.tokens) for segment in ours.closed] == text
    expected = 3000 if ours.unfinished is None else round(ours.unfinished.start * 100)
    assert int(seek) == expected
