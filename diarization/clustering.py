"""Finds the voices of a recording, including voices that a pipeline's own clustering leaves out.

pyannote clusters pairs of a window and a local speaker, one of the speakers that segmentation tells
apart in that window. It learns voices only from local speakers who speak alone for a fifth of a
window. So voices are missing in short recordings, as are people who say little, and their speech
goes to somebody else. Given another number of speakers than it found, it discards its result and
clusters anew by k-means, which is worse than its result without a number.

`complete_voices` replaces the clustering of a loaded pipeline. It calls the pipeline's own without
a number and then corrects the result:

- In a recording of one window the local speakers are the voices.
- Local speakers of a window are different people (the cannot-link of pyannote's own assignment). If
  no voice is left for one of them and no voice is similar, it becomes a new voice.
- If there are too many voices, the two most similar are joined until the number fits.
- If there are too few voices, local speakers unlike every voice become voices. No voice is split,
  so the number may stay below the one that was given.

If no correction applies, the result is the pipeline's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

# Cosines of WeSpeaker's embeddings, chosen on the recordings of docs/benchmarks/voices.md. Below
# LEFT_OUT a local speaker for whom no voice is left is a new voice; below UNLIKE any local speaker
# is, if more voices are wanted. Of pairs of different people across recordings 99% are below 0.3.
LEFT_OUT, UNLIKE = 0.6, 0.3
MIN_ALONE = 0.5  # a voice is learnt from so many seconds without other speakers

# Clusterings of pyannote.audio 3 and 4 that find the number of speakers; pyannote uses its others
# for experiments.
FIND_THE_NUMBER = ("AgglomerativeClustering", "VBxClustering")

Array = NDArray[Any]
# Clusters (windows, speakers), scores for each, and centroids.
Clusters = tuple[Array, Array, Array]


def complete_voices(pipeline: Any) -> None:  # noqa: ANN401
    """Replace the clustering of a SpeakerDiarization, if it finds the number of speakers itself."""
    own: Any = pipeline.clustering
    if type(own).__name__ in FIND_THE_NUMBER:
        pipeline.clustering = CompleteVoices(own)


class CompleteVoices:
    """Replaces a pipeline's `clustering`, which is `own`."""

    def __init__(self, own: Callable[..., Clusters]) -> None:
        self._own = own

    def __call__(
        self,
        embeddings: Array,
        segmentations: Any,  # noqa: ANN401
        num_clusters: int | None = None,
        min_clusters: int | None = None,
        max_clusters: float | None = None,
        **others: Any,  # noqa: ANN401
    ) -> Clusters:
        """Cluster `embeddings` (windows, speakers, dimension).

        `segmentations`, a `pyannote.core.SlidingWindowFeature` (windows, frames, speakers), tells
        when each local speaker is active. Returns the voice of each local speaker (windows,
        speakers), -2 for none; its similarity to each voice; and the voices, (voices, dimension).
        """
        least = num_clusters or min_clusters or 1
        most = num_clusters or max_clusters or np.inf
        pairs = _Pairs(embeddings, segmentations)
        if len(embeddings) == 1:
            own, found = None, embeddings[0][pairs.active[0]]
        else:
            own = self._own(
                embeddings.copy(), segmentations, min_clusters=1, max_clusters=np.inf, **others
            )
            found = own[2][np.isfinite(own[2]).all(axis=1)]
        voices = pairs.join(pairs.add(found, least, most), most)
        if own is not None and (len(voices) == 0 or np.array_equal(voices, own[2])):
            return own
        return *pairs.assign(voices), voices


class _Pairs:
    """All local speakers of all windows."""

    def __init__(self, embeddings: Array, segmentations: Any) -> None:  # noqa: ANN401
        activity = np.nan_to_num(segmentations.data)
        frame = segmentations.sliding_window.duration / activity.shape[1]
        alone = activity * (activity.sum(axis=2, keepdims=True) == 1)
        self.embeddings = embeddings  # (windows, speakers, dimension)
        self.active = activity.any(axis=1)  # (windows, speakers)
        self.seconds = alone.sum(axis=1) * frame  # (windows, speakers), without others
        # Local speakers from whom a voice can be learnt: indices (n,) of windows and speakers.
        usable = np.isfinite(embeddings).all(axis=2) & (self.seconds >= MIN_ALONE)
        self.usable = np.nonzero(usable)

    def add(self, voices: Array, least: int, most: float) -> Array:
        """Return `voices` (n, dimension) and missing voices, together at most `most`."""
        own, seconds = self.embeddings[self.usable], self.seconds[self.usable]
        while len(voices) < most:
            similar = _cosines(own, voices).max(axis=1, initial=-1.0)
            left_out = self.assign(voices)[0][self.usable] < 0
            unlike = UNLIKE if len(voices) < least else -1.0
            new = np.flatnonzero(similar < np.where(left_out, LEFT_OUT, unlike))
            if not len(new):
                break
            clearest = int(new[np.argmax(seconds[new])])
            alike = new[_cosines(own[new], own[[clearest]])[:, 0] >= similar[new]]
            voice = np.average(own[alike], axis=0, weights=seconds[alike])
            voices = np.vstack([voices, voice])
        return voices

    def join(self, voices: Array, most: float) -> Array:
        """Join the two most similar of `voices` until there are at most `most`."""
        while len(voices) > max(most, 1):
            chosen = self.assign(voices)[0]
            pairs = np.maximum(np.bincount(chosen[chosen >= 0], minlength=len(voices)), 1)
            similar = _cosines(voices, voices) - 3 * np.eye(len(voices))
            both = sorted(map(int, np.unravel_index(np.argmax(similar), similar.shape)))
            joined = np.average(voices[both], axis=0, weights=pairs[both])
            voices = np.vstack([np.delete(voices, both, axis=0), joined])
        return voices

    def assign(self, voices: Array) -> tuple[Array, Array]:
        """Return the voice of each local speaker, (windows, speakers), and its similarity to each.

        Local speakers of a window get different voices, with the largest sum of similarities; -2
        for those who are silent or for whom no voice is left.
        """
        windows, speakers, dimension = self.embeddings.shape
        similar = _cosines(self.embeddings.reshape(-1, dimension), voices)
        similar = similar.reshape(windows, speakers, len(voices))
        chosen = np.full((windows, speakers), -2)
        for window, active in enumerate(self.active):
            present = np.flatnonzero(active)
            rows, columns = linear_sum_assignment(similar[window, present], maximize=True)
            chosen[window, present[rows]] = columns
        return chosen, similar


def _cosines(these: Array, those: Array) -> Array:
    """Return the cosines, (these, those); -1 for a vector of length zero."""
    if not len(these) or not len(those):
        return np.zeros((len(these), len(those)))
    cosines: Array = np.nan_to_num(1 - cdist(these, those, metric="cosine"), nan=-1.0)
    return cosines
