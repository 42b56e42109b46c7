"""How many rows have memory: as many as the device says it holds."""

import functools
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers.oracle import TINY, models_of
from whosaid.asr.engine import memory as memory_module
from whosaid.asr.engine.memory import (
    HEADROOM_BYTES,
    HEADROOM_SHARE,
    HOST_HEADROOM_BYTES,
    HOST_LAST_BYTES,
    StateMemory,
    cuda_rows,
)
from whosaid.asr.engine.request import MAX_ROWS
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder
from whosaid.runtime.errors import is_out_of_memory
from whosaid.runtime.host_memory import HostMemory


class GraphRunner(StepRunner):
    """A runner of graphs, as far as memory goes; `prepared` are the states it was given."""

    on_cuda = True

    def __init__(self):
        super().__init__(None)
        self.prepared = []

    def prepare(self, state, encoder):
        self.prepared.append(state)


@functools.cache
def decoder():
    return Decoder(models_of(TINY).model)


@pytest.fixture
def memory():
    return StateMemory(decoder(), None, StepRunner(None))


@pytest.fixture(autouse=True)
def host(monkeypatch):
    told = SimpleNamespace(memory=None)
    monkeypatch.setattr(memory_module, "host_memory", lambda: told.memory)
    return told


@functools.cache
def per_row():
    return DecodeState.bytes_per_row(decoder(), None)


def tell_cuda(monkeypatch, memory, free, total, cached=0):
    """Take the device for CUDA that has so much free beside 3 rows, and `cached` in torch."""
    memory.device, memory.runner = torch.device("cuda"), GraphRunner()
    values = {"memory_allocated": 3 * per_row(), "memory_reserved": 3 * per_row() + cached}
    values |= {"empty_cache": None, "mem_get_info": (free, total)}
    for name, value in values.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)


@pytest.fixture(params=["cuda", "cpu"])
def set_free(request, monkeypatch, memory, host):

    def set_free(rows, total=HEADROOM_BYTES):
        if request.param == "cuda":
            free = HEADROOM_BYTES + int(rows * per_row())
            tell_cuda(monkeypatch, memory, free, total)
        else:
            host.memory = HostMemory(HOST_HEADROOM_BYTES + int(rows * per_row()), total)

    return set_free


def marked(state):
    return [state.rows.length, *state.cache.text, *state.cache.cross_values]


def test_rows_that_fit_are_allocated(set_free, memory):
    set_free(5.5)
    assert memory.ensure_capacity(24).capacity == 5
    memory.release()
    set_free(-5)  # of the headroom
    assert memory.ensure_capacity(24).capacity == 1


def test_memory_that_torch_caches_counts_as_free(monkeypatch, memory):
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


def test_unknown_host_memory_bounds_no_rows(memory):
    assert not memory.lacks(24)
    assert memory.ensure_capacity(24).capacity == 24


def test_host_keeps_the_last_of_its_memory(memory, host):
    """Nothing else would: the kernel ends a process instead of refusing memory."""
    host.memory = HostMemory(HOST_LAST_BYTES + per_row(), 1 << 40)
    assert memory.ensure_capacity(24).capacity == 1
    memory.release()
    host.memory = HostMemory(HOST_LAST_BYTES + per_row() - 1, 1 << 40)
    with pytest.raises(MemoryError) as caught:
        memory.ensure_capacity(24)
    assert is_out_of_memory(caught.value)
    assert memory.capacity == 0


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
def test_cpu_row_takes_its_memory_at_first_use(memory):
    """Memory of rows not yet written is then not promised to others."""
    memory.ensure_capacity(3)
    first, all_rows = memory.state.cache, memory._all.cache
    assert memory._all.capacity == MAX_ROWS
    for used, each in zip(first.tensors, all_rows.tensors, strict=True):
        if not each.numel():
            continue
        for layer, of_all in zip(used, each, strict=True):
            assert all(pages_of(layer))
            assert not any(pages_of(of_all[len(layer) * 2 :]))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
def test_added_drafter_takes_its_memory_at_once():
    memory = StateMemory(decoder(), decoder(), StepRunner(None))
    memory.ensure_capacity(3)
    assert memory.ensure_drafter()
    (cache,) = memory.state.caches[1:]
    layers = [layer for each in cache.tensors if each.numel() for layer in each]
    assert layers
    assert all(all(pages_of(each)) for each in layers)


def pages_of(tensor):
    """Return whether each whole page of a tensor is present or swapped: bits 63 and 62."""
    size, first = os.sysconf("SC_PAGE_SIZE"), tensor.data_ptr()
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    pages = range(-(-first // size), (first + span * tensor.element_size()) // size)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(8 * pages.start)
        entries = np.frombuffer(file.read(8 * len(pages)), np.uint64)
    assert len(entries) == len(pages)
    return (entries >> 62).tolist()


@pytest.mark.parametrize(
    ("device", "allocator", "returns"),
    [("cpu", memory_module, "return_freed"), ("cuda", torch.cuda, "empty_cache")],
)
def test_released_memory_leaves_the_allocator(memory, monkeypatch, device, allocator, returns):
    returned = []
    monkeypatch.setattr(
        allocator, returns, lambda: returned.append(held() is None and memory.capacity)
    )
    held = weakref.ref(memory.ensure_capacity(4))
    memory.device = torch.device(device)
    memory.release()
    assert returned == [0]  # when it was free


def test_rows_that_are_added_beside_live_ones_move_nothing(set_free, memory):
    set_free(30)
    before = memory.ensure_capacity(4)
    with torch.inference_mode():
        for each in marked(before):
            for row in range(before.capacity):
                each[row] = row + 1
    larger = memory.ensure_capacity(6)
    assert larger.capacity >= 6
    for each, was in zip(marked(larger), marked(before), strict=True):
        assert each.data_ptr() == was.data_ptr()
        assert [(row.min(), row.max()) for row in each[:3]] == [(1, 1), (2, 2), (3, 3)]
    assert memory.ensure_capacity(3) is larger


def test_addresses_cover_the_rows_that_memory_can_hold(memory, host):
    total = 20 * HOST_HEADROOM_BYTES
    host.memory = HostMemory(HOST_HEADROOM_BYTES, total)
    memory.ensure_capacity(24)
    held = min(MAX_ROWS, int(total * (1 - HEADROOM_SHARE)) // per_row())
    assert (memory.capacity, memory._all.capacity) == (1, held)
    host.memory = HostMemory(total, total)
    assert memory.ensure_capacity(24).capacity == min(24, held)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), MemoryError()])
def test_half_of_the_rows_that_cannot_be_allocated_are_tried(memory, monkeypatch, error):
    allocate, tried = DecodeState.allocate, []

    def limited(main, assistant, rows, num_beams):
        tried.append(rows)
        if rows > 20:
            raise error
        return allocate(main, assistant, rows, num_beams)

    monkeypatch.setattr(DecodeState, "allocate", limited)
    assert memory.ensure_capacity(64).capacity == 16
    assert tried == [128, 64, 32, 16]
    memory.release()
    monkeypatch.setattr(DecodeState, "allocate", lambda *_: limited(*_[:2], 21, *_[3:]))
    with pytest.raises(type(error)):
        memory.ensure_capacity(1)


def test_lane_lacks_rows_beyond_the_free_memory(memory, host):
    host.memory = HostMemory(HOST_HEADROOM_BYTES + 4 * per_row(), 1 << 31)
    assert not memory.lacks(4)
    assert memory.lacks(5)
    memory.ensure_capacity(4)
    host.memory = HostMemory(HOST_HEADROOM_BYTES + 2 * per_row(), 1 << 31)
    assert not memory.lacks(6)
    assert memory.lacks(7)


def test_cuda_lane_lacks_memory_only_without_any_row(monkeypatch, memory):
    tell_cuda(monkeypatch, memory, HEADROOM_BYTES, HEADROOM_BYTES)
    assert memory.lacks(1)
    tell_cuda(monkeypatch, memory, HEADROOM_BYTES + per_row(), HEADROOM_BYTES)
    assert not memory.lacks(24)
    memory.ensure_capacity(24)
    tell_cuda(monkeypatch, memory, 0, HEADROOM_BYTES)
    assert not memory.lacks(24)


@pytest.mark.parametrize(
    ("gigabytes", "rows"),
    [(15, (12, 2)), (24, (24, 4)), (39, (48, 8)), (48, (48, 8)), (80, (96, 16))],
)
def test_on_cuda_lanes_share_the_device(monkeypatch, gigabytes, rows):
    """Rows of large-v3: those of five beams take 1.8 times as much."""
    sizes = {1: 322.4, 5: 626.0}
    monkeypatch.setattr(DecodeState, "bytes_per_row", lambda _, __, beams: sizes[beams])
    assert tuple(cuda_rows(decoder(), each, gigabytes << 30) for each in (1, 5)) == rows


def test_graphs_are_captured_when_rows_are_allocated(host, caplog):
    runner, host.memory = GraphRunner(), HostMemory(40 * 10**9, 50 * 10**9)
    caplog.set_level("INFO", "endpoint")
    memory = StateMemory(decoder(), None, runner, most=4, encoder=object())
    assert memory.ensure_capacity(1).capacity == 4
    assert "4 rows with 1 beams hold 0.0 GB; 40.0 of 50.0 GB are free" in caplog.text
    memory.ensure_capacity(3)
    assert runner.prepared == [memory.state]
    memory.release()
    memory.ensure_capacity(1)
    assert len(runner.prepared) == 2
