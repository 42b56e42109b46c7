"""Normalised attention, against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from whosaid.asr.model.decoder import normalize_attention


def expected_attention(attention):
    """(heads, tokens, frames) -> (tokens, frames), one head and one frame at a time."""
    heads, tokens, frames = attention.shape
    smooth = np.zeros((tokens, frames))
    for head in attention:
        typical = head.var(axis=0).mean()
        scaled = (head - head.mean(axis=0)) / np.sqrt(head.var(axis=0) + typical)
        for token in range(tokens):
            mirrored = np.pad(scaled[token], 3, mode="reflect")
            medians = [np.median(mirrored[frame : frame + 7]) for frame in range(frames)]
            smooth[token] += np.array(medians) / heads
    return smooth


def test_equal_to_its_definition():
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(3, 5, 40, generator=generator, dtype=torch.float64).softmax(dim=2)
    expected = expected_attention(attention.numpy())
    np.testing.assert_allclose(normalize_attention(attention).numpy(), expected, atol=1e-5)


def test_frames_that_all_tokens_attend_to_have_no_effect():
    attention = torch.rand(2, 4, 30, generator=torch.Generator().manual_seed(0))
    shared = torch.where(torch.arange(30) < 9, 5.0, 0.0)
    torch.testing.assert_close(
        normalize_attention(attention + shared),
        normalize_attention(attention),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("shape", [(2, 1, 9), (2, 3, 1), (1, 2, 2), (1, 3, 5)])
def test_the_smallest_windows_give_finite_values(shape):
    found = normalize_attention(torch.rand(shape))
    assert found.shape == shape[1:]
    assert found.isfinite().all()
