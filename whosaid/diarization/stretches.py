"""Separates people whom the segmentation takes for one local speaker of a window.

People who speak one after the other often are the same local speaker in every window, whose
embedding mixes their voices. So its stretches, which end at pauses or after MAX_SECONDS, are
embedded too. If the stretches form groups of unlike voices, each becomes a local speaker.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

# Chosen on mixtures of readers and on the recordings of docs/benchmarks/voices.md. Stretches of one
# voice have a mean cosine of at least ALIKE.
PAUSE, MIN_SECONDS, MAX_SECONDS, ALIKE = 0.2, 1.0, 2.5, 0.3

Array = NDArray[Any]


class SpeakerPart(NamedTuple):
    """One voice of a local speaker: frames (n,) of its stretches, and an embedding (dimension,)."""

    frames: Array
    embedding: Array


class MixedSpeaker(NamedTuple):
    """A local speaker with several voices."""

    window: int
    speaker: int
    parts: Sequence[SpeakerPart]


class Stretches:
    """The stretches of a batch's local speakers.

    `masks` (windows, rows, frames) has the speakers' own masks, and then masks of their stretches,
    padded with zeros.
    """

    def __init__(self, masks: Array, seconds: float) -> None:
        """Cut `masks` (windows, speakers, frames), whose frames are `seconds` long."""
        self._found = [[find_stretches(mask, seconds) for mask in window] for window in masks]
        windows, self._speakers, frames = masks.shape
        rows = max(sum(map(len, window)) for window in self._found)
        self.masks = np.zeros((windows, self._speakers + rows, frames), masks.dtype)
        self.masks[:, : self._speakers] = masks
        for own, window in zip(self.masks, self._found, strict=True):
            for row, stretch in enumerate(each for found in window for each in found):
                own[self._speakers + row, stretch] = 1

    def mixed_speakers(self, embeddings: Array, windows: Sequence[int]) -> Iterator[MixedSpeaker]:
        """Yield the speakers with unlike stretches.

        `embeddings` (windows, rows, dimension) are those of `masks`, and `windows` the numbers of
        the batch's windows in the recording.
        """
        for number, window, own in zip(windows, self._found, embeddings, strict=True):
            row = self._speakers
            for speaker, stretches in enumerate(window):
                parts = group_stretches(stretches, own[row : row + len(stretches)])
                row += len(stretches)
                if len(parts) > 1:
                    yield MixedSpeaker(number, speaker, parts)


def find_stretches(mask: Array, seconds: float) -> list[Array]:
    """Return the stretches of a speaker in order of time, as numbers of frames; none if there are
    fewer than two. `mask` (frames,) has the speaker's frames, each `seconds` long.
    """
    frames = np.flatnonzero(mask)
    stretches = []
    for run in np.split(frames, np.flatnonzero(np.diff(frames) * seconds > PAUSE) + 1):
        parts = np.array_split(run, max(1, int(np.ceil(len(run) * seconds / MAX_SECONDS))))
        stretches += [part for part in parts if len(part) * seconds >= MIN_SECONDS]
    return stretches if len(stretches) > 1 else []


def group_stretches(stretches: Sequence[Array], embeddings: Array) -> list[SpeakerPart]:
    """Return the voices among `embeddings` (stretches, dimension); none for unusable ones."""
    norms = np.linalg.norm(embeddings, axis=1)
    if not len(stretches) or not ((norms > 0) & np.isfinite(norms)).all():
        return []
    tree = linkage(embeddings, method="average", metric="cosine")
    groups = fcluster(tree, 1 - ALIKE, criterion="distance")
    parts = []
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group).tolist()
        weights = [len(stretches[each]) for each in own]
        embedding = np.average(embeddings[own], axis=0, weights=weights)
        parts.append(SpeakerPart(np.concatenate([stretches[each] for each in own]), embedding))
    return parts


def separate(segmentations: Any, embeddings: Array, mixed: Sequence[MixedSpeaker]) -> Array:  # noqa: ANN401
    """Make every part of the `mixed` speakers a local speaker, which has the frames that are
    nearest to its stretches. Return the embeddings (windows, more speakers, dimension).

    `segmentations` is a `pyannote.core.SlidingWindowFeature` (windows, frames, speakers) and is
    changed in place, because pyannote reads it again to reconstruct turns. Its `labels` have the
    same number for all parts of a speaker.
    """
    speakers = embeddings.shape[1]
    more = max((len(each.parts) - 1 for each in mixed), default=0)
    if not more:
        return embeddings
    activity = np.pad(segmentations.data, ((0, 0), (0, 0), (0, more * speakers)))
    embeddings = np.pad(embeddings, ((0, 0), (0, more * speakers), (0, 0)))
    for window, speaker, parts in mixed:
        active = np.flatnonzero(activity[window, :, speaker] > 0)
        distances = [np.abs(active[:, None] - part.frames).min(axis=1) for part in parts]
        nearest = np.argmin(distances, axis=0)
        for number, part in enumerate(parts):
            column = speaker + number * speakers
            activity[window, :, column] = 0
            activity[window, active[nearest == number], column] = 1
            embeddings[window, column] = part.embedding
    segmentations.data = activity
    segmentations.labels = [*range(speakers)] * (more + 1)
    return embeddings
