"""Linear layers and attention, nearly all that Whisper computes, as a CPU runs them fastest.

torch multiplies float32 matrices with MKL, which on processors other than Intel's reaches less than
half the speed of oneDNN. torch ships oneDNN as well and uses it for other types. For a decoder,
which multiplies the same weights with few positions again and again, the layout of the weights
matters more: packed in oneDNN's own layout, one position costs half, and the dozens of a large
batch or of drafts to verify cost a third less (`benchmarks/speed/kernels.py`).

The one decision: large weights are packed once, through the operators that torch's own compiler
emits, and kept beside the checkpoint's. With smaller weights a few positions are done before
oneDNN's call is set up. Attention is two products with a softmax between them; torch's fused kernel
saves memory there, not time. Cross-attention K and V are stored transposed: decode steps query only
a few positions. Only rounding differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Found by benchmarks/speed/kernels.py: elements of a weight worth packing; positions from which
# oneDNN is faster on weights in the usual layout; positions up to which attention's second product
# is faster transposed.
PACK_FROM_ELEMENTS, ONEDNN_FROM_POSITIONS, TRANSPOSE_UP_TO_POSITIONS = 1 << 16, 96, 3
# Query positions whose scores are held at once: 3 MB for a window's 1,500 frames, which fit caches.
QUERY_BLOCK = 500
# oneDNN chooses a layout for a number of positions; that for many serves few as well.
PACKED_FOR_POSITIONS = 1_500
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
HAS_MKL: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
AVAILABLE = HAS_ONEDNN and HAS_MKL


class PackedLinear:
    """`F.linear` with given weights: (.., inputs) -> (.., outputs). Inference only: no gradient."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take `weight` (outputs, inputs) and `bias` (outputs,), which must not change later."""
        self.packed = _supported(weight) and weight.numel() >= PACK_FROM_ELEMENTS
        self.weight = weight.detach()
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(
                self.weight.contiguous(), PACKED_FOR_POSITIONS
            )
        self.bias = bias

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply, and add `bias` (outputs,) or else the layer's own."""
        multiply = _onednn_linear if self.packed else _linear
        return multiply(x, self.weight, self.bias if bias is None else bias)


class TransposedLinear:
    """`F.linear` whose result is stored transposed, positions side by side, on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Take `weight` (outputs, inputs) and `bias` (outputs,), which must not change later."""
        self.weight, self.bias = weight.detach(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, positions, inputs) -> (rows, positions, outputs)."""
        if not _supported(x):
            return F.linear(x, self.weight, self.bias)
        rows = [_onednn_linear(self.weight, row, None).add_(self.bias[:, None]) for row in x]
        return torch.stack(rows).transpose(1, 2) if len(rows) > 1 else rows[0].t()[None]


def encoder_batch_size(windows: int, device: torch.device) -> int:
    """How many of so many windows to encode together.

    On a CPU one, which stays in the processor's caches: 16 together take longer than one by one
    (`benchmarks/speed/cpu.py`).
    """
    return 1 if device.type == "cpu" else windows


def empty_transposed(like: Tensor, rows: int, heads: int, positions: int, size: int) -> Tensor:
    """Zeros (rows, heads, positions, size) of the type and device of `like`.

    Stored so that `attention` with few query positions reads them fastest.
    """
    if not _supported(like):
        return like.new_zeros(rows, heads, positions, size)
    return like.new_zeros(rows, heads, size, positions).transpose(2, 3)


def attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`F.scaled_dot_product_attention` without a mask, all (rows, heads, positions, head size)."""
    if not _supported(query):
        return F.scaled_dot_product_attention(query, keys, values)
    if query.shape[2] >= ONEDNN_FROM_POSITIONS:
        return _blockwise_attention(query * _scale(query), keys, values)
    weights = (query * _scale(query) @ keys.transpose(2, 3)).softmax(dim=-1)
    if query.shape[2] <= TRANSPOSE_UP_TO_POSITIONS:
        return (values.transpose(2, 3) @ weights.transpose(2, 3)).transpose(2, 3)
    return weights @ values


class OneDnnOverride(TorchFunctionMode):
    """While entered, this thread's linear layers and attention of many positions run on oneDNN.

    For modules that are not ours: transformers' encoder.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Stand in for torch's functions, one call at a time."""
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, on oneDNN where that is faster."""
    if _supported(x) and x.numel() >= ONEDNN_FROM_POSITIONS * weight.shape[1]:
        return _onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def _attention(query: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
    """`F.scaled_dot_product_attention`; with options other than a scale, torch's own."""
    plain = not any(
        torch.is_tensor(value) or value for name, value in options.items() if name != "scale"
    )
    if not (plain and _supported(query) and query.shape[2] >= ONEDNN_FROM_POSITIONS):
        return F.scaled_dot_product_attention(query, keys, values, **options)
    scale = options.get("scale")
    return _blockwise_attention(query * (_scale(query) if scale is None else scale), keys, values)


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
}


def _blockwise_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of a scaled query, a block of positions of one head of one row at a time."""
    mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
    transposed = values.transpose(2, 3).contiguous()
    for row, head in itertools.product(*map(range, query.shape[:2])):
        targets = torch.split(mixed[row, head], QUERY_BLOCK)
        blocks = torch.split(query[row, head], QUERY_BLOCK)
        key, value = keys[row, head].contiguous(), transposed[row, head]
        for target, block in zip(targets, blocks, strict=True):
            weights = _onednn_linear(block, key, None).softmax(dim=-1)
            target.copy_(_onednn_linear(weights, value, None))
    return mixed


def _scale(query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def _supported(x: Tensor) -> bool:
    return AVAILABLE and x.dtype == torch.float32 and x.device.type == "cpu"


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Contiguous input: oneDNN multiplies strided rows one number at a time."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        x.contiguous(), weight, bias, "none", [], ""
    )
    return product
