"""How many rows are tried: as many as the device says it holds, never again what failed."""

from __future__ import annotations

import functools

import pytest
import torch
from oracle import TINY, models_of

from asr.engine.decode_state import DecodeState
from asr.engine.draft_length import MAX_DRAFTS
from asr.engine.runner import EagerRunner
from asr.engine.state_memory import HEADROOM_BYTES, StateMemory
from asr.model.decoder import Decoder


class Runner(EagerRunner):
    """Counts how often graphs would have been dropped."""

    released = 0

    def release(self, state):
        self.released += 1


@functools.cache
def decoder():
    return Decoder(models_of(TINY).model)


@pytest.fixture
def memory():
    return StateMemory(decoder(), None, Runner())


@pytest.fixture
def on_cuda(monkeypatch, memory):
    """Takes its device for CUDA; a call sets how many rows are free beside the headroom."""
    per_row = DecodeState.bytes_per_row(decoder(), None, MAX_DRAFTS)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 3 * per_row)

    def set_free(rows, cached=0, total=HEADROOM_BYTES):
        memory.device = torch.device("cuda")
        free = HEADROOM_BYTES + int(rows * per_row)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))
        reserved = (3 + cached) * per_row
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)

    return set_free


def fail_beyond(monkeypatch, most):
    """Allocations of more than `most` rows run out of memory. Returns the rows that were tried."""
    allocate, tried = DecodeState.allocate, []

    def limited(main, assistant, rows, drafts, num_beams):
        tried.append(rows)
        if rows > most:
            raise torch.OutOfMemoryError
        return allocate(main, assistant, rows, drafts, num_beams)

    monkeypatch.setattr(DecodeState, "allocate", limited)
    return tried


def marked(state):
    """Tensors of all kinds that a row has."""
    return [state.rows.length, *state.main.cache.keys, *state.main.cache.cross_values]


def test_bytes_of_a_row_are_those_of_its_tensors():
    state = DecodeState.allocate(decoder(), None, 2, MAX_DRAFTS)
    tensors = state.main.cache.tensors
    taken = sum(each.numel() * each.element_size() for each in tensors) / 2
    assert DecodeState.bytes_per_row(decoder(), None, MAX_DRAFTS) == taken


def test_positions_are_aligned_for_attention():
    assert DecodeState.allocate(decoder(), None, 1, MAX_DRAFTS).main.cache.max_len % 16 == 0


def test_rows_that_fit_are_allocated(on_cuda, memory):
    on_cuda(5.5)
    assert memory.ensure_capacity(24).capacity == 5
    memory.release()
    on_cuda(3, cached=4)  # what torch holds and does not use counts
    assert memory.ensure_capacity(24).capacity == 7
    memory.release()
    on_cuda(-5)
    assert memory.ensure_capacity(24).capacity == 1


def test_a_tenth_of_a_large_device_is_left_free(on_cuda, memory):
    per_row = DecodeState.bytes_per_row(decoder(), None, MAX_DRAFTS)
    on_cuda(10, total=10 * HEADROOM_BYTES + 40 * per_row)  # 4 rows more are left free
    assert memory.ensure_capacity(24).capacity == 6


def test_a_state_that_is_large_enough_stays(memory):
    state = memory.ensure_capacity(4)
    dropped = memory.runner.released
    assert memory.ensure_capacity(3) is memory.ensure_capacity(4, live=2) is state
    assert memory.runner.released == dropped


def test_growth_keeps_live_rows_and_drops_the_graphs(memory):
    state = memory.ensure_capacity(4)
    with torch.inference_mode():
        for each in marked(state):
            for row in range(4):
                each[row] = row + 1
    dropped = memory.runner.released
    larger = memory.ensure_capacity(5, live=3)
    assert larger.capacity == 6  # half as large again at least
    for each in marked(larger):
        assert [(row.min(), row.max()) for row in each[:3]] == [(1, 1), (2, 2), (3, 3)]
    assert memory.runner.released == dropped + 1


def test_growth_that_does_not_fit_beside_the_live_rows_is_not_tried(on_cuda, memory, monkeypatch):
    on_cuda(4)
    state = memory.ensure_capacity(4)
    tried = fail_beyond(monkeypatch, 0)
    assert memory.ensure_capacity(8, live=4) is state
    assert tried == []


def test_growth_that_fails_is_not_tried_again(memory, monkeypatch):
    state = memory.ensure_capacity(4)
    tried = fail_beyond(monkeypatch, 4)
    for _ in range(3):
        assert memory.ensure_capacity(8, live=4) is state
    assert tried == [8]
    assert memory.limit.rows == 4


def test_a_batch_that_failed_is_not_tried_again(memory, monkeypatch, caplog):
    tried = fail_beyond(monkeypatch, 20)
    with pytest.raises(torch.OutOfMemoryError):
        memory.ensure_capacity(64)
    memory.limit.halve(64)
    with pytest.raises(torch.OutOfMemoryError):
        memory.ensure_capacity(64)
    memory.limit.halve(32)
    for _ in range(3):
        assert memory.ensure_capacity(64).capacity == 16
        memory.release()
    assert tried == [64, 32, 16, 16, 16]
    assert "64 windows at once do not fit into memory: at most 32" in caplog.text


def test_what_is_lacking_is_what_others_hold(on_cuda, memory):
    assert not memory.lacks(24, 0)  # nobody knows on a CPU
    on_cuda(4)
    assert not memory.lacks(4, 0)
    assert memory.lacks(5, 0)
    memory.ensure_capacity(4)
    on_cuda(2)
    assert not memory.lacks(4, 4)
    assert not memory.lacks(6, 0)  # its own is given back first
    assert memory.lacks(6, 1)  # beside its own
    memory.limit.hold(4)
    assert not memory.lacks(24, 1)
