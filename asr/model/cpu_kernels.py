"""Affine products and attention, which are nearly all that Whisper computes, as a CPU does them
fastest.

torch multiplies float32 matrices with MKL, which on processors other than Intel's reaches less than
half of what oneDNN, which torch ships as well and uses for other types, does. For a decoder, which
multiplies the same weights with a few positions again and again, it matters more how the weights
lie in memory: in oneDNN's own order one position costs half, and the dozens that verifying drafts
or a large batch has cost a third (`benchmarks/products.py`). The one decision: large weights are
laid out in that order once, through the operators that torch's own compiler emits, and kept beside
the checkpoint's. With smaller ones few positions are done before oneDNN's call is set up. Attention
is two products with a softmax between them; torch's fused kernel saves memory there, not time. What
is asked by few positions again and again, the keys and values of the audio, lies across, positions
side by side. Only rounding differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Found by benchmarks/products.py: of a matrix' weights; of positions that meet weights laid out as
# usual, and of those whose attention's second product is faster the other way round.
LARGE, MANY, FEW = 1 << 16, 96, 3
# Positions whose scores are held at once: 3 MB for the 1,500 frames of a window, which stay in the
# processor's caches.
BLOCK = 500
# oneDNN asks how many positions will come; the order it chooses for many serves few as well, not
# the other way round.
LAID_OUT_FOR = 1_500
AVAILABLE: bool = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


class PackedLinear:
    """`F.linear` with given weights: (.., inputs) -> (.., outputs). For inference only: it has no
    gradient.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` (outputs, inputs) and `bias` (outputs,) as in `F.linear`, not to be changed
        later.
        """
        self.laid_out = _served(weight) and weight.numel() >= LARGE
        self.weight = weight.detach()
        if self.laid_out:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(
                self.weight.contiguous(), LAID_OUT_FOR
            )
        self.bias = bias

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, plus `bias` (outputs,) or else the product's own."""
        multiply = _one_dnn if self.laid_out else _linear
        return multiply(x, self.weight, self.bias if bias is None else bias)


class TransposedLinear:
    """`F.linear` whose results lie across, positions side by side, wherever `empty_transposed`
    does.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """`weight` (outputs, inputs) and `bias` (outputs,) as in `F.linear`, not to be changed
        later.
        """
        self.weight, self.bias = weight.detach(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, positions, inputs) -> (rows, positions, outputs)."""
        if not _served(x):
            return F.linear(x, self.weight, self.bias)
        across = [_one_dnn(self.weight, row, None).add_(self.bias[:, None]) for row in x]
        return torch.stack(across).transpose(1, 2) if len(across) > 1 else across[0].t()[None]


def at_once(windows: int, device: torch.device) -> int:
    """How many of so many windows of audio to compute together.

    On a CPU one, which stays in the processor's caches: 16 together take longer than one by one
    (`benchmarks/cpu.py`).
    """
    return 1 if device.type == "cpu" else windows


def empty_transposed(like: Tensor, rows: int, heads: int, positions: int, size: int) -> Tensor:
    """Zeros (rows, heads, positions, size) of the type and device of `like`, lying as `attention`
    asks them fastest.
    """
    if not _served(like):
        return like.new_zeros(rows, heads, positions, size)
    return like.new_zeros(rows, heads, size, positions).transpose(2, 3)


def attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`F.scaled_dot_product_attention` without a mask; everything is (rows, heads, positions, head
    size).
    """
    if not _served(query):
        return F.scaled_dot_product_attention(query, keys, values)
    if query.shape[2] >= MANY:
        return _in_blocks(query * _scale(query), keys, values)
    weights = (query * _scale(query) @ keys.transpose(2, 3)).softmax(dim=-1)
    if query.shape[2] <= FEW:
        return (values.transpose(2, 3) @ weights.transpose(2, 3)).transpose(2, 3)
    return weights @ values


class onednn_override(TorchFunctionMode):
    """While it lasts, this thread's products of many positions are oneDNN's, inside modules that
    are not ours.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Called by torch in place of each of its functions."""
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, wherever it is faster."""
    if _served(x) and x.numel() >= MANY * weight.shape[1]:
        return _one_dnn(x, weight, bias)
    return F.linear(x, weight, bias)


def _attention(query: Tensor, keys: Tensor, values: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
    """`F.scaled_dot_product_attention`; whoever asks for more than another scale gets torch's
    own.
    """
    plain = not any(
        torch.is_tensor(value) or value for name, value in asked.items() if name != "scale"
    )
    if not (plain and _served(query) and query.shape[2] >= MANY):
        return F.scaled_dot_product_attention(query, keys, values, **asked)
    scale = asked.get("scale")
    return _in_blocks(query * (_scale(query) if scale is None else scale), keys, values)


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
}


def _in_blocks(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of a scaled query, some positions of one head of one row at a time."""
    mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
    across = values.transpose(2, 3).contiguous()
    for row, head in itertools.product(*map(range, query.shape[:2])):
        blocks = zip(
            torch.split(mixed[row, head], BLOCK), torch.split(query[row, head], BLOCK), strict=True
        )
        key, value = keys[row, head].contiguous(), across[row, head]
        for target, block in blocks:
            target.copy_(_one_dnn(_one_dnn(block, key, None).softmax(dim=-1), value, None))
    return mixed


def _scale(query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def _served(x: Tensor) -> bool:
    return AVAILABLE and x.dtype == torch.float32 and x.device.type == "cpu"


def _one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rows that do not lie side by side would be multiplied one number at a time."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        x.contiguous(), weight, bias, "none", [], ""
    )
    return product
