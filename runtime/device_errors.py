"""What a device's failure means: too little memory, which a smaller batch mends, or a lost device.

PyTorch reports the same condition in several ways. Its caching allocator raises OutOfMemoryError,
CUDA's own calls (instantiating a graph, for one) raise AcceleratorError with CUDA's text, cuBLAS
and the CPU's allocator plain RuntimeErrors. Nobody else looks at those texts.
"""

from __future__ import annotations

import torch

from runtime.versions import is_accelerator_error

# Texts of CUDA, cuBLAS, cuDNN and of torch's CPU allocator.
OUT_OF_MEMORY = ("out of memory", "alloc_failed", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less work at once may succeed where `error` was raised."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(t in str(error).lower() for t in OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether the process can no longer use its device.

    CUDA errors such as an illegal memory access are sticky: every later call in the process fails
    with the same error, and only a new process can go on.
    """
    if is_out_of_memory(error):
        return False
    if is_accelerator_error(error):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith("CUDA error")
