"""What a decode state allocates for its rows, and the views of it."""

from __future__ import annotations

import oracle
import pytest

from asr.engine.decode_state import ALIGNMENT, DecodeState
from asr.model.decoder import Decoder


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


def test_a_view_and_its_state_share_memory(decoder):
    state = DecodeState.allocate(decoder, None, 4, 0)
    view = state.view(1, 3)
    view.rows.length.fill_(7)
    view.main.cache.keys[0].fill_(1.0)
    assert state.rows.length.tolist() == [1, 7, 7, 1]
    assert [bool(row.any()) for row in state.main.cache.keys[0]] == [False, True, True, False]
