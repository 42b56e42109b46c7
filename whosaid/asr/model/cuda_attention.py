"""Attention without a mask on CUDA, by the faster of two kernels for its shape.

torch chooses FlashAttention for half precision. A block of FlashAttention computes 128 queries,
and keys are split among blocks only if rows and heads are too few to occupy the device. A decoding
step has one query a row, so with many rows nearly all of that computation is wasted. cuDNN's
attention reads keys and values at the speed of the memory (docs/gpu.md has the times).
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Shapes for which cuDNN is faster. For fewer rows FlashAttention splits the keys. cuDNN needs 0.3 s
# to prepare a shape, and prompts have any number of positions.
LEAST_ROWS, MOST_POSITIONS = 16, 9
# The compute capability and the version of cuDNN that were measured.
CAPABILITY, CUDNN_VERSION = (9, 0), 91_900


def cuda_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention; all tensors are (rows, heads, positions, head size)."""
    rows, _, positions, _ = query.shape
    few_queries = rows >= LEAST_ROWS and positions <= MOST_POSITIONS
    if few_queries and cudnn_computes(query.device, query.dtype):
        # torch's switches for kernels belong to the whole process, so the operator is called.
        attend = torch.ops.aten._scaled_dot_product_cudnn_attention
        mixed: Tensor = attend(query, keys, values, None, False)[0]
        return mixed
    return F.scaled_dot_product_attention(query, keys, values)


@cache
def cudnn_computes(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether cuDNN's attention for `dtype` was measured to be faster on such a device."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    capability = torch.cuda.get_device_capability(device)
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return capability >= CAPABILITY and (version or 0) >= CUDNN_VERSION
