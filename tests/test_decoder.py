"""Our decoder's hidden states against transformers' for rows that stand at different places."""

from __future__ import annotations

import oracle
import pytest
import torch

from asr.decoder import Decoder


@pytest.fixture(scope="module")
def model():
    return oracle.models_of(oracle.TINY).model


def expected_logits(model, encoded, tokens):
    with torch.inference_mode():
        return model(encoder_outputs=(encoded,), decoder_input_ids=tokens).logits


def read(decoder, tokens, positions, cache):
    return decoder.logits(decoder.read(tokens, positions, cache, int(positions.max()) + 1))


@pytest.fixture(scope="module")
def encoded():
    return torch.randn(3, 50, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_ragged_rows_rolled_back_and_read_again_equal_a_whole_pass(model, encoded, rows):
    decoder, tokens = Decoder(model), torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    cache = decoder.allocate(3, 30)
    decoder.listen(encoded, cache)
    cache, lengths = cache.view(0, rows), torch.tensor([5, 9, 12])[:rows]
    expected = expected_logits(model, encoded, tokens)
    rubbish = torch.full((rows, 18), 7)
    read(decoder, rubbish, torch.arange(18).expand(rows, -1), cache)
    read(decoder, tokens[:rows, :12], torch.arange(12).expand(rows, -1), cache)
    for width in (1, 4, 2):
        positions = lengths[:, None] + torch.arange(width)
        logits = read(decoder, tokens[:rows].gather(1, positions), positions, cache)
        every = torch.arange(rows)[:, None]
        torch.testing.assert_close(logits, expected[every, positions], atol=1e-9, rtol=1e-9)
        lengths = lengths + max(1, width - 1)


@torch.inference_mode()
def test_a_row_moved_goes_on_where_it_was(model, encoded):
    decoder, tokens = Decoder(model), torch.arange(3 * 6).view(3, 6)
    cache = decoder.allocate(3, 10)
    decoder.listen(encoded, cache)
    read(decoder, tokens[:, :5], torch.arange(5).expand(3, -1), cache)
    cache.move(2, 0)
    logits = read(decoder, tokens[2:, 5:], torch.tensor([[5]]), cache.view(0, 1))
    torch.testing.assert_close(logits, expected_logits(model, encoded, tokens)[2:, 5:], atol=1e-9, rtol=1e-9)


@torch.inference_mode()
def test_places_beyond_the_longest_text_do_not_fail(model, encoded):
    decoder = Decoder(model)
    cache = decoder.allocate(1, decoder.length + 4)
    decoder.listen(encoded[:1], cache)
    positions = decoder.length - 1 + torch.arange(4)[None]
    assert read(decoder, torch.ones_like(positions), positions, cache).isfinite().all()
