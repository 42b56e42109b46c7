"""The check of attention: each kernel on noise against float64."""

from itertools import product

import torch
from torch import Tensor

from benchmarks.gpu_check.page import Finding, judge
from benchmarks.gpu_check.subject import Subject
from whosaid.asr.model.cpu_kernels import attention, encoder_attention
from whosaid.asr.model.cuda_attention import CUDNN, MOST_ERROR

FRAMES, HEAD_SIZE = 1_500, 64
HEADS = (6, 20)  # of tiny and large-v3
# Rows and positions: steps, drafts and prompts about the audio, and the encoder itself.
SHAPES = ((1, 1), (24, 1), (96, 1), (24, 9), (4, 64), (1, FRAMES), (4, FRAMES))


def check_kernels(subject: Subject) -> list[Finding]:
    """Check each shape of attention to the audio."""
    if subject.on_cuda:
        CUDNN.permit(subject.settings.cuda_graphs)  # as an engine does
    dtype = subject.dtype if subject.dtype.is_floating_point else torch.float32
    shapes = SHAPES if subject.on_cuda else SHAPES[:1]
    return [_check(shape, heads, subject.device, dtype) for shape, heads in product(shapes, HEADS)]


@torch.inference_mode()
def _check(shape: tuple[int, int], heads: int, device: torch.device, dtype: torch.dtype) -> Finding:
    rows, positions = shape
    kind = "encoder" if positions == FRAMES else "decoder"
    query, keys, values = (
        torch.randn(rows, heads, count, HEAD_SIZE, device=device).to(dtype)
        for count in (positions, FRAMES, FRAMES)
    )
    if kind == "encoder":
        found = encoder_attention(query * HEAD_SIZE**-0.5, keys, values)
    else:
        found = attention(query, keys, values)
    error = max(map(_error, found, query, keys, values))
    check = f"{kind}'s attention, {rows} rows, {heads} heads, {positions} positions"
    allowed = f"at most {MOST_ERROR:.0%} off float64"
    return judge(check, allowed, f"{error:.2%}", error <= MOST_ERROR)


def _error(found: Tensor, query: Tensor, keys: Tensor, values: Tensor) -> float:
    """Return the relative error of a row (heads, positions, head size)."""
    exact = (query.double() @ keys.double().mT * HEAD_SIZE**-0.5).softmax(dim=-1) @ values.double()
    return float((found.double() - exact).norm() / exact.norm())
