"""Affine products, which are nearly all that Whisper computes on a CPU.

torch multiplies float32 matrices with MKL, which on processors other than Intel's reaches less than half of what
oneDNN, which torch ships as well and uses for other types, does: 100 against 235 GFLOP/s on a core of an EPYC
(family 26), for the encoder's shapes as for the projection to a vocabulary of 51,865. The one decision: large products
go to oneDNN through the operator that torch's own compiler emits for them; small ones, where the call would cost more
than the product, stay. Only rounding differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE = 1 << 20  # multiplications, from which on the call pays: measured on the processor above
AVAILABLE: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: (.., inputs) x (outputs, inputs) -> (.., outputs), plus `bias` (outputs,)."""
    if AVAILABLE and x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() * weight.shape[0] >= LARGE:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


class LargeProducts(TorchFunctionMode):
    """While it lasts, `F.linear` of this thread is `linear`: for modules of others, which are left as they are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """Called by torch in place of each of its functions."""
        return (linear if func is F.linear else func)(*args, **(kwargs or {}))
