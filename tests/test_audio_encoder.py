"""AudioEncoder against transformers' encoder with the same weights."""

from __future__ import annotations

import pytest
import torch

from tests.support.tiny_whispers import Published, model_of
from whosaid.asr.model.encoder import LARGEST_HALF, AudioEncoder
from whosaid.errors import StartError
from whosaid.runtime.device import choose_dtype

SHAPE = Published(text_entries=300, languages=4, seconds=4)


def whisper(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return model_of(SHAPE, width=64, dtype=dtype)


def features(windows: int, frames: int = 400) -> torch.Tensor:
    return torch.randn(windows, 80, frames, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("windows", [1, 3])
@torch.inference_mode()
def test_it_is_transformers_to_rounding(windows):
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        model, read = whisper(dtype), features(windows).to(dtype)
        found = AudioEncoder(model).forward(read)
        expected = model.get_encoder()(read).last_hidden_state
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@torch.inference_mode()
def test_with_products_in_bfloat16_it_is_transformers_to_their_rounding():
    try:
        choose_dtype("bfloat16", torch.device("cpu"))
    except StartError as error:
        pytest.skip(str(error))
    model, read = whisper(), features(1)
    found = AudioEncoder(model, torch.bfloat16).forward(read)
    expected = model.get_encoder()(read).last_hidden_state
    assert found.dtype == torch.float32
    assert 1e-5 < (found - expected).abs().max() < 0.05


@torch.inference_mode()
def test_fewer_frames_have_the_first_positions():
    """As an encoder made for so many has them."""
    model, read = whisper(torch.float64), features(2, 200).double()
    found, theirs = AudioEncoder(model).forward(read), model.get_encoder()
    theirs.config.max_source_positions = 100
    theirs.embed_positions = torch.nn.Embedding.from_pretrained(theirs.embed_positions.weight[:100])
    torch.testing.assert_close(found, theirs(read).last_hidden_state, rtol=0, atol=1e-11)


@torch.inference_mode()
def test_what_half_precision_cannot_hold_is_clamped():
    model = whisper().half()
    model.get_encoder().layers[-1].fc2.bias[3] = torch.finfo(torch.float16).max
    found = AudioEncoder(model).layers[-1].forward(torch.full((1, 5, 64), 60).half())
    assert (found[..., 3] == LARGEST_HALF).all()
    assert (found[..., :3].abs() < 100).all()
