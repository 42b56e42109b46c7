"""WeSpeaker's residual network (Wang et al., ICASSP 2023) as a CPU computes it fastest.

In inference a batch normalisation multiplies and adds constants, so that it is folded into the
convolution before it. Weights are packed once in oneDNN's own layout, and oneDNN adds the shortcut
and applies ReLU while a convolution's results are still in registers. Frames that no mask asks for
are not computed: convolutions see `reach` frames to either side and no further. Only rounding
differs from pyannote's network. What remains are products, 45 GFLOP for ten seconds full of speech,
at nearly the rate at which a processor with AVX2 multiplies.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

# oneDNN's operators with a fused ReLU are those of torch's own compiler for x86 processors, whose
# builds have MKL as well.
HAS_ONEDNN: bool = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
)
# oneDNN sets up its code for every length that it has not seen; so there are few of them. Frames of
# 10 ms, a multiple of every network's stride.
SPAN = 128


class FoldedEmbedding:
    """The embeddings of a `BaseWeSpeakerResNet` in evaluation mode, whose weights are copied."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self._model = model
        self._network = FoldedResNet(model.resnet)

    def __call__(self, waveforms: Tensor, masks: Tensor) -> Tensor:
        """Embed (windows, 1, samples) under (windows, speakers, mask frames).

        Returns (windows, speakers, dimension), as pyannote's `forward_frames` and
        `forward_embedding` do together.
        """
        features = self._model.compute_fbank(waveforms)
        frames = -(-features.shape[1] // self._network.stride)
        weights = F.interpolate(masks, size=frames, mode="nearest")  # as pyannote's pooling
        asked = weights.any(dim=0).any(dim=0).nonzero()
        first, last = (int(asked[0]), int(asked[-1])) if len(asked) else (0, 0)
        found = self._network.frames(features, first, last)
        embeddings: Tensor = self._model.forward_embedding(found, weights[..., first : last + 1])
        return embeddings


class FoldedResNet:
    """`forward_frames` of pyannote's `ResNet`; `stride` and `reach` are in frames of features."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401
        first = Convolution(network.conv1, network.bn1)
        layers: Any = (network.layer1, network.layer2, network.layer3, network.layer4)
        self._first, self._blocks = first, [Block(block) for layer in layers for block in layer]
        self.stride, self.reach = 1, 0
        for convolution in (first, *(each for block in self._blocks for each in block.path)):
            self.reach += convolution.padding * self.stride
            self.stride *= convolution.stride

    def frames(self, features: Tensor, first: int, last: int) -> Tensor:
        """Frames `first` to `last` of those of features (windows, frames, bands).

        Returns (windows, channels, bands, last - first + 1).
        """
        start = max(0, first * self.stride - self.reach) // SPAN * SPAN
        stop = -(-(last * self.stride + self.reach + 1) // SPAN) * SPAN
        skipped = start // self.stride
        return self(features[:, start:stop])[..., first - skipped : last + 1 - skipped]

    def __call__(self, features: Tensor) -> Tensor:
        """All frames of features (windows, frames, bands): (windows, channels, bands, frames)."""
        # In memory channels come last, which for a single one both layouts are.
        x = features.transpose(1, 2).unsqueeze(1).contiguous(memory_format=torch.channels_last)
        x = self._first(x)
        for block in self._blocks:
            x = block(x)
        return x


class Block:
    """A `BasicBlock` or a `Bottleneck`: two or three convolutions and a shortcut around them."""

    def __init__(self, block: Any) -> None:  # noqa: ANN401
        numbers = [number for number in (1, 2, 3) if hasattr(block, f"conv{number}")]
        self.path = [
            Convolution(getattr(block, f"conv{number}"), getattr(block, f"bn{number}"))
            for number in numbers
        ]
        shortcut = tuple(block.shortcut)  # a convolution and its normalisation, or nothing
        self._shortcut = Convolution(*shortcut) if shortcut else None

    def __call__(self, x: Tensor) -> Tensor:
        """What the block makes of `x`, which may be overwritten."""
        shortcut = x if self._shortcut is None else self._shortcut(x, relu=False)
        for convolution in self.path[:-1]:
            x = convolution(x)
        return self.path[-1].onto(shortcut, x)


class Convolution:
    """A convolution with its batch normalisation, then ReLU; channels are last in memory."""

    def __init__(self, convolution: nn.Conv2d, normalisation: nn.BatchNorm2d) -> None:
        folded = fuse_conv_bn_eval(convolution, normalisation)
        self.padding, self.stride = int(folded.padding[0]), folded.stride[0]
        self._bias = folded.bias
        self._weight = folded.weight.detach().contiguous(memory_format=torch.channels_last)
        if HAS_ONEDNN:
            self._weight = torch.ops.mkldnn._reorder_convolution_weight(
                folded.weight.detach().contiguous(), *self._geometry
            )

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Padding, stride, dilation and groups."""
        return [self.padding] * 2, [self.stride] * 2, [1, 1], 1

    def __call__(self, x: Tensor, relu: bool = True) -> Tensor:
        """Convolve (windows, channels, bands, frames)."""
        if not HAS_ONEDNN:
            y = F.conv2d(x, self._weight, self._bias, self.stride, self.padding)
            return y.relu_() if relu else y
        fused = "relu" if relu else "none"
        convolved: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._weight, self._bias, *self._geometry, fused, [], ""
        )
        return convolved

    def onto(self, total: Tensor, x: Tensor) -> Tensor:
        """ReLU of `total` plus the convolution of `x`, in the memory of `total`."""
        if not HAS_ONEDNN:
            return total.add_(self(x, relu=False)).relu_()
        convolved: Tensor = torch.ops.mkldnn._convolution_pointwise_.binary(
            total, x, self._weight, self._bias, *self._geometry, "add", 1.0, "relu", [], ""
        )
        return convolved
