"""Our decoder's hidden states against transformers' for rows that stand at different places."""

from __future__ import annotations

import copy
import dataclasses

import oracle
import pytest
import torch

from tests.support.tiny_whispers import model_of
from whosaid.asr.model import cpu_kernels
from whosaid.asr.model.decoder import Decoder, alignment_heads
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


@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_ragged_rows_rolled_back_and_read_again_equal_a_whole_pass(model, encoded, rows):
    decoder, tokens = (
        Decoder(model),
        torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1)),
    )
    cache = decoder.allocate(3, 30)
    decoder.fill_cross_kv(encoded, cache)
    cache, lengths = cache.view(0, rows), torch.tensor([5, 9, 12])[:rows]
    expected = expected_logits(model, encoded, tokens)
    rubbish = torch.full((rows, 18), 7)
    forward(decoder, rubbish, torch.arange(18).expand(rows, -1), cache)
    forward(decoder, tokens[:rows, :12], torch.arange(12).expand(rows, -1), cache)
    for width in (1, 4, 2):
        positions = lengths[:, None] + torch.arange(width)
        logits = forward(decoder, tokens[:rows].gather(1, positions), positions, cache)
        every = torch.arange(rows)[:, None]
        torch.testing.assert_close(logits, expected[every, positions], atol=1e-9, rtol=1e-9)
        lengths = lengths + max(1, width - 1)


@torch.inference_mode()
def test_a_row_moved_goes_on_where_it_was(model, encoded):
    decoder, tokens = Decoder(model), torch.arange(3 * 6).view(3, 6)
    cache = decoder.allocate(3, 10)
    decoder.fill_cross_kv(encoded, cache)
    forward(decoder, tokens[:, :5], torch.arange(5).expand(3, -1), cache)
    cache.move(2, 0)
    logits = forward(decoder, tokens[2:, 5:], torch.tensor([[5]]), cache.view(0, 1))
    torch.testing.assert_close(
        logits, expected_logits(model, encoded, tokens)[2:, 5:], atol=1e-9, rtol=1e-9
    )


@torch.inference_mode()
def test_places_beyond_the_longest_text_do_not_fail(model, encoded):
    decoder = Decoder(model)
    cache = decoder.allocate(1, decoder.max_positions + 4)
    decoder.fill_cross_kv(encoded[:1], cache)
    positions = decoder.max_positions - 1 + torch.arange(4)[None]
    assert forward(decoder, torch.ones_like(positions), positions, cache).isfinite().all()


@torch.inference_mode()
def test_the_attention_of_chosen_heads_is_that_of_the_tokens_read_last(model, encoded):
    decoder, tokens = Decoder(model, ((1, 1), (0, 1))), torch.arange(3 * 9).view(3, 9)
    cache = decoder.allocate(3, 12)
    decoder.fill_cross_kv(encoded, cache)
    forward(decoder, torch.full((3, 12), 7), torch.arange(12).expand(3, -1), cache)
    forward(decoder, tokens, torch.arange(9).expand(3, -1), cache)
    expected = oracle.eager_copy(model)(
        encoder_outputs=(encoded,), decoder_input_ids=tokens, output_attentions=True
    ).cross_attentions
    cache.move(2, 0)
    for row, source in ((0, 2), (1, 1)):
        attention = decoder.alignment_attention(cache, row, slice(2, 9), 50)
        chosen = torch.stack(
            [expected[layer][source, head, 2:9] for layer, head in ((0, 1), (1, 1))]
        )
        torch.testing.assert_close(attention, chosen, atol=1e-9, rtol=1e-9)


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
    shape = dataclasses.replace(oracle.TINY, text_entries=1200)
    model = model_of(shape, width=128)
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
