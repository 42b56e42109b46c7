"""Which voices a recording has: those that a pipeline's clustering finds, and those it leaves out.

pyannote clusters pairs of a window and one of the speakers that segmentation tells apart in it, but
learns voices only from pairs that speak alone for a fifth of a window. So in short recordings, and
of people who say little, voices are missing, and what they say goes to somebody else. Told a number
of speakers other than the one it found, it discards what it found and clusters anew by k-means,
which is worse than not to be told.

`complete_voices` replaces the clustering of one loaded pipeline. It asks the pipeline's own without
any number, and goes on from there:

- In a recording of one window the speakers of that window are the voices.
- Two speakers of a window are not one person (the cannot-link of pyannote's own assignment). Where
  no voice is left for one of them, and none is like it, it is a voice of its own.
- Of too many voices the two most alike are joined, until as many are left as may be.
- Where more were told, speakers unlike every voice become voices, but nobody is split in two: the
  number may stay below the one that was told.

Where nothing of this applies the result is the pipeline's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

# Cosines of WeSpeaker's embeddings, chosen on the recordings of docs/benchmarks/voices.md: below
# the first a speaker for whom no voice is left is another voice; below the second anybody is, where
# more were told. Of different people across recordings 99% are below 0.3.
LEFT_OUT, UNLIKE = 0.6, 0.3
MIN_ALONE = 0.5  # seconds without others from which a voice can be learnt

# The clusterings of pyannote.audio 3 and 4 that do; the others are for its own experiments.
FIND_THE_NUMBER = ("AgglomerativeClustering", "VBxClustering")

Array = NDArray[Any]
# Clusters (windows, speakers), scores for each, and centroids.
Clusters = tuple[Array, Array, Array]


def complete_voices(pipeline: Any) -> None:  # noqa: ANN401
    """Replace the clustering of `pipeline`, a SpeakerDiarization, if it finds numbers itself."""
    own: Any = getattr(pipeline, "clustering", None)
    if type(own).__name__ in FIND_THE_NUMBER:
        pipeline.clustering = CompleteVoices(own)


class CompleteVoices:
    """A clustering in the place of a pipeline's own."""

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

        `segmentations` is a `pyannote.core.SlidingWindowFeature` of (windows, frames, speakers):
        who speaks when. Returns the voice of each pair (windows, speakers), -2 where a pair has
        none; its similarity to each voice; and the voices, (voices, dimension).
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
    """Every window with every speaker that segmentation tells apart in it."""

    def __init__(self, embeddings: Array, segmentations: Any) -> None:  # noqa: ANN401
        activity = np.nan_to_num(segmentations.data)
        frame = segmentations.sliding_window.duration / activity.shape[1]
        alone = activity * (activity.sum(axis=2, keepdims=True) == 1)
        self.embeddings = embeddings  # (windows, speakers, dimension)
        self.active = activity.any(axis=1)  # (windows, speakers)
        self.seconds = alone.sum(axis=1) * frame  # (windows, speakers), without others
        # Those that a voice can be learnt from: indices (n,) of windows and of speakers.
        usable = np.isfinite(embeddings).all(axis=2) & (self.seconds >= MIN_ALONE)
        self.usable = np.nonzero(usable)

    def add(self, voices: Array, least: int, most: float) -> Array:
        """`voices` (n, dimension) and those that were left out, at most `most`."""
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
        """`voices` with the two most alike joined, until there are at most `most`."""
        while len(voices) > max(most, 1):
            chosen = self.assign(voices)[0]
            pairs = np.maximum(np.bincount(chosen[chosen >= 0], minlength=len(voices)), 1)
            similar = _cosines(voices, voices) - 3 * np.eye(len(voices))
            both = sorted(map(int, np.unravel_index(np.argmax(similar), similar.shape)))
            joined = np.average(voices[both], axis=0, weights=pairs[both])
            voices = np.vstack([np.delete(voices, both, axis=0), joined])
        return voices

    def assign(self, voices: Array) -> tuple[Array, Array]:
        """The voice of each pair, (windows, speakers), and its similarity to each voice.

        Speakers of a window have different voices, chosen together for the largest sum; -2 where
        none is left, or nobody speaks.
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
    """Cosines, (these, those); -1 with a vector that has no direction."""
    if not len(these) or not len(those):
        return np.zeros((len(these), len(those)))
    cosines: Array = np.nan_to_num(1 - cdist(these, those, metric="cosine"), nan=-1.0)
    return cosines
