"""Keeps the probabilities that pyannote's segmentation reduces to decisions."""

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whosaid.diarization.activity import SpeakerActivity


class SoftDecisions(torch.nn.Module):
    """Converts a powerset network's output, log-probabilities (windows, frames, sets of speakers).

    The result (windows, frames, 2 * speakers + 1) has pyannote's decisions, then each speaker's
    probability, then that of several speakers.
    """

    def __init__(self, powerset: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._powerset = powerset

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        sets, powerset = output.exp(), self._powerset
        several = sets[..., powerset.cardinality > 1].sum(dim=-1, keepdim=True)
        return torch.cat((powerset(output), sets @ powerset.mapping, several), dim=-1)


def keep_probabilities(pipeline: Any) -> None:  # noqa: ANN401
    """Make `get_segmentations` and `reconstruct` of a SpeakerDiarization with a powerset network
    put a SpeakerActivity into the list `file["activity"]`. `file["segmented"]` may have the first
    batches of the network's output, which are removed.
    """
    inference, reconstruct = pipeline._segmentation, pipeline.reconstruct
    if not inference.model.specifications.powerset:
        return
    inference.conversion = SoftDecisions(inference.conversion)

    def get_segmentations(file: Mapping[str, Any], hook: Callable[..., None]) -> Any:  # noqa: ANN401
        known, own = file.get("segmented", deque()), copy(inference)
        own.infer = lambda chunks: known.popleft() if known else inference.infer(chunks)
        found = own(file, hook=partial(hook, "segmentation", None))
        speakers = found.data.shape[2] // 2
        found.soft = found.data[..., speakers:].astype(np.float16)
        found.activity = file.get("activity", [])
        found.data = np.ascontiguousarray(found.data[..., :speakers])
        return found

    def reconstructed(segmentations: Any, clusters: Any, count: Any) -> Any:  # noqa: ANN401
        decided = reconstruct(segmentations, clusters, count)
        if not segmentations.activity:  # the turns that overlap come before the exclusive ones
            segmentations.activity.append(_activity(segmentations, clusters, decided.data))
        return decided

    pipeline.get_segmentations, pipeline.reconstruct = get_segmentations, reconstructed


def _activity(segmentations: Any, clusters: Any, decided: Any) -> SpeakerActivity:  # noqa: ANN401
    """Return the mean probabilities of all windows, with pyannote's labels. Of several parts of a
    local speaker (`diarization.stretches`) each frame is the nearest one's.
    """
    soft, hard = segmentations.soft, segmentations.data
    columns = segmentations.labels or range(hard.shape[2])
    window = segmentations.sliding_window
    rate = hard.shape[1] / window.duration
    starts = np.rint(np.arange(len(hard)) * window.step * rate).astype(int)
    frames = np.zeros((starts[-1] + hard.shape[1], decided.shape[1] + 1), np.float32)
    covered = np.zeros((len(frames), 1), np.float32)
    for start, probabilities, active, own in zip(starts, soft, hard, clusters, strict=True):
        part = frames[start:][: len(active)]
        part[:, -1] += probabilities[:, -1]
        covered[start:][: len(active)] += 1
        for local in set(columns):
            heard = [each for each, of in enumerate(columns) if of == local and own[each] >= 0]
            nearest = _nearest(active[:, heard] > 0)
            for number, each in enumerate(heard):
                mine = nearest == number
                part[mine, own[each]] += probabilities[mine, local]
    frames /= np.maximum(covered, 1)
    present = sorted(np.flatnonzero(decided.any(axis=0)).tolist(), key=str)  # as pyannote does
    labels = [f"SPEAKER_{number:02d}" for number in range(len(present))]
    return SpeakerActivity.averaged(frames[:, [*present, -1]].clip(max=1), rate, labels)


def _nearest(active: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return for each frame the column of `active` (frames, columns) with the nearest True."""
    frames = np.arange(len(active))[:, None]
    distances = [
        np.abs(frames - np.flatnonzero(each)).min(axis=1, initial=len(active)) for each in active.T
    ]
    return np.argmin(distances, axis=0) if distances else np.zeros(len(active), np.intp)
