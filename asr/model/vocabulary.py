"""The product over the vocabulary, by whose results tokens are chosen.

On CUDA its rows are padded. Tensor cores are at their best where every row of a matrix begins at a
multiple of 16 bytes (NVIDIA, Matrix Multiplication Background, "Tensor Core Requirements"), and
Whisper's multilingual vocabularies have 51,865 and 51,866 tokens. What stands in the padding is cut
off at once, so that no sum and no choice ever sees it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.model.cpu_kernels import PackedLinear

ALIGNED = 8  # numbers of 2 bytes


class PaddedLinear(PackedLinear):
    """`F.linear` computed with a multiple of ALIGNED outputs: (.., inputs) -> (.., outputs), a part
    of each wider row.
    """

    def __init__(self, weight: Tensor) -> None:
        """Take `weight` (outputs, inputs), which becomes a part of the padded one, so that memory
        does not hold it twice.
        """
        self.outputs = len(weight)
        spare = -self.outputs % ALIGNED
        with torch.inference_mode(False):  # the model's own weights serve elsewhere too
            super().__init__(F.pad(weight.detach(), (0, 0, 0, spare)))
            self.spare = weight.new_zeros(spare)
            weight.data = self.weight[: self.outputs]

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply, and add `bias` (outputs,)."""
        wide = None if bias is None else torch.cat((bias, self.spare))
        return super().__call__(x, wide)[..., : self.outputs]


def vocabulary_product(weight: Tensor, dtype: torch.dtype | None) -> PackedLinear:
    """The product with `weight` (tokens, d_model); `dtype` as in PackedLinear."""
    if weight.device.type == "cuda" and len(weight) % ALIGNED:
        return PaddedLinear(weight)
    return PackedLinear(weight, dtype=dtype)
