"""Our decoder with its `kv_cache` against transformers, for rows that stand at different places."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from tests.helpers import oracle
from tests.support.tiny_whispers import model_of
from whosaid.asr.model import cpu_kernels
from whosaid.asr.model.decoder import Decoder, alignment_heads, normalize_attention, sharpest_heads
from whosaid.errors import StartError
from whosaid.runtime.device import choose_dtype


@pytest.fixture(scope="module")
def model():
    return oracle.models_of(oracle.TINY).model


def expected_logits(model, encoded, tokens):
    with torch.inference_mode():
        return model(encoder_outputs=(encoded,), decoder_input_ids=tokens).logits


def forward(decoder, tokens, positions, cache):
    return decoder.logits(decoder.forward(tokens, positions, cache, int(positions.max()) + 1))


@pytest.fixture(scope="module")
def encoded():
    return torch.randn(3, 50, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@torch.inference_mode()
def test_ragged_rows_read_again_equal_a_whole_pass(model, encoded):
    decoder, rows, lengths = Decoder(model), 3, torch.tensor([5, 9, 12])
    tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    cache = decoder.allocate(3, 30)
    decoder.fill_cross_kv(encoded, cache)
    expected = expected_logits(model, encoded, tokens)
    forward(decoder, torch.full((rows, 18), 7), torch.arange(18).expand(rows, -1), cache)
    forward(decoder, tokens[:rows, :12], torch.arange(12).expand(rows, -1), cache)
    for width in (1, 4, 2):
        positions = lengths[:, None] + torch.arange(width)
        logits = forward(decoder, tokens[:rows].gather(1, positions), positions, cache)
        every = torch.arange(rows)[:, None]
        torch.testing.assert_close(logits, expected[every, positions], atol=1e-9, rtol=1e-9)
        lengths = lengths + max(1, width - 1)


@pytest.mark.parametrize(
    ("listed", "heads"),
    [
        ([[0, 1], [1, 0]], ((0, 1), (1, 0))),
        ([[0, 1], [25, 3]], ((0, 1),)),
        ([[25, 3]], ((1, 0), (1, 1))),
        (None, ((1, 0), (1, 1))),
    ],
)
def test_heads_that_follow_the_speech(model, listed, heads):
    told = copy.deepcopy(model)
    told.generation_config.alignment_heads = listed
    assert alignment_heads(told) == heads


@pytest.mark.parametrize(("dtype", "largest"), [(torch.bfloat16, 0.05), (torch.int8, 0.1)])
@torch.inference_mode()
def test_in_a_lower_precision_logits_stay_near(dtype, largest, monkeypatch):
    """How far logits may be off: a share of their spread over the vocabulary."""
    name = str(dtype).removeprefix("torch.")
    try:
        choose_dtype(name, torch.device("cpu"))
    except StartError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(cpu_kernels, "INT8_FROM_ELEMENTS", cpu_kernels.PACK_FROM_ELEMENTS)
    model = model_of(dataclasses.replace(oracle.TINY, text_entries=1200), width=128)
    encoded = torch.randn(3, 50, 128, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    expected = expected_logits(model, encoded, tokens)
    decoder = Decoder(model, dtype=dtype)
    assert decoder.output.packed
    cache = decoder.allocate(3, 30)
    decoder.fill_cross_kv(encoded, cache)
    logits = forward(decoder, tokens, torch.arange(20).expand(3, -1), cache)
    assert logits.dtype == torch.float32
    off = (logits - expected).abs()
    assert off.max() > 1e-5  # it is another precision
    assert off.square().mean().sqrt() <= largest * expected.std()
    hidden = decoder.forward(tokens, torch.arange(20).expand(3, -1), cache, 20)
    highest = decoder.logits(hidden).topk(4)
    exact = hidden @ model.get_output_embeddings().weight.t()
    torch.testing.assert_close(highest.values, exact.topk(4).values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(highest.indices, exact.topk(4).indices)
    whole = sum(each.nbytes for each in cache.tensors)
    assert whole == 3 * decoder.cache_bytes_per_row(30)


# Normalised attention


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
    found, expected = map(normalize_attention, (attention + shared, attention))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 1, 9), (2, 3, 1), (1, 2, 2), (1, 3, 5)])
def test_the_smallest_windows_give_finite_values(shape):
    found = normalize_attention(torch.rand(shape))
    assert found.shape == shape[1:]
    assert found.isfinite().all()


def test_sharpest_heads_are_kept_in_any_order():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 7, 40, generator=generator)
    heads = (scores * torch.tensor([1.0, 6.0, 3.0, 9.0, 0.5])[:, None, None]).softmax(dim=2)
    kept = sharpest_heads(heads)
    torch.testing.assert_close(kept, heads[[3, 1, 2]])
    for order in (torch.randperm(5, generator=generator) for _ in range(5)):
        assert torch.equal(sharpest_heads(heads[order]), kept)
    assert torch.equal(sharpest_heads(heads[:1]), heads[:1])
