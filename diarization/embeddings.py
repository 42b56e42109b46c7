"""Speaker embeddings with the network run once a window instead of once a speaker.

pyannote passes each window to its embedding model once for each (usually three) of the speakers
that segmentation may find in it, with another mask each time. In WeSpeaker's models (Wang et al.,
ICASSP 2023) the mask matters only in the pooling after the residual network. The network, which is
nearly all of the work, depends on the window alone. So here it runs once a window, and not at all
where nobody speaks; its frames are then pooled under the masks of all speakers together. On a CPU
`diarization.folded_resnet` computes them.

Windows overlap by nine tenths, but they cannot share frames: the mean of a window is subtracted
from its features. Frames under a mean that two windows share moved embeddings by half a percent in
cosine, and turns of real meetings with them.

`share_frames` replaces one method of one loaded pipeline, `SpeakerDiarization.get_embeddings` of
pyannote.audio 3.3 to 4.0, and returns the same numbers up to rounding. A pipeline with another
embedding model or signature keeps its own method.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diarization.folded_resnet import FoldedEmbedding
from runtime.versions import crop_window

# The signature of the method that is replaced.
PARAMETERS = ["file", "binary_segmentations", "exclude_overlap", "hook"]
# A batch on the CPU is limited to so many elements of the network's last layer, so that activations
# stay in cache: 1 window of 10 s with 80 mel bands (a batch of 8 ran at half the speed), or 10 of
# the demo's windows of 5 s with 32 bands.
MAX_CPU_ELEMENTS = 320_000

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


def share_frames(pipeline: Any) -> bool:  # noqa: ANN401
    """Replace the `get_embeddings` of `pipeline`, a SpeakerDiarization already on its device.

    Returns False, and changes nothing, where the pipeline is of another kind.
    """
    model = getattr(getattr(pipeline, "_embedding", None), "model_", None)
    method = getattr(pipeline, "get_embeddings", None)
    if not isinstance(model, FrameModel) or method is None:
        return False
    if list(inspect.signature(method).parameters) != PARAMETERS:
        return False
    pipeline.get_embeddings = WindowEmbeddings(pipeline, model)
    return True


class WindowEmbeddings:
    """Replaces `get_embeddings` of one pipeline; not for several threads, like the pipeline."""

    def __init__(self, pipeline: Any, model: FrameModel) -> None:  # noqa: ANN401
        self._pipeline = pipeline
        embedding = pipeline._embedding
        self._device: torch.device = embedding.device
        # pyannote finds the shortest input of its model by trial, at first use; that is now.
        self._min_samples: int = embedding.min_num_samples
        self._rate: int = embedding.sample_rate
        window_samples = round(pipeline._segmentation.duration * self._rate)
        silence = torch.zeros(1, 1, window_samples, device=self._device)
        with torch.inference_mode():
            frames = model.forward_frames(silence)
        self._max_batch = sys.maxsize
        if self._device.type == "cpu":
            self._max_batch = max(1, MAX_CPU_ELEMENTS // frames.numel())
        self._forward = _on_cpu(model) if self._device.type == "cpu" else _halves(model)
        # Under a mask of zeros every window pools to the same embedding, (dimension,): that of all
        # speakers who do not speak.
        self._silent = self._embed(silence, torch.zeros(1, 1, 1))[0, 0]

    def __call__(
        self,
        file: dict[str, Any],
        binary_segmentations: Any,  # noqa: ANN401
        exclude_overlap: bool = False,
        hook: Callable[..., None] | None = None,
    ) -> Array:
        """Embed the speakers of each window, (windows, speakers, dimension).

        `binary_segmentations` is a `pyannote.core.SlidingWindowFeature` of (windows, frames,
        speakers): who speaks when. `exclude_overlap` ignores frames with several speakers, unless
        too few are left for the model. `hook` is called before the first batch and after each one,
        with pyannote's arguments; what it raises ends the call.
        """
        activity, windows = binary_segmentations.data, binary_segmentations.sliding_window
        window_samples = windows.duration * self._rate
        min_frames = math.ceil(activity.shape[1] * self._min_samples / window_samples)
        embeddings = np.tile(self._silent, (activity.shape[0], activity.shape[2], 1))
        batches = list(self._batches(activity))
        if hook is not None:
            hook("embeddings", None, total=len(batches), completed=0)
        for completed, batch in enumerate(batches, 1):
            waveforms = [
                crop_window(self._pipeline._audio, file, windows[int(index)]) for index in batch
            ]
            masks = speaker_masks(activity[batch], min_frames if exclude_overlap else None)
            embeddings[batch] = self._embed(torch.stack(waveforms), torch.from_numpy(masks))
            if hook is not None:
                hook("embeddings", embeddings[batch], total=len(batches), completed=completed)
        return embeddings

    def _batches(self, activity: Array) -> Iterator[NDArray[np.intp]]:
        """Indices of the windows in which somebody speaks, a batch at a time."""
        active = np.flatnonzero((activity > 0).any(axis=(1, 2)))
        size = min(self._pipeline.embedding_batch_size, self._max_batch)
        return (active[start : start + size] for start in range(0, len(active), size))

    @torch.inference_mode()
    def _embed(self, waveforms: Tensor, masks: Tensor) -> Array:
        """Embed (windows, 1, samples) under masks (windows, speakers, frames)."""
        embeddings = self._forward(waveforms.to(self._device), masks.to(self._device))
        result: Array = embeddings.cpu().numpy()
        return result


def _on_cpu(model: FrameModel) -> Forward:
    """The model as a CPU computes it fastest; models that are no residual network as they are."""
    from pyannote.audio.models.embedding.wespeaker import BaseWeSpeakerResNet

    if not isinstance(model, BaseWeSpeakerResNet):
        return _halves(model)
    with torch.no_grad():
        return FoldedEmbedding(model)


def _halves(model: FrameModel) -> Forward:
    """The model as pyannote computes it, frames first."""
    return lambda waveforms, masks: model.forward_embedding(model.forward_frames(waveforms), masks)


def speaker_masks(activity: Array, min_frames: int | None) -> Array:
    """Frames from which each speaker is embedded: (windows, frames, speakers) transposed.

    NaN, a frame that segmentation did not judge, counts as silence. With `min_frames`, a speaker
    who speaks alone in more than so many frames is embedded from those; else from all frames.
    Returns (windows, speakers, frames).
    """
    masks = np.nan_to_num(activity)
    if min_frames is not None:
        alone = np.nan_to_num(activity * (activity.sum(axis=2, keepdims=True) < 2))
        masks = np.where(alone.sum(axis=1, keepdims=True) > min_frames, alone, masks)
    return np.ascontiguousarray(masks.transpose(0, 2, 1), dtype=np.float32)
