"""Speaker embeddings with the network run once a window instead of once a speaker.

pyannote passes each window to its embedding model once for each (usually three) of the speakers
that segmentation may find in it, with another mask each time. In WeSpeaker's models (Wang et al.,
ICASSP 2023) the mask matters only in the pooling after the residual network. The network is nearly
all of the work and depends on the window alone. So here it runs once a window, and not at all in
windows without speech. Its frames are then pooled under the masks of all speakers together.

Windows overlap by nine tenths, but they cannot share frames, because the mean of a window is
subtracted from its features. Frames under a mean that two windows share moved embeddings by half a
percent in cosine, and turns of real meetings with them.

The residual network itself is made faster (`FoldedResNet`). In inference a batch normalisation
multiplies and adds constants, so it is folded into the convolution before it. Frames outside every
mask are not computed, nor are features further than `reach` from a mask. The remaining products are
45 GFLOP for ten seconds full of speech. On a CPU weights are packed once in oneDNN's own layout,
and oneDNN adds the shortcut and applies ReLU while a convolution's results are still in registers;
products run at nearly the rate at which a processor with AVX2 multiplies. On CUDA the network
computes in float16, on tensor cores.

All results equal pyannote's up to rounding.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from whosaid.runtime.device import HAS_ONEDNN
from whosaid.runtime.versions import crop_window

# Most elements of the network's last layer in a CPU batch, so that activations stay in cache: 1
# window of 10 s with 80 mel bands (a batch of 8 ran at half the speed), or 10 of the demo's windows
# of 5 s with 32 bands.
MAX_CPU_ELEMENTS = 320_000

# Features are cut at multiples of this many frames of 10 ms, because oneDNN generates code for
# every new length. SPAN is a multiple of every network's stride.
SPAN = 128
# Least cosine of an embedding in float16 and in float32; values beyond float16 give NaN.
LEAST_COSINE = 0.999

Array = NDArray[np.float32]
# Embeds (windows, 1, samples) under (windows, speakers, mask frames).
Forward = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class FrameModel(Protocol):
    """An embedding model in two halves, as in `pyannote.audio.models.embedding.wespeaker`."""

    def forward_frames(self, waveforms: Tensor) -> Tensor:
        """Compute (batch, ..., frames) from waveforms (batch, 1, samples)."""

    def forward_embedding(self, frames: Tensor, weights: Tensor) -> Tensor:
        """Pool `frames` under (batch, speakers, mask frames) to (batch, speakers, dimension)."""


def share_frames(pipeline: Any) -> None:  # noqa: ANN401
    """Replace `get_embeddings` of a SpeakerDiarization that is already on its device, if its
    embedding model has a separate pooling.
    """
    if isinstance(getattr(getattr(pipeline, "_embedding", None), "model_", None), FrameModel):
        pipeline.get_embeddings = WindowEmbeddings(pipeline)


class WindowEmbeddings:
    """Replaces `get_embeddings` of one pipeline. Not thread-safe, like the pipeline."""

    def __init__(self, pipeline: Any) -> None:  # noqa: ANN401
        self._pipeline = pipeline
        embedding, model = pipeline._embedding, pipeline._embedding.model_
        self._device: torch.device = embedding.device
        # pyannote finds its model's shortest input by trial at first use, which is here.
        self._min_samples: int = embedding.min_num_samples
        self._rate: int = embedding.sample_rate
        window_samples = round(pipeline._segmentation.duration * self._rate)
        silence = torch.zeros(1, 1, window_samples, device=self._device)
        with torch.inference_mode():
            frames = model.forward_frames(silence)
        self._max_batch = sys.maxsize
        if self._device.type == "cpu":
            self._max_batch = max(1, MAX_CPU_ELEMENTS // frames.numel())
        self._forward = _forward_of(model, silence)
        # The embedding (dimension,) of every silent speaker: under a mask of zeros all windows pool
        # to the same embedding.
        self._silent = self._embed(silence, torch.zeros(1, 1, 1))[0, 0]

    def __call__(
        self,
        file: dict[str, Any],
        binary_segmentations: Any,  # noqa: ANN401
        exclude_overlap: bool = False,
        hook: Callable[..., None] = lambda *_, **__: None,
    ) -> Array:
        """Embed the speakers of each window, (windows, speakers, dimension).

        `binary_segmentations` is a `pyannote.core.SlidingWindowFeature` (windows, frames, speakers)
        with each speaker's activity. `exclude_overlap` ignores frames with several speakers, unless
        too few are left for the model. `hook` is called before the first batch and after each
        batch, with pyannote's arguments. Exceptions of `hook` pass through.
        """
        activity, windows = binary_segmentations.data, binary_segmentations.sliding_window
        window_samples = windows.duration * self._rate
        min_frames = math.ceil(activity.shape[1] * self._min_samples / window_samples)
        embeddings = np.tile(self._silent, (activity.shape[0], activity.shape[2], 1))
        active = np.flatnonzero((activity > 0).any(axis=(1, 2)))  # windows with speech
        size = min(self._pipeline.embedding_batch_size, self._max_batch)
        batches = [active[start : start + size] for start in range(0, len(active), size)]
        hook("embeddings", None, total=len(batches), completed=0)
        for completed, batch in enumerate(batches, 1):
            waveforms = [
                crop_window(self._pipeline._audio, file, windows[int(index)]) for index in batch
            ]
            masks = speaker_masks(activity[batch], min_frames if exclude_overlap else None)
            embeddings[batch] = self._embed(torch.stack(waveforms), torch.from_numpy(masks))
            hook("embeddings", embeddings[batch], total=len(batches), completed=completed)
        return embeddings

    @torch.inference_mode()
    def _embed(self, waveforms: Tensor, masks: Tensor) -> Array:
        """Embed (windows, 1, samples) under masks (windows, speakers, frames)."""
        embeddings = self._forward(waveforms.to(self._device), masks.to(self._device))
        result: Array = embeddings.cpu().numpy()
        return result


def _forward_of(model: FrameModel, silence: Tensor) -> Forward:
    """Return the fastest forward pass for windows like `silence`: residual networks are folded, on
    CUDA in float16 if the model's range allows.
    """
    from pyannote.audio.models.embedding.wespeaker import BaseWeSpeakerResNet

    def forward(waveforms: Tensor, masks: Tensor) -> Tensor:
        return model.forward_embedding(model.forward_frames(waveforms), masks)

    if not isinstance(model, BaseWeSpeakerResNet):
        return forward
    with torch.no_grad():
        if silence.device.type == "cpu":
            return FoldedEmbedding(model, torch.float32)
        half = FoldedEmbedding(model, torch.float16)
        noise = torch.rand(silence.shape, generator=torch.Generator().manual_seed(0)) - 0.5
        inputs = noise.to(silence.device), torch.ones(1, 1, 1, device=silence.device)
        cosine = F.cosine_similarity(half(*inputs), forward(*inputs), dim=2)
        return half if bool((cosine > LEAST_COSINE).all()) else forward


def speaker_masks(activity: Array, min_frames: int | None) -> Array:
    """Return the frames from which each speaker is embedded, (windows, speakers, frames), for
    `activity` (windows, frames, speakers).

    NaN, a frame without a segmentation result, counts as silence. With `min_frames`, overlap is
    masked for a speaker who is alone in more than `min_frames` frames.
    """
    masks = np.nan_to_num(activity)
    if min_frames is not None:
        alone = np.nan_to_num(activity * (activity.sum(axis=2, keepdims=True) < 2))
        masks = np.where(alone.sum(axis=1, keepdims=True) > min_frames, alone, masks)
    return np.ascontiguousarray(masks.transpose(0, 2, 1), dtype=np.float32)


# The residual network


class FoldedEmbedding:
    """A `BaseWeSpeakerResNet` in evaluation mode, whose residual network computes in `dtype`.
    Copies the weights.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:  # noqa: ANN401
        self._model, self._dtype = model, dtype
        self._network = FoldedResNet(model.resnet, dtype)

    def __call__(self, waveforms: Tensor, masks: Tensor) -> Tensor:
        """Embed (windows, 1, samples) under masks (windows, speakers, mask frames): (windows,
        speakers, dimension). Equals `forward_frames` followed by `forward_embedding`.
        """
        features = self._model.compute_fbank(waveforms)
        frames = -(-features.shape[1] // self._network.stride)
        weights = F.interpolate(masks, size=frames, mode="nearest")  # like pyannote's pooling
        needed = weights.any(dim=0).any(dim=0).nonzero()
        first, last = (int(needed[0]), int(needed[-1])) if len(needed) else (0, 0)
        stretch = self._network.frames(features.to(self._dtype), first, last).float()
        embeddings: Tensor = self._model.forward_embedding(stretch, weights[..., first : last + 1])
        return embeddings


class FoldedResNet:
    """`forward_frames` of pyannote's `ResNet`, with `stride` and `reach` in feature frames."""

    def __init__(self, network: Any, dtype: torch.dtype = torch.float32) -> None:  # noqa: ANN401
        first = Convolution(network.conv1, network.bn1, dtype)
        layers: Any = (network.layer1, network.layer2, network.layer3, network.layer4)
        self._first = first
        self._blocks = [Block(block, dtype) for layer in layers for block in layer]
        self.stride, self.reach = 1, 0
        for convolution in (first, *(each for block in self._blocks for each in block.path)):
            self.reach += convolution.padding * self.stride
            self.stride *= convolution.stride

    def frames(self, features: Tensor, first: int, last: int) -> Tensor:
        """Compute frames `first` to `last` (inclusive) for features (windows, frames, bands):
        (windows, channels, bands, last - first + 1).
        """
        start = max(0, first * self.stride - self.reach) // SPAN * SPAN
        stop = -(-(last * self.stride + self.reach + 1) // SPAN) * SPAN
        skipped = start // self.stride
        return self(features[:, start:stop])[..., first - skipped : last + 1 - skipped]

    def __call__(self, features: Tensor) -> Tensor:
        """Compute all frames, (windows, channels, bands, frames), for features (windows, frames,
        bands).
        """
        # Channels are last in memory. With a single channel both layouts are equal.
        x = features.transpose(1, 2).unsqueeze(1).contiguous(memory_format=torch.channels_last)
        x = self._first(x)
        for block in self._blocks:
            x = block(x)
        return x


class Block:
    """A `BasicBlock` or a `Bottleneck`: two or three convolutions and a shortcut around them."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:  # noqa: ANN401
        numbers = [number for number in (1, 2, 3) if hasattr(block, f"conv{number}")]
        self.path = [
            Convolution(getattr(block, f"conv{number}"), getattr(block, f"bn{number}"), dtype)
            for number in numbers
        ]
        shortcut = block.shortcut  # a convolution and its normalisation, or nothing
        self._shortcut = Convolution(shortcut[0], shortcut[1], dtype) if len(shortcut) else None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the block's output; may overwrite `x`."""
        shortcut = x if self._shortcut is None else self._shortcut(x, relu=False)
        for convolution in self.path[:-1]:
            x = convolution(x)
        return self.path[-1].onto(shortcut, x)


class Convolution:
    """A convolution with its batch normalisation, then ReLU; channels are last in memory."""

    def __init__(
        self, convolution: nn.Conv2d, normalisation: nn.BatchNorm2d, dtype: torch.dtype
    ) -> None:
        mean, variance = normalisation.running_mean, normalisation.running_var
        assert mean is not None
        assert variance is not None
        fused_weight, fused_bias = fuse_conv_bn_weights(
            convolution.weight,
            convolution.bias,
            mean,
            variance,
            normalisation.eps,
            normalisation.weight,
            normalisation.bias,
        )
        weight, self._bias = fused_weight.detach().to(dtype), fused_bias.detach().to(dtype)
        self._packed = HAS_ONEDNN and weight.device.type == "cpu"
        self.padding, self.stride = int(convolution.padding[0]), convolution.stride[0]
        # Padding, stride, dilation and groups, as oneDNN's operators take them.
        self._geometry = [self.padding] * 2, [self.stride] * 2, [1, 1], 1
        self._weight = weight.contiguous(memory_format=torch.channels_last)
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_convolution_weight(
                weight.contiguous(), *self._geometry
            )

    def __call__(self, x: Tensor, relu: bool = True) -> Tensor:
        """Convolve (windows, channels, bands, frames)."""
        if not self._packed:
            y = F.conv2d(x, self._weight, self._bias, self.stride, self.padding)
            return y.relu_() if relu else y
        fused = "relu" if relu else "none"
        convolved: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._weight, self._bias, *self._geometry, fused, [], ""
        )
        return convolved

    def onto(self, total: Tensor, x: Tensor) -> Tensor:
        """Return ReLU of `total` plus the convolution of `x`, in the memory of `total`."""
        if not self._packed:
            return total.add_(self(x, relu=False)).relu_()
        convolved: Tensor = torch.ops.mkldnn._convolution_pointwise_.binary(
            total, x, self._weight, self._bias, *self._geometry, "add", 1.0, "relu", [], ""
        )
        return convolved
