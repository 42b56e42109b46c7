"""A voice's embedding in every window, with the network run once a window instead of once a voice.

pyannote hands its embedding model each window again for each of the (usually three) voices the
segmentation may hear in it, with another mask. In WeSpeaker's models (Wang et al., ICASSP 2023) the
mask matters only in the pooling after the residual network, which is nearly all of the work and
sees the window alone. So the network runs once a window, not at all where nobody speaks, and its
frames are pooled for all voices together.

The one decision: `share_frames` replaces one method of one loaded pipeline,
`SpeakerDiarization.get_embeddings` of pyannote.audio 3.3 to 4.0, and answers what that answers, up
to rounding. What has other parts keeps its own method.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

REPLACED = ["file", "binary_segmentations", "exclude_overlap", "hook"]
# How many numbers a CPU's cache takes of the network's last layer (the wider ones before it in
# proportion): one window of 10 s at 80 bands, which a batch of eight would compute at half the
# speed, or ten of the demo's 5 s at 32 bands.
CACHED = 320_000

Array = NDArray[np.float32]


@runtime_checkable
class FrameModel(Protocol):
    """An embedding model in two halves, as `pyannote.audio.models.embedding.wespeaker` defines
    them.
    """

    def forward_frames(self, waveforms: Tensor) -> Tensor:
        """From (batch, 1, samples) to (batch, ..., frames)."""

    def forward_embedding(self, frames: Tensor, weights: Tensor) -> Tensor:
        """From `frames` and (batch, voices, mask frames) to (batch, voices, dimension)."""


def share_frames(pipeline: Any) -> bool:  # noqa: ANN401
    """Have `pipeline`, a SpeakerDiarization on its device, share frames among voices; False where
    it stays as it is.
    """
    model = getattr(getattr(pipeline, "_embedding", None), "model_", None)
    method = getattr(pipeline, "get_embeddings", None)
    if (
        not isinstance(model, FrameModel)
        or method is None
        or list(inspect.signature(method).parameters) != REPLACED
    ):
        return False
    if pipeline._embedding.device.type == "cpu":
        pipeline._embedding.model_.to(memory_format=torch.channels_last)
    pipeline.get_embeddings = WindowEmbeddings(pipeline, model)
    return True


class WindowEmbeddings:
    """Stands for `get_embeddings` of one pipeline; answers one call at a time, as the pipeline
    does.
    """

    def __init__(self, pipeline: Any, model: FrameModel) -> None:  # noqa: ANN401
        self._pipeline, self._model = pipeline, model
        embedding = pipeline._embedding
        self._device: torch.device = embedding.device
        # pyannote finds the shortest sound its model takes by trying; here, so that no request
        # waits for that.
        self._fewest_samples: int = embedding.min_num_samples
        self._rate: int = embedding.sample_rate
        silence = torch.zeros(
            1, 1, round(pipeline._segmentation.duration * self._rate), device=self._device
        )
        with torch.inference_mode():
            frames = model.forward_frames(silence)
        self._most = max(1, CACHED // frames.numel()) if self._device.type == "cpu" else sys.maxsize
        # Under a mask of zeros every sound pools to zero: one embedding, (dimension,), serves all
        # who are silent.
        self._silent = self._embed(silence, torch.zeros(1, 1, 1))[0, 0]

    def __call__(
        self,
        file: dict[str, Any],
        binary_segmentations: Any,  # noqa: ANN401
        exclude_overlap: bool = False,
        hook: object = None,
    ) -> Array:
        """Embed the voices of each window, (windows, voices, dimension).

        `binary_segmentations`, a `pyannote.core.SlidingWindowFeature` of (windows, frames, voices),
        says who speaks when. With `exclude_overlap` a voice is listened to where it is alone, if
        that is long enough for the model. `hook`, pyannote's progress bar, is told nothing.
        """
        activity, windows = binary_segmentations.data, binary_segmentations.sliding_window
        fewest = math.ceil(
            activity.shape[1] * self._fewest_samples / (windows.duration * self._rate)
        )
        embeddings = np.tile(self._silent, (activity.shape[0], activity.shape[2], 1))
        for chosen in self._batches(activity):
            waveforms = [
                self._pipeline._audio.crop(file, windows[int(index)], mode="pad")[0]
                for index in chosen
            ]
            masks = voice_masks(activity[chosen], fewest if exclude_overlap else None)
            embeddings[chosen] = self._embed(torch.stack(waveforms), torch.from_numpy(masks))
        return embeddings

    def _batches(self, activity: Array) -> Iterator[NDArray[np.intp]]:
        """Indices of the windows in which somebody speaks, as many at a time as are embedded at
        once.
        """
        heard = np.flatnonzero((activity > 0).any(axis=(1, 2)))
        size = min(self._pipeline.embedding_batch_size, self._most)
        return (heard[start : start + size] for start in range(0, len(heard), size))

    @torch.inference_mode()
    def _embed(self, waveforms: Tensor, masks: Tensor) -> Array:
        frames = self._model.forward_frames(waveforms.to(self._device))
        embeddings: Array = (
            self._model.forward_embedding(frames, masks.to(self._device)).cpu().numpy()
        )
        return embeddings


def voice_masks(activity: Array, fewest: int | None) -> Array:
    """Where each voice is listened to, from (windows, frames, voices) to (windows, voices, frames).

    NaN, a frame that the segmentation did not judge, is silence. With `fewest`, a voice is listened
    to where it is alone if that is more than so many frames, else wherever it speaks.
    """
    masks = np.nan_to_num(activity)
    if fewest is not None:
        alone = np.nan_to_num(activity * (activity.sum(axis=2, keepdims=True) < 2))
        masks = np.where(alone.sum(axis=1, keepdims=True) > fewest, alone, masks)
    return np.ascontiguousarray(masks.transpose(0, 2, 1), dtype=np.float32)
