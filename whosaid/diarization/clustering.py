"""Corrects pyannote's clustering, which leaves out voices.

pyannote clusters pairs of a window and a local speaker, which is one of the speakers that
segmentation distinguishes in that window. Only local speakers who are alone for a fifth of a window
form voices. So voices are missing in short recordings, people who say little get no voice, and
their speech is attributed to somebody else. If the requested number of speakers differs from the
number found, pyannote clusters again by k-means, which is worse than its result without a number.

`complete_voices` replaces the clustering of a loaded pipeline. The replacement calls the pipeline's
own clustering without a number and corrects the result:

- In a recording of one window the local speakers are the voices.
- Local speakers of a window are different people (the cannot-link of pyannote's own assignment). If
  no voice is left for a local speaker and no voice is similar, it becomes a new voice.
- If there are too many voices, the two most similar are joined until the number fits.
- If there are too few voices, local speakers unlike every voice become voices. No voice is split,
  so the number may stay below the requested number.

If no correction applies, the result is the pipeline's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

# Cosines of WeSpeaker's embeddings, chosen on the recordings of docs/benchmarks/voices.md. A local
# speaker becomes a new voice below LEFT_OUT if no voice is left for it, and below UNLIKE if more
# voices are wanted. 99% of pairs of different people across recordings are below 0.3.
LEFT_OUT, UNLIKE = 0.6, 0.3
MIN_ALONE = 0.5  # seconds without other speakers that a voice needs

# Clusterings of pyannote.audio 3 and 4 that find the number of speakers. pyannote uses the others
# for experiments.
FIND_THE_NUMBER = ("AgglomerativeClustering", "VBxClustering")

Array = NDArray[Any]
# Clusters (windows, speakers), scores for each, and centroids.
Clusters = tuple[Array, Array, Array]


def complete_voices(pipeline: Any) -> None:  # noqa: ANN401
    """Replace a SpeakerDiarization's clustering if its class is in FIND_THE_NUMBER."""
    own: Any = pipeline.clustering
    if type(own).__name__ in FIND_THE_NUMBER:
        pipeline.clustering = partial(complete, own)


def complete(
    clustering: Callable[..., Clusters],
    embeddings: Array,
    segmentations: Any,  # noqa: ANN401
    num_clusters: int | None = None,
    min_clusters: int | None = None,
    max_clusters: float | None = None,
    **others: Any,  # noqa: ANN401
) -> Clusters:
    """Cluster `embeddings` (windows, speakers, dimension) and correct the result.

    `clustering` is the pipeline's own. `segmentations` is a `pyannote.core.SlidingWindowFeature`
    (windows, frames, speakers) with the activity of local speakers. Returns each local speaker's
    voice (windows, speakers), -2 for none; its similarity to each voice; and the voices (voices,
    dimension).
    """
    least = num_clusters or min_clusters or 1
    most = num_clusters or max_clusters or np.inf
    pairs = _Pairs(embeddings, segmentations)
    if len(embeddings) == 1:
        own, found = None, embeddings[0][pairs.active[0]]
    else:
        own = clustering(
            embeddings.copy(), segmentations, min_clusters=1, max_clusters=np.inf, **others
        )
        found = own[2][np.isfinite(own[2]).all(axis=1)]
    voices = pairs.join(pairs.add(found, least, most), most)
    if own is not None and (len(voices) == 0 or np.array_equal(voices, own[2])):
        return own
    return *pairs.assign(voices), voices


class _Pairs:
    """The local speakers of all windows."""

    def __init__(self, embeddings: Array, segmentations: Any) -> None:  # noqa: ANN401
        activity = np.nan_to_num(segmentations.data)
        frame = segmentations.sliding_window.duration / activity.shape[1]
        alone = activity * (activity.sum(axis=2, keepdims=True) == 1)
        self.embeddings = embeddings  # (windows, speakers, dimension)
        self.active = activity.any(axis=1)  # (windows, speakers)
        self.seconds = alone.sum(axis=1) * frame  # (windows, speakers), speaking without others
        # Indices (n,) of windows and local speakers that voices can be learnt from.
        usable = np.isfinite(embeddings).all(axis=2) & (self.seconds >= MIN_ALONE)
        self.usable = np.nonzero(usable)

    def add(self, voices: Array, least: int, most: float) -> Array:
        """Return `voices` (n, dimension) with missing voices appended, at most `most` in all. Below
        `least` voices, local speakers unlike every voice are added too.
        """
        own, seconds = self.embeddings[self.usable], self.seconds[self.usable]
        while len(voices) < most:
            similar = cosines(own, voices).max(axis=1, initial=-1.0)
            left_out = self.assign(voices)[0][self.usable] < 0
            unlike = UNLIKE if len(voices) < least else -1.0
            new = np.flatnonzero(similar < np.where(left_out, LEFT_OUT, unlike))
            if not len(new):
                break
            clearest = int(new[np.argmax(seconds[new])])
            alike = new[cosines(own[new], own[[clearest]])[:, 0] >= similar[new]]
            voice = np.average(own[alike], axis=0, weights=seconds[alike])
            voices = np.vstack([voices, voice])
        return voices

    def join(self, voices: Array, most: float) -> Array:
        """Return `voices` with the two most similar joined until at most `most` are left."""
        while len(voices) > max(most, 1):
            chosen = self.assign(voices)[0]
            pairs = np.maximum(np.bincount(chosen[chosen >= 0], minlength=len(voices)), 1)
            similar = cosines(voices, voices) - 3 * np.eye(len(voices))
            both = sorted(map(int, np.unravel_index(np.argmax(similar), similar.shape)))
            joined = np.average(voices[both], axis=0, weights=pairs[both])
            voices = np.vstack([np.delete(voices, both, axis=0), joined])
        return voices

    def assign(self, voices: Array) -> tuple[Array, Array]:
        """Return each local speaker's voice (windows, speakers) and its similarity to each voice.

        Local speakers of a window get different voices, with the largest sum of similarities.
        Silent speakers and speakers for whom no voice is left get -2.
        """
        windows, speakers, dimension = self.embeddings.shape
        similar = cosines(self.embeddings.reshape(-1, dimension), voices)
        similar = similar.reshape(windows, speakers, len(voices))
        chosen = np.full((windows, speakers), -2)
        for window, active in enumerate(self.active):
            present = np.flatnonzero(active)
            rows, columns = linear_sum_assignment(similar[window, present], maximize=True)
            chosen[window, present[rows]] = columns
        return chosen, similar


def cosines(these: Sequence[Array] | Array, those: Sequence[Array] | Array) -> Array:
    """Return the cosines, (these, those); -1 for a vector of length zero."""
    if not len(these) or not len(those):
        return np.zeros((len(these), len(those)))
    cosines: Array = np.nan_to_num(1 - cdist(these, those, metric="cosine"), nan=-1.0)
    return cosines
