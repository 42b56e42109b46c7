"""Speaker embeddings with the network run once a window instead of once a speaker.

pyannote passes each window to its embedding model once for each of the speakers that segmentation
may find in it, with another mask each time. In WeSpeaker's models (Wang et al., ICASSP 2023) the
mask matters only in the pooling after the residual network, which is nearly all of the work. So
here the network runs once a window, and not at all in windows without speech; its frames are then
pooled under the masks of all speakers. Windows cannot share frames, because the mean of a window is
subtracted from its features.

The network is made faster too (`FoldedResNet`): a batch normalisation is folded into the
convolution before it. On a CPU frames outside every mask are not computed, nor are features further
than `reach` from a mask; weights are packed in oneDNN's own layout, and oneDNN adds the shortcut
and applies ReLU within a convolution. On CUDA the network computes in float16.

All results equal pyannote's up to rounding. Stretches of speakers are embedded beside them
(`diarization.stretches`), at nearly no cost.
"""

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from whosaid.diarization.stretches import MixedSpeaker, Stretches, separate
from whosaid.runtime.device import HAS_ONEDNN
from whosaid.runtime.versions import crop_window

logger = logging.getLogger("endpoint")

# Most elements of the network's last layer in a CPU batch, so that activations stay in cache: 1
# window of 10 s with 80 mel bands (a batch of 8 ran at half the speed), or 10 of the demo's windows
# of 5 s with 32 bands.
MAX_CPU_ELEMENTS = 320_000

# Features are cut at multiples of this many frames of 10 ms, because oneDNN generates code for
# every new length. SPAN is a multiple of every network's stride.
SPAN = 128
# Least cosine of an embedding in float16 and in float32; values beyond float16 give NaN.
LEAST_COSINE = 0.999
EMBEDDED_ON_GPU = 32  # most windows together: 0.5 to 1 GB by their shapes

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
    """Replace `get_embeddings` of a pipeline on its device, if the pooling is separate."""
    if isinstance(getattr(getattr(pipeline, "_embedding", None), "model_", None), FrameModel):
        # Of other models pyannote thresholds a copy of the activity, which must keep its shape.
        powerset = pipeline._segmentation.model.specifications.powerset
        pipeline.get_embeddings = WindowEmbeddings(pipeline, separates=powerset)


class WindowEmbeddings:
    """Replaces `get_embeddings` of one pipeline. If it `separates`, local speakers with several
    voices become several. Not thread-safe, like the pipeline.
    """

    def __init__(self, pipeline: Any, separates: bool = False) -> None:  # noqa: ANN401
        self._pipeline, self.separates = pipeline, separates
        embedding, model = pipeline._embedding, pipeline._embedding.model_
        self._device: torch.device = embedding.device
        self._min_samples = _min_samples(embedding)
        self._rate: int = embedding.sample_rate
        window_samples = round(pipeline._segmentation.duration * self._rate)
        silence = torch.zeros(1, 1, window_samples, device=self._device)
        self._max_batch = sys.maxsize
        if self._device.type == "cpu":
            self._max_batch = max(1, MAX_CPU_ELEMENTS // _last_elements(model, silence))
        elif self._device.type == "cuda":
            self._max_batch = EMBEDDED_ON_GPU
        self._silence = silence
        self._forward = _forward_of(model, self._device)
        self._compared = self._device.type != "cuda"
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
        with each speaker's activity, which `separate` changes in place. `exclude_overlap` ignores
        frames with several speakers, unless too few are left for the model. `hook` is called before
        the first batch and after each batch, with pyannote's arguments. Exceptions of `hook` pass
        through. `file["embedded"]` may have the first results of `embed_batch`, which are removed.
        """
        activity, windows = binary_segmentations.data, binary_segmentations.sliding_window
        known = file.get("embedded", deque())
        embeddings = np.tile(self._silent, (activity.shape[0], activity.shape[2], 1))
        active = np.flatnonzero((activity > 0).any(axis=(1, 2)))  # windows with speech
        size = self.windows_together(self._pipeline.embedding_batch_size)
        batches = [active[start : start + size] for start in range(0, len(active), size)]
        mixed: list[MixedSpeaker] = []
        hook("embeddings", None, total=len(batches), completed=0)
        for completed, batch in enumerate(batches, 1):
            if known:
                found = known.popleft()
            else:
                numbers, speaking = batch.tolist(), activity[batch]
                found = self.embed_batch(file, windows, numbers, speaking, exclude_overlap)
            embeddings[batch], own = found
            mixed += own
            hook("embeddings", embeddings[batch], total=len(batches), completed=completed)
        return separate(binary_segmentations, embeddings, mixed)

    def embed_batch(
        self,
        file: Mapping[str, Any],
        windows: Any,  # noqa: ANN401
        batch: Sequence[int],
        activity: Array,
        exclude_overlap: bool,
    ) -> tuple[Array, list[MixedSpeaker]]:
        """Embed the speakers of the `pyannote.core.SlidingWindow`'s windows with the numbers
        `batch`, whose `activity` is (windows, frames, speakers).

        Returns the embeddings (windows, speakers, dimension) and the speakers with several voices.
        """
        frames = activity.shape[1]
        waveforms = [crop_window(self._pipeline._audio, file, windows[each]) for each in batch]
        min_frames = math.ceil(frames * self._min_samples / (windows.duration * self._rate))
        masks = speaker_masks(activity, min_frames if exclude_overlap else None)
        speakers = masks.shape[1]
        if self.separates:
            stretches = Stretches(masks, windows.duration / frames)
            masks = stretches.masks
        inputs = torch.stack(waveforms), torch.from_numpy(masks)
        if not self._compared:
            self._compare(*inputs)
        embedded = self._embed(*inputs)
        mixed = [*stretches.mixed_speakers(embedded, batch)] if self.separates else []
        return embedded[:, :speakers], mixed

    def windows_together(self, most: int) -> int:
        return min(most, self._max_batch)

    def prepare(self, most: int) -> None:
        """Segment and embed silence in every size of batch up to `most`, a power of two."""
        while most:
            silence = self._silence.expand(most, -1, -1)
            self._pipeline._segmentation.infer(silence)
            if most <= self._max_batch:
                self._embed(silence, torch.ones(most, 1, 1))
            most //= 2

    @torch.inference_mode()
    def _embed(self, waveforms: Tensor, masks: Tensor) -> Array:
        """Embed (windows, 1, samples) under masks (windows, speakers, frames)."""
        inputs = (doubled(each, self._device).to(self._device) for each in (waveforms, masks))
        result: Array = self._forward(*inputs)[: len(waveforms)].cpu().numpy()
        return result

    @torch.inference_mode()
    def _compare(self, waveforms: Tensor, masks: Tensor) -> None:
        """Embed the first batch with speech in float32 too; keep to float32 if they differ."""
        waveforms, masks = waveforms.to(self._device), masks.to(self._device)
        model: FrameModel = self._pipeline._embedding.model_

        def exact(waveforms: Tensor, masks: Tensor) -> Tensor:
            return model.forward_embedding(model.forward_frames(waveforms), masks)

        half, single = (each(waveforms, masks)[masks.any(dim=2)] for each in (self._forward, exact))
        agree = F.cosine_similarity(half, single, dim=1) > LEAST_COSINE
        if not (agree | single.isnan().any(dim=1)).all():
            self._forward = exact
            logger.warning("speakers are embedded in float32: float16 gave other embeddings")
        self._compared = True


def doubled(batch: Tensor, device: torch.device) -> Tensor:
    """Return a batch, on CUDA padded to a power of two, because each size has plans of its own."""
    spare = (1 << (len(batch) - 1).bit_length()) - len(batch)
    if device.type != "cuda" or not spare:
        return batch
    return torch.cat((batch, batch.new_zeros(spare, *batch.shape[1:])))


def _min_samples(embedding: Any) -> int:  # noqa: ANN401
    """Return the shortest input of pyannote's embedding model, from its features alone."""
    model = embedding.model_
    if hasattr(model, "resnet"):
        embedding.model_ = model.compute_fbank
    found: int = embedding.min_num_samples
    embedding.model_ = model
    return found


@torch.inference_mode()
def _last_elements(model: Any, window: Tensor) -> int:  # noqa: ANN401
    """Return the number of elements of the last layer before the pooling, for `window`."""
    if not hasattr(model, "resnet"):
        return int(model.forward_frames(window).numel())
    # The pooling concatenates the mean and the deviation of each row of frames.
    return int(model.resnet.seg_1.in_features // 2 * model.num_frames(window.shape[-1]))


def _forward_of(model: FrameModel, device: torch.device) -> Forward:
    """Return the fastest forward pass: residual networks are folded, on CUDA in float16."""
    from pyannote.audio.models.embedding.wespeaker import BaseWeSpeakerResNet

    if isinstance(model, BaseWeSpeakerResNet):
        with torch.no_grad():
            dtype = torch.float32 if device.type == "cpu" else torch.float16
            return FoldedEmbedding(model, dtype)
    return lambda waveforms, masks: model.forward_embedding(model.forward_frames(waveforms), masks)


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
    """A copy of a `BaseWeSpeakerResNet` whose residual network computes in `dtype`."""

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
        first, last = 0, frames - 1
        if features.device.type != "cuda":  # which would wait, and plan every new length
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
        """Compute all frames, (windows, channels, bands, frames), for (windows, frames, bands)."""
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
