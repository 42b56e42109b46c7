"""What attention is made of, against plain definitions: one value, one cell at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.model.alignment_heads import normalize_attention
from asr.output.dtw import dtw


def plain_contrast(attention):
    """(heads, tokens, frames) -> (tokens, frames), head by head and frame by frame."""
    heads, tokens, frames = attention.shape
    smooth = np.zeros((tokens, frames))
    for head in attention:
        typical = head.var(axis=0).mean()
        scaled = (head - head.mean(axis=0)) / np.sqrt(head.var(axis=0) + typical)
        for token in range(tokens):
            mirrored = np.pad(scaled[token], 3, mode="reflect")
            smooth[token] += [
                np.median(mirrored[frame : frame + 7]) / heads for frame in range(frames)
            ]
    return smooth


def test_contrast_is_its_definition():
    attention = torch.rand(
        3, 5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).softmax(dim=2)
    np.testing.assert_allclose(
        normalize_attention(attention).numpy(), plain_contrast(attention.numpy()), atol=1e-5
    )


def test_what_every_token_looks_at_says_nothing():
    attention = torch.rand(2, 4, 30, generator=torch.Generator().manual_seed(0))
    shared = torch.where(torch.arange(30) < 9, 5.0, 0.0)
    torch.testing.assert_close(
        normalize_attention(attention + shared),
        normalize_attention(attention),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("shape", [(2, 1, 9), (2, 3, 1), (1, 2, 2), (1, 3, 5)])
def test_the_smallest_windows_have_a_contrast(shape):
    found = normalize_attention(torch.rand(shape))
    assert found.shape == shape[1:]
    assert found.isfinite().all()


def best_gain(gain, empty):
    """Cell by cell: the most that sharing out the first columns among the first rows can gain."""
    rows, columns = gain.shape
    reached = np.full((rows + 1, columns + 1), -np.inf)
    reached[0, 0] = 0.0
    for row, begin, end in itertools.product(range(rows), range(columns + 1), range(columns + 1)):
        if end >= begin:
            taken = gain[row, begin:end].sum() if end > begin else empty[row]
            reached[row + 1, end] = max(reached[row + 1, end], reached[row, begin] + taken)
    return reached[-1, -1]


@given(st.integers(1, 7), st.integers(1, 9), st.floats(-5, 1), st.integers(0, 2**32 - 1))
def test_no_path_gains_more(rows, columns, least, seed):
    random = np.random.default_rng(seed)
    gain, empty = random.normal(size=(rows, columns)), random.uniform(least - 1, least, rows)
    edges = dtw(gain, empty)
    assert (edges[0], edges[-1]) == (0, columns)
    spans = list(itertools.pairwise(edges))
    assert all(start <= stop for start, stop in spans)
    gained = sum(
        gain[row, start:stop].sum() if stop > start else empty[row]
        for row, (start, stop) in enumerate(spans)
    )
    assert gained == pytest.approx(best_gain(gain, empty))


def test_a_path_follows_the_blocks_of_gain():
    gain = -np.ones((4, 20))
    for row, (start, stop) in enumerate(((0, 3), (3, 11), (11, 12), (12, 20))):
        gain[row, start:stop] = 1
    assert dtw(gain, np.zeros(4)).tolist() == [0, 3, 11, 12, 20]


def test_rows_that_must_not_be_empty_share_too_few_columns():
    edges = dtw(np.zeros((5, 3)), np.array([-9.0, 0.0, -9.0, 0.0, -9.0]))
    assert np.diff(edges).tolist() == [1, 0, 1, 0, 1]
    assert np.diff(dtw(np.zeros((5, 3)), np.full(5, -9.0))).sum() == 3
