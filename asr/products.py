"""Affine products, which are nearly all that Whisper computes on a CPU.

torch multiplies float32 matrices with MKL, which on processors other than Intel's reaches less than half of what
oneDNN, which torch ships as well and uses for other types, does: 100 against 235 GFLOP/s on a core of an EPYC
(family 26) for the encoder's shapes, and a third of it where a decoder reads a few tokens, which is what verifying
drafts is. The one decision: where oneDNN was found faster, products go to it, through the operator that torch's own
compiler emits for them. Between a dozen positions and a hundred it was slower, up to 2.7 times, and small weights are
multiplied before its call is set up; both stay with MKL. Only rounding differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Measured on the processor above: numbers of positions, and of a matrix' weights, from or up to which oneDNN is faster.
FEW, MANY = 12, 96
LARGE, LARGE_ALONE, HUGE = 1 << 18, 1 << 19, 1 << 23
AVAILABLE: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: (.., inputs) x (outputs, inputs) -> (.., outputs), plus `bias` (outputs,)."""
    if AVAILABLE and x.dtype == torch.float32 and x.device.type == "cpu" and _pays(x, weight):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


def _pays(x: Tensor, weight: Tensor) -> bool:
    positions, weights = x.numel() // weight.shape[1], weight.numel()
    if positions > FEW:
        return positions >= MANY or weights >= HUGE
    return weights >= (LARGE if positions > 1 else LARGE_ALONE)


class LargeProducts(TorchFunctionMode):
    """While it lasts, `F.linear` of this thread is `linear`: for modules of others, which are left as they are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """Called by torch in place of each of its functions."""
        return (linear if func is F.linear else func)(*args, **(kwargs or {}))
