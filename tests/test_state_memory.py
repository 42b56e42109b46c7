"""How many rows are tried: as many as the device says it holds, never again what failed."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracle import TINY, models_of

from asr.engine import state_memory
from asr.engine.decode_state import DecodeState
from asr.engine.drafters import MAX_DRAFTS
from asr.engine.runner import StepRunner
from asr.engine.state_memory import (
    HEADROOM_BYTES,
    HOST_HEADROOM_BYTES,
    HOST_LAST_BYTES,
    StateMemory,
)
from asr.model.decoder import Decoder
from runtime.errors import is_out_of_memory
from runtime.host_memory import HostMemory


class Runner(StepRunner):
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


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """What the host tells: nothing, until a test sets it."""
    told = SimpleNamespace(memory=None)
    monkeypatch.setattr(state_memory, "host_memory", lambda: told.memory)
    return told


@functools.cache
def per_row():
    return DecodeState.bytes_per_row(decoder(), None, MAX_DRAFTS)


def tell_cuda(monkeypatch, memory, free, total, cached=0):
    """Take the device for CUDA that has so much free beside 3 rows, and `cached` in torch."""
    memory.device = torch.device("cuda")
    values = {
        "empty_cache": None,
        "memory_allocated": 3 * per_row(),
        "memory_reserved": 3 * per_row() + cached,
        "mem_get_info": (free, total),
    }
    for name, value in values.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)


@pytest.fixture(params=["cuda", "cpu"])
def set_free(request, monkeypatch, memory, host):
    """Sets how many rows are free beside the headroom, on either device."""

    def set_free(rows, total=HEADROOM_BYTES):
        if request.param == "cuda":
            free = HEADROOM_BYTES + int(rows * per_row())
            tell_cuda(monkeypatch, memory, free, total)
        else:
            host.memory = HostMemory(HOST_HEADROOM_BYTES + int(rows * per_row()), total)

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


def test_rows_that_fit_are_allocated(set_free, memory):
    set_free(5.5)
    assert memory.ensure_capacity(24).capacity == 5
    memory.release()
    set_free(-5)  # of the headroom
    assert memory.ensure_capacity(24).capacity == 1


def test_what_torch_holds_on_cuda_and_does_not_use_counts_as_free(monkeypatch, memory):
    tell_cuda(monkeypatch, memory, HEADROOM_BYTES + 3 * per_row(), HEADROOM_BYTES, 4 * per_row())
    assert memory.ensure_capacity(24).capacity == 7


@pytest.mark.parametrize(
    ("device", "least"), [("cuda", HEADROOM_BYTES), ("cpu", HOST_HEADROOM_BYTES)]
)
def test_a_tenth_of_a_large_device_is_left_free(monkeypatch, memory, host, device, least):
    free, total = least + 10 * per_row(), 10 * least + 40 * per_row()  # 4 rows more are left free
    if device == "cuda":
        tell_cuda(monkeypatch, memory, free, total)
    else:
        host.memory = HostMemory(free, total)
    assert memory.ensure_capacity(24).capacity == 6


def test_where_nobody_knows_what_the_host_has_all_rows_are_allocated(memory):
    assert not memory.lacks(24, 0, 0)
    assert memory.rows_beside(24) == 24
    assert memory.ensure_capacity(24).capacity == 24


def test_a_host_that_has_the_last_of_its_memory_left_refuses_a_row(memory, host):
    """Nobody else would: the kernel ends a process rather than refuse it memory."""
    host.memory = HostMemory(HOST_LAST_BYTES + per_row(), 1 << 40)
    assert memory.ensure_capacity(24).capacity == 1
    memory.release()
    host.memory = HostMemory(HOST_LAST_BYTES + per_row() - 1, 1 << 40)
    with pytest.raises(MemoryError) as caught:
        memory.ensure_capacity(24)
    assert is_out_of_memory(caught.value)
    assert memory.capacity == 0


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
def test_what_a_state_holds_on_a_cpu_is_taken_from_the_host_at_once(memory):
    """So that no row is promised that others have yet to write."""
    state = memory.ensure_capacity(128)
    for each in state.main.cache.tensors:
        assert in_memory(each)


def in_memory(tensor):
    """Whether every page of a tensor is there: bit 63 of its entry, or 62 where it was swapped."""
    size, first = os.sysconf("SC_PAGE_SIZE"), tensor.untyped_storage().data_ptr()
    pages = range(first // size, (first + tensor.untyped_storage().nbytes() - 1) // size + 1)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(8 * pages.start)
        entries = np.frombuffer(file.read(8 * len(pages)), np.uint64)
    return len(entries) == len(pages) and bool(np.all(entries >> 62))


def test_what_is_given_back_on_a_cpu_leaves_the_allocator(memory, monkeypatch):
    returned = []
    monkeypatch.setattr(
        state_memory, "return_freed", lambda: returned.append(held() is None and memory.capacity)
    )
    held = weakref.ref(memory.ensure_capacity(4))
    memory.release()
    assert returned == [0]  # when it was free


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


def test_growth_that_does_not_fit_beside_the_live_rows_is_not_tried(set_free, memory, monkeypatch):
    set_free(4)
    state = memory.ensure_capacity(4)
    set_free(5.5)
    tried = fail_beyond(monkeypatch, 0)
    assert memory.ensure_capacity(8, live=4) is state
    assert tried == []


def test_beside_live_rows_it_grows_as_far_as_memory_allows(set_free, memory):
    """By half at least, for each time is a copy; a row must not stay alone for long."""
    set_free(20)
    memory.ensure_capacity(1)
    assert memory.ensure_capacity(24, live=1).capacity == 20
    set_free(29)
    assert memory.ensure_capacity(40, live=20).capacity == 20
    set_free(30)
    assert memory.ensure_capacity(40, live=20).capacity == 30


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


def test_what_is_lacking_is_what_others_hold(set_free, memory):
    set_free(4)
    assert not memory.lacks(4, 0, 0)
    assert memory.lacks(5, 0, per_row())
    memory.ensure_capacity(4)
    assert memory.held == 4 * per_row()
    set_free(2)
    assert not memory.lacks(4, 4, 9 * per_row())
    assert not memory.lacks(6, 0, 9 * per_row())  # its own is given back first
    assert memory.lacks(6, 1, 4 * per_row())  # beside its own
    assert memory.rows_beside(3) == 3
    assert memory.rows_beside(6) == 4
    memory.limit.hold(4)
    assert not memory.lacks(24, 1, 99 * per_row())


@pytest.mark.parametrize("free", range(5))
@pytest.mark.parametrize("idle", range(5))
@pytest.mark.parametrize("wanted", [3, 4, 9])
def test_beside_live_rows_nothing_is_lacking_with_which_it_would_not_grow(
    set_free, memory, free, idle, wanted
):
    """Nor without which it grows: what others hold is taken once, or it stays theirs."""
    set_free(2)
    memory.ensure_capacity(2)
    set_free(free)
    lacks = memory.lacks(wanted, 2, idle * per_row())
    grows = memory.ensure_capacity(wanted, live=2).capacity > 2
    set_free(free + idle)
    would_grow = memory.ensure_capacity(wanted, live=2).capacity > 2
    assert lacks == (would_grow and not grows)
