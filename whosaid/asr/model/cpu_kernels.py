"""Fast linear layers and attention for CPUs, which are nearly all of Whisper's computation.

torch multiplies float32 matrices with MKL, which reaches less than half the speed of oneDNN on
processors other than Intel's. Weights packed in oneDNN's own layout halve the time of one position,
and save a third for the dozens of positions of a large batch or of drafts. Large weights are packed
once, with the operators that torch's own compiler emits. Attention is two products with a softmax
between them: torch's fused kernel saves memory on a CPU, not time.

These operators may change with torch: after an upgrade run tests/test_cpu_kernels.py, which
compares each with torch's own. If one is gone, set AVAILABLE to False: all products are then
torch's own.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from whosaid.asr.checkpoint.weights import Weights
from whosaid.asr.model.cuda_attention import cuda_attention
from whosaid.asr.model.kv_cache import zeros
from whosaid.runtime.device import HAS_ONEDNN
from whosaid.runtime.host_memory import use_large_pages

# Timed interleaved with torch's own: the smallest weight worth packing, in elements; the
# positions from which oneDNN is faster on weights in the usual layout; the positions up to which
# attention's first product is faster with the keys in front, and the second one transposed.
PACK_FROM_ELEMENTS, ONEDNN_FROM_POSITIONS = 1 << 16, 96
KEYS_FIRST_UP_TO_POSITIONS, TRANSPOSE_UP_TO_POSITIONS = 6, 3
# Query positions per block of attention: 3 MB of scores for a window's 1,500 frames, which fit
# the processor's caches.
QUERY_BLOCK = 500
BLOCK = 256  # values per block of `largest`
# The smallest weight, in elements, for which int8 gains more over bfloat16 than quantizing costs.
INT8_FROM_ELEMENTS = 1 << 19
INT8_LARGEST, INT8_ZERO, SMALLEST_SCALE = 127, 128, 1e-30
# oneDNN's layout depends on the number of positions; the layout for many suits few as well.
PACKED_FOR_POSITIONS = 1_500
AVAILABLE = HAS_ONEDNN


class PackedLinear:
    """`F.linear` with fixed weights, then `F.gelu` if `gelu`: (.., inputs) -> (.., outputs).

    Inference only: no gradient.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        gelu: bool = False,
    ) -> None:
        """Pack `weight` (outputs, inputs). Neither `weight` nor `bias` (outputs,) may change later.

        `dtype` is the precision of the product, bfloat16 or int8; None keeps the weight's.
        """
        self.weight, self.bias, self.gelu = weight.detach(), bias, gelu
        self.packed = _supported(weight) and weight.numel() >= PACK_FROM_ELEMENTS
        self.quantized: QuantizedWeight | None = None
        if not self.packed:
            return
        if dtype == torch.int8 and weight.numel() >= INT8_FROM_ELEMENTS:
            self.quantized = QuantizedWeight(self.weight)
            self.weight = self.quantized.packed  # so that joined weights are freed
            return
        self.weight = _pack(self.weight if dtype is None else self.weight.bfloat16())

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the product with `x`; `bias` (outputs,) replaces the layer's own."""
        bias = self.bias if bias is None else bias
        if self.quantized is not None:
            product = self.quantized.multiply(x, bias)
        elif self.packed and x.dtype == self.weight.dtype:
            return _onednn_linear(x, self.weight, bias, self.gelu)
        elif self.packed:
            x = x.to(self.weight.dtype)
            return _onednn_linear(x, self.weight, bias, self.gelu).to(torch.float32)
        elif _many_positions(x, self.weight):
            product = _onednn_linear(x, self.weight, bias)
        else:
            product = F.linear(x, self.weight, bias)
        return F.gelu(product) if self.gelu else product

    def onto(self, total: Tensor, x: Tensor) -> Tensor:
        """Return `total` (.., outputs) plus the product with `x`; for layers without `gelu`."""
        if not self.packed or x.dtype != self.weight.dtype:
            return total + self(x)
        add = torch.ops.mkldnn._linear_pointwise.binary
        added: Tensor = add(x.contiguous(), total, self.weight, self.bias, "add")
        return added


class QuantizedWeight:
    """A float32 matrix in int8, symmetric, with a scale for each output."""

    def __init__(self, weight: Tensor) -> None:
        """Quantize `weight` (outputs, inputs): the largest value of each output becomes 127."""
        self.scales = _scales(weight)
        levels = (weight / self.scales).round_().to(torch.int8)
        self.packed: Tensor = torch.ops.onednn.qlinear_prepack(levels, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return `F.linear` of `x` (.., inputs), each row quantized by its largest value.

        Sums are exact, in int32; scales and `bias` are float32.
        """
        rows = x.reshape(-1, x.shape[-1])
        scales = _scales(rows)
        # The operator's first releases take unsigned numbers only. The conversion rounds down.
        levels = (rows / scales).add_(INT8_ZERO + 0.5).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels,
            1.0,
            INT8_ZERO,
            self.packed,
            self.scales[:, 0],
            self.zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        scaled = product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales)
        return scaled.view(*x.shape[:-1], -1)


class TransposedLinear:
    """`F.linear` whose result is stored transposed on a CPU, positions side by side."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype | None = None) -> None:
        """Take `weight` (outputs, inputs) and `bias` (outputs,), which must not change later.

        `dtype` bfloat16 or int8 means bfloat16: int8 gains nothing for many positions.
        """
        self.weight, self.bias = weight.detach(), bias
        self.rounded = None if dtype is None else self.weight.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, positions, inputs) -> (rows, positions, outputs)."""
        if not _supported(x):
            return F.linear(x, self.weight, self.bias)
        weight = self.weight if self.rounded is None else self.rounded
        rows = [
            _onednn_linear(weight, row.to(weight.dtype), None).add_(self.bias[:, None]) for row in x
        ]
        return torch.stack(rows).transpose(1, 2) if len(rows) > 1 else rows[0].t()[None]


def encoder_batch_size(windows: int, device: torch.device) -> int:
    """Return the windows in a pass of the encoder: all, but only one in a CPU's caches."""
    return 1 if device.type == "cpu" else windows


def empty_transposed(like: Tensor, rows: int, heads: int, positions: int, size: int) -> Tensor:
    """Return zeros (rows, heads, positions, size) like `like`. On a CPU positions are side by side,
    in which layout `attention` reads values, but not keys, fastest.
    """
    if not (_supported(like) or _rounded(like)):
        return zeros(like, rows, heads, positions, size)
    return zeros(like, rows, heads, size, positions).transpose(2, 3)


def attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention without a mask; all tensors are (rows, heads, positions, head size).

    With bfloat16 keys and values both products are bfloat16; the result has the query's type.
    """
    if _rounded(keys) and query.dtype == torch.float32:
        scores = (query * _scale(query)).bfloat16() @ keys.transpose(2, 3)
        return (scores.softmax(dim=-1) @ values).to(query.dtype)
    if not _supported(query):
        return cuda_attention(query, keys, values)
    if query.shape[2] >= ONEDNN_FROM_POSITIONS:
        return _blockwise_attention(query * _scale(query), keys, values)
    positions, shape = query.shape[2], query.shape
    query, keys, values = (each.flatten(0, 1) for each in (query, keys, values))
    # The scale belongs to the product; the first argument counts for nothing.
    unused, scale = query[:, :1, :1], _scale(query)
    if positions <= KEYS_FIRST_UP_TO_POSITIONS:
        scores = torch.baddbmm(unused, keys, query.mT, beta=0, alpha=scale).mT
    else:
        scores = torch.baddbmm(unused, query, keys.mT, beta=0, alpha=scale)
    weights, few = scores.softmax(dim=-1), positions <= TRANSPOSE_UP_TO_POSITIONS
    mixed = torch.bmm(values.mT, weights.mT).mT if few else torch.bmm(weights, values)
    return mixed.view(shape)


class EncoderLinear:
    """`F.linear` with a layer's weights, by its `name`, then `F.gelu` if `gelu`:
    (.., inputs) -> (.., outputs).

    Made for hundreds of positions, for which float32 weights are fastest in their usual layout.
    """

    def __init__(
        self, weights: Weights, name: str, dtype: torch.dtype | None = None, gelu: bool = False
    ) -> None:
        """Take `dtype` as TransposedLinear does. In bfloat16 the results are bfloat16 too."""
        self.weight, self.bias = weights[f"{name}.weight"].detach(), weights.get(f"{name}.bias")
        self.gelu, self.packed = gelu, dtype is not None and _supported(self.weight)
        if self.packed:
            self.weight = _pack(self.weight.bfloat16())

    def rounded(self, x: Tensor) -> Tensor:
        """Return `x` in the type of the product, so that query, key and value share one copy."""
        return x.to(self.weight.dtype)

    def __call__(self, x: Tensor, update: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the layer's output for `x`, with `update(x)` added to the product, if given."""
        if self.packed or _many_positions(x, self.weight):
            fused = self.gelu and update is None
            product = _onednn_linear(self.rounded(x), self.weight, self.bias, fused)
            if update is None:
                return product
        else:
            product = F.linear(x, self.weight, self.bias)
        if update is not None:
            product += update(x)
        return F.gelu(product) if self.gelu else product


def attend(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Return the `encoder_attention` of so many heads; all (rows, positions, d_model)."""
    # Scaled before the product with the keys: the order affects rounding.
    query, keys, values = (
        each.view(*each.shape[:2], heads, -1).transpose(1, 2)
        for each in (query * float((query.shape[-1] // heads) ** -0.5), keys, values)
    )
    return encoder_attention(query, keys, values).transpose(1, 2).flatten(2)


def encoder_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention for a scaled query; all (rows, heads, positions, head size), of one type."""
    supported = _supported(query) or (AVAILABLE and _rounded(query))
    if supported and query.shape[2] >= ONEDNN_FROM_POSITIONS:
        return _blockwise_attention(query, keys, values)
    return F.scaled_dot_product_attention(query, keys, values, scale=1.0)


def _blockwise_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention for a scaled query, in blocks of one head. Softmax sums in float32."""
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


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and indices of `values.topk(count)`, or of all n values (.., n) if fewer.

    The largest values are in the `count` blocks with the largest maxima, or in the rest after the
    last block. For a vocabulary this takes a third of the time of `topk`.
    """
    size = values.shape[-1]
    whole = size // BLOCK * BLOCK
    if whole <= count * BLOCK:
        found, places = values.topk(min(count, size))
        return found, places
    inside = values[..., :whole].view(*values.shape[:-1], -1, BLOCK)
    near = inside.amax(dim=-1).topk(count).indices[..., None]
    places = BLOCK * near + torch.arange(BLOCK, device=values.device)
    left = torch.arange(whole, size, device=values.device).expand(*values.shape[:-1], -1)
    places = torch.cat((places.flatten(-2), left), dim=-1)
    found, index = values.gather(-1, places).topk(count)
    return found, places.gather(-1, index)


def _scale(query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def _scales(rows: Tensor) -> Tensor:
    """Return the int8 step size of each row: (rows, n) -> (rows, 1)."""
    return rows.abs().amax(dim=1, keepdim=True).div_(INT8_LARGEST).clamp_(min=SMALLEST_SCALE)


def _supported(x: Tensor) -> bool:
    return AVAILABLE and x.dtype == torch.float32 and x.device.type == "cpu"


def _rounded(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.device.type == "cpu"


def _many_positions(x: Tensor, weight: Tensor) -> bool:
    return _supported(x) and x.numel() >= ONEDNN_FROM_POSITIONS * weight.shape[1]


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(
        weight.contiguous(), PACKED_FOR_POSITIONS
    )
    mkldnn = torch.ops.mkldnn
    use_large_pages(mkldnn.data_ptr(packed), mkldnn._nbytes(packed), written=True)
    return packed


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Tensor:
    """Return the product in the common type of `x` and `weight`; `bias` is added in float32.

    `x` is made contiguous: oneDNN multiplies strided rows one number at a time.
    """
    after, algorithm = ("gelu", "none") if gelu else ("none", "")
    multiply = torch.ops.mkldnn._linear_pointwise.default
    product: Tensor = multiply(x.contiguous(), weight, bias, after, [], algorithm)
    return product
