"""What a decode state allocates for its rows, the views of it, and rows that move."""

from __future__ import annotations

import oracle
import pytest
import torch

from whosaid.asr.checkpoint.medusa import BLOCK
from whosaid.asr.engine.drafters import MedusaDrafter, draft_model
from whosaid.asr.engine.state import ALIGNMENT, DecodeState
from whosaid.asr.model.decoder import Decoder, alignment_heads


@pytest.fixture(scope="module")
def decoder():
    return Decoder(oracle.models_of(oracle.TINY).model)


@pytest.mark.parametrize("drafts", [0, 2, 10])
def test_a_row_holds_the_longest_text_and_its_drafts(decoder, drafts):
    state = DecodeState.allocate(decoder, decoder, 2, drafts)
    assert state.capacity == 2
    max_len = state.main.cache.max_len
    assert max_len >= decoder.max_positions + drafts + 1
    assert max_len % ALIGNMENT == 0
    assert state.rows.tokens.shape == (2, max_len)
    assert state.drafter.cache.max_len == max_len
    per_row = 2 * decoder.cache_bytes_per_row(max_len)
    assert DecodeState.bytes_per_row(decoder, decoder, drafts) == per_row


def state_of(kind):
    """Five rows with an assistant, with Medusa heads behind a further layer, or with beams."""
    models = oracle.models_of(oracle.TINY)
    if kind == "heads":
        models = oracle.random_heads(models, 3, BLOCK)
    main = Decoder(models.model, alignment_heads(models.model))
    drafts = {"heads": draft_model(models, main), "assistant": main}.get(kind)
    return DecodeState.allocate(main, drafts, 5, 2, 3 if kind == "beams" else 1)


def tensors_by_row(state):
    """All that a state holds, the rows first."""
    found = [*state.rows.tensors, *(state.beams.tensors if state.beams else [])]
    if isinstance(state.drafter, MedusaDrafter):
        found.append(state.drafter.newest)
    found += [each.transpose(0, 1) for cache in state.caches for each in cache._by_row()]
    return [each for each in found if each.numel()]


@pytest.mark.parametrize("kind", ["assistant", "heads", "beams"])
@pytest.mark.parametrize(("sources", "targets"), [([4], [1]), ([3, 4], [0, 2])])
def test_rows_are_moved_with_all_that_they_hold(kind, sources, targets):
    state = state_of(kind)
    tensors = tensors_by_row(state)
    before = []
    for each in tensors:
        numbers = torch.arange(each.numel()).view(each.shape)
        each.copy_(numbers % 2 if each.dtype == torch.bool else numbers)
        before.append(each.clone())
    with torch.inference_mode():
        state.move(sources, targets)
    rows = [dict(zip(targets, sources, strict=True)).get(row, row) for row in range(5)]
    for each, was in zip(tensors, before, strict=True):
        assert torch.equal(each, was[rows])
