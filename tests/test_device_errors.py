"""Texts of real failures, sorted into what a smaller batch mends and what ends the process."""

import pytest
import torch

from whosaid.runtime.errors import is_device_lost, is_out_of_memory

ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", RuntimeError)
TOO_LITTLE_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    ACCELERATOR_ERROR("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
]
LOST = [ACCELERATOR_ERROR("CUDA error: an illegal memory access was encountered")]
LOST.append(RuntimeError("CUDA error: device-side assert triggered"))


class AcceleratorError(Exception):
    """Another library's class of the same name as torch's."""


@pytest.mark.parametrize("error", TOO_LITTLE_MEMORY, ids=str)
def test_too_little_memory_is_not_a_lost_device(error):
    assert is_out_of_memory(error)
    assert not is_device_lost(error)


@pytest.mark.parametrize("error", LOST, ids=str)
def test_sticky_errors_end_the_process(error):
    assert is_device_lost(error)
    assert not is_out_of_memory(error)


def test_other_errors_are_neither():
    named_alike = [KeyError("CUDA error"), AcceleratorError("CUDA error")]
    for error in (ValueError("out of memory"), RuntimeError("shapes do not match"), *named_alike):
        assert not is_out_of_memory(error)
        assert not is_device_lost(error)


def test_a_real_allocation_that_fails_counts():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
