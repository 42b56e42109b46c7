"""Attention without a mask on CUDA, by the faster of two kernels for its shape.

In torch's FlashAttention a block computes 128 queries. A decoding step has one query a row, so with
many rows nearly all of that computation is wasted. cuDNN's attention reads keys and values at the
speed of the memory, but on other devices than Hopper's it has raised errors, and computed wrong
values (pytorch#162073, pytorch#193893). So it computes only where it was measured, and each shape
only after its result for noise was that of torch's kernel.
"""

import logging
import math
from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from whosaid.runtime.errors import is_device_lost, is_out_of_memory

logger = logging.getLogger("endpoint")

# Shapes for which cuDNN is faster. For fewer rows FlashAttention splits the keys. cuDNN needs 0.3 s
# to prepare a shape, and prompts have any number of positions.
LEAST_ROWS, MOST_POSITIONS = 16, 9
# The major compute capability and the least version of cuDNN that were measured.
MEASURED_CAPABILITY, CUDNN_VERSION = 9, 91_900
MOST_ERROR = 1e-2  # of a shape's result, relative; rounding to float16 makes 1e-3


class CudnnAttention:
    """cuDNN's kernel, for the shapes in which it agrees with torch's.

    A shape is checked at its first use, which is at load: each captured pass runs eagerly first.
    After one wrong result or error no other shape is tried.
    """

    def __init__(self) -> None:
        self._permitted = False
        self._agreed: dict[Hashable, bool] = {}

    def permit(self, permitted: bool) -> None:
        """Check all shapes anew, or compute none: a start without CUDA graphs follows one that may
        have failed in this kernel.
        """
        self._permitted = permitted
        self._agreed.clear()

    def computes(self, query: Tensor, keys: Tensor, values: Tensor) -> bool:
        rows, _, positions, _ = query.shape
        if rows < LEAST_ROWS or positions > MOST_POSITIONS or not self._permitted:
            return False
        if not was_measured(query.device, query.dtype):
            return False
        key = (query.device, query.dtype, query.shape, keys.shape)
        if key not in self._agreed:
            tried = all(self._agreed.values())
            self._agreed[key] = tried and _agrees(_noise_like(query, keys, values))
        return self._agreed[key]


CUDNN = CudnnAttention()


def cuda_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention; all tensors are (rows, heads, positions, head size)."""
    if CUDNN.computes(query, keys, values):
        return attend_by_cudnn(query, keys, values)
    return F.scaled_dot_product_attention(query, keys, values)


def attend_by_cudnn(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    # torch's switches for kernels belong to the whole process, so the operator is called.
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    mixed: Tensor = attend(query, keys, values, None, False)[0]
    return mixed


def was_measured(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether cuDNN's attention for `dtype` was measured to be faster on such a device."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    major = torch.cuda.get_device_capability(device)[0]
    return major == MEASURED_CAPABILITY and (version or 0) >= CUDNN_VERSION


def noise(like: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return numbers in (-1, 1) that depend only on their position and `seed`."""
    numbers = torch.arange(math.prod(shape), device=like.device, dtype=torch.float32)
    return ((numbers * 12.9898 + seed).sin() * 43_758.5453).frac().to(like.dtype).view(shape)


def _noise_like(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return noise in the layouts of `tensors`, which differs by row and head. Made as a product,
    it needs little memory besides.
    """
    made = list[Tensor]()
    for seed, each in enumerate(tensors):
        rows, heads, positions, size = each.shape
        by_row = noise(each, (rows, 1, positions, size), seed)
        by_head = noise(each, (1, heads, 1, size), seed + len(tensors))
        made.append(torch.mul(by_row, by_head, out=torch.empty_like(each)))
    query, keys, values = made
    return query, keys, values


def _agrees(inputs: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Return whether cuDNN computes what torch's kernel does; if not, log why. Raises the errors of
    memory that runs out and of a lost device.
    """
    query, keys, values = inputs
    expected = F.scaled_dot_product_attention(query, keys, values).float()
    try:
        found = attend_by_cudnn(query, keys, values).float()
        wrong = float((found - expected).norm() / expected.norm())
    except RuntimeError as error:
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if wrong < MOST_ERROR:
            return True
        reason = f"its result is off by {wrong:.0%}"
    logger.warning("cuDNN's attention is not used: %s", reason)
    return False
