"""Allocates a decode state's rows, and moves rows."""

import pytest
import torch

from tests.helpers import oracle
from whosaid.asr.checkpoint.medusa import BLOCK, HEADS_ONLY
from whosaid.asr.engine.drafters import MAX_DRAFTS, MedusaDrafter, draft_model
from whosaid.asr.engine.state import ALIGNMENT, DecodeState
from whosaid.asr.model.decoder import Decoder, alignment_heads

ROWS = 5
KINDS = ["assistant", BLOCK, HEADS_ONLY, "beams"]


def state_of(kind):
    """Rows with an assistant, with Medusa heads, or with beams; and the bytes of each."""
    models = oracle.models_of(oracle.TINY)
    if kind in (BLOCK, HEADS_ONLY):
        models = oracle.random_heads(models, 3, kind)
    main = Decoder(models.model, alignment_heads(models.model))
    drafts = main if kind == "assistant" else draft_model(models, main)
    beams = 3 if kind == "beams" else 1
    state = DecodeState.allocate(main, drafts, ROWS, beams)
    return state, DecodeState.bytes_per_row(main, drafts, beams)


@pytest.mark.parametrize("kind", KINDS)
def test_row_holds_the_longest_text_in_predicted_bytes(kind):
    state, per_row = state_of(kind)
    max_len = state.cache.max_len
    assert max_len >= state.decoder.max_positions + MAX_DRAFTS + 1
    assert max_len % ALIGNMENT == 0
    assert state.rows.tokens.shape == (ROWS, max_len)
    taken = sum(each.nbytes for cache in state.caches for each in cache.tensors)
    if isinstance(state.drafter, MedusaDrafter):
        taken += state.drafter.newest.nbytes
        assert (state.drafter.cache is None) == (kind == HEADS_ONLY)
    assert taken == ROWS * per_row


def tensors_by_row(state):
    """Return all tensors of a state, rows first."""
    found = [*state.rows.tensors, *(state.beams.tensors if state.beams else [])]
    if isinstance(state.drafter, MedusaDrafter):
        found.append(state.drafter.newest)
    found += [each.transpose(0, 1) for cache in state.caches for each in cache._by_row()]
    return [each for each in found if each.numel()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sources", "targets"), [([4], [1]), ([3, 4], [0, 2])])
def test_rows_are_moved_with_all_that_they_hold(kind, sources, targets):
    state, _ = state_of(kind)
    tensors = tensors_by_row(state)
    before = []
    for each in tensors:
        numbers = torch.arange(each.numel()).view(each.shape)
        each.copy_(numbers % 2 if each.dtype == torch.bool else numbers)
        before.append(each.clone())
    with torch.inference_mode():
        state.move(sources, targets)
    rows = [dict(zip(targets, sources, strict=True)).get(row, row) for row in range(ROWS)]
    for each, was in zip(tensors, before, strict=True):
        assert torch.equal(each, was[rows])
