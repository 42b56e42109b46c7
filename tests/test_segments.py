"""Segments of token sequences, against transformers' own and by their properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_whispers import SMALL, model_of
from whosaid.asr.output.segments import Segment, read_segments

BEGIN = 1000


def at(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


@pytest.mark.parametrize(
    ("tokens", "seconds", "closed", "unfinished"),
    [
        ([at(0), 5, at(12), at(12.5)], 30.0, [((5,), 0.0, 12.0)], [((), 12.0, 30.0)]),
        ([at(0), 5, at(12), at(12.5), 6, 7], 30.0, [((5,), 0.0, 12.0)], [((6, 7), 12.0, 30.0)]),
        ([at(0.5), 5, 6], 14.0, [((5, 6), 0.5, 14.0)], []),  # closed by the window
        ([at(0), 5, at(12)], 30.0, [((5,), 0.0, 12.0)], []),  # silence follows
        ([], 30.0, [], []),
        ([at(0)], 30.0, [], []),
    ],
)
def test_text_without_an_end(tokens, seconds, closed, unfinished):
    expected = tuple(tuple(Segment(*each) for each in part) for part in (closed, unfinished))
    assert read_segments(tokens, BEGIN, seconds) == expected


def test_times_beyond_the_window_are_its_end():
    closed, unfinished = read_segments([at(0), 5, at(9), at(9), 6, at(20), at(20)], BEGIN, 10.0)
    assert [segment.end for segment in closed] == [9.0, 10.0]
    assert unfinished == ()


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(BEGIN, BEGIN + 1500)), max_size=30),
    st.floats(0.1, 30),
)
def test_tokens_give_ordered_times_and_lose_no_text(tokens, seconds):
    closed, unfinished = read_segments(tokens, BEGIN, seconds)
    segments = closed + unfinished
    kept = [token for segment in segments for token in segment.tokens]
    text = [token for token in tokens if token < BEGIN]
    assert kept == text or (kept == text[: len(kept)] and closed[-1].end == seconds)
    assert all(0 <= segment.start <= segment.end <= seconds for segment in segments)


def published_rules(tokens: list[int], begin: int) -> tuple[list[dict], int]:
    """transformers' segments of a window of 30 seconds, and the mel frame at which it continues."""
    model = model_of(SMALL)
    return model._retrieve_segment(
        seek_sequence=torch.tensor(tokens), seek_outputs=[torch.tensor(tokens)],
        time_offset=torch.zeros(1, dtype=torch.float64), timestamp_begin=begin,
        seek_num_frames=torch.tensor([3000]), time_precision=0.02, time_precision_features=0.01,
        input_stride=2, prev_idx=0, idx=0, return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 0),
    )  # fmt: skip


@pytest.mark.parametrize(
    "tokens",
    [
        *([at(0), 5, at(1), at(1), 6, at(2)], [at(0), 5, at(1), at(1.5), 6, at(2), at(2)]),
        [at(0), 5, at(1), at(1.5), 6, at(2), at(2.5), 7, 8],
        *([at(1), 5, 6], [at(0), 5, at(7)]),
    ],
)
def test_segments_and_seek_are_those_of_transformers(tokens):
    theirs, seek = published_rules(tokens, BEGIN)
    closed, unfinished = read_segments(tokens, BEGIN, 30.0)
    text = [[token for token in segment["tokens"].tolist() if token < BEGIN] for segment in theirs]
    assert [list(segment.tokens) for segment in closed] == text
    assert int(seek) == (round(unfinished[0].start * 100) if unfinished else 3000)
