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
  no voice is left for a local speaker and no voice is similar, it becomes a new voice. Parts of one
  local speaker (`diarization.stretches`) only differ from people who speak at the same time.
- A short recording has too little evidence for VBx, which then takes two people for one voice. So
  its embeddings are stronger evidence there, and alike voices are joined.
- In recordings of a minute, people who say little become voices if they are unlike every voice.
- If there are too many voices, the two most similar are joined until the number fits.
- If there are too few voices, local speakers unlike every voice become voices. Then voices are
  split so that local speakers are as much closer to their voice than to the next as possible. The
  number stays below the requested number only if no split is audible in the result.

If no correction applies, the result is the pipeline's own.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

# Cosines of WeSpeaker's embeddings, chosen on the recordings of docs/benchmarks/voices.md. A local
# speaker becomes a new voice below LEFT_OUT if no voice is left for it, below CLEARLY_UNLIKE if it
# is clear, and below UNLIKE if more voices are wanted. 99% of pairs of different people across
# recordings are below 0.3.
LEFT_OUT, CLEARLY_UNLIKE, UNLIKE = 0.55, 0.35, 0.3
MIN_ALONE = 0.4  # seconds without other speakers that a voice needs
# Chosen on mixtures of readers and those recordings. Recordings of at most SHORT windows (21 s) are
# short. There SHORT_FA replaces VBx's weight of the evidence (pyannote's Fa, 0.07), and a second
# with others counts as WITH_OTHERS. In the only window of a recording a voice needs MIN_CLEAR
# seconds. In recordings of at most MINUTE windows, a local speaker of MIN_CLEAR seconds that is
# unlike every voice becomes one. Longer recordings were not tried.
SHORT, SHORT_FA, WITH_OTHERS, MIN_CLEAR, MINUTE = 12, 0.3, 0.35, 1.0, 60
# To reach a requested number: rounds of k-means after a split, local speakers tried as new voices,
# and splits whose result is decoded, best first.
ROUNDS, SEEDS, TRIES = 3, 12, 12

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
        short = deepcopy(own)
        if hasattr(short, "Fa"):
            short.Fa = max(short.Fa, SHORT_FA)
        pipeline.clustering = partial(complete, own, short=short)


def complete(
    clustering: Callable[..., Clusters],
    embeddings: Array,
    segmentations: Any,  # noqa: ANN401
    num_clusters: int | None = None,
    min_clusters: int | None = None,
    max_clusters: float | None = None,
    short: Callable[..., Clusters] | None = None,
    **others: Any,  # noqa: ANN401
) -> Clusters:
    """Cluster `embeddings` (windows, speakers, dimension) and correct the result.

    `clustering` is the pipeline's own, `short` (optional) replaces it in short recordings.
    `segmentations` is a `pyannote.core.SlidingWindowFeature` (windows, frames, speakers) with the
    activity of local speakers; parts of one speaker have equal `labels`. Returns each local
    speaker's voice (windows, speakers), -2 for none; its similarity to each voice; and the voices
    (voices, dimension).
    """
    least = num_clusters or min_clusters or 1
    most = num_clusters or max_clusters or np.inf
    pairs = _Pairs(embeddings, segmentations)
    if len(embeddings) == 1:
        own, found = None, embeddings[0][pairs.clear_in_one()]
    else:
        own = (short if short and pairs.short else clustering)(
            embeddings.copy(), segmentations, min_clusters=1, max_clusters=np.inf, **others
        )
        found = own[2][np.isfinite(own[2]).all(axis=1)]
        if pairs.short:
            found = pairs.join(found, np.inf, least, LEFT_OUT)
    if own is not None or len(found) < least:
        found = pairs.add(found, least, most)
    voices = pairs.join(pairs.split(found, least), most)
    unchanged = own is not None and np.array_equal(voices, own[2]) and not pairs.parts.any()
    if own is not None and (unchanged or len(voices) == 0):
        return own
    return *pairs.assign(voices), voices


class _Pairs:
    """The local speakers of all windows."""

    def __init__(self, embeddings: Array, segmentations: Any) -> None:  # noqa: ANN401
        activity = np.nan_to_num(segmentations.data)
        frame = segmentations.sliding_window.duration / activity.shape[1]
        self.short = len(embeddings) <= SHORT
        with_others = WITH_OTHERS if self.short else 0.0
        clear = activity * np.where(activity.sum(axis=2, keepdims=True) == 1, 1.0, with_others)
        self.embeddings = embeddings  # (windows, speakers, dimension)
        self.activity = activity  # (windows, frames, speakers)
        self.step = segmentations.sliding_window.step / frame  # of windows, in frames
        self.active = activity.any(axis=1)  # (windows, speakers)
        # Speakers of a window (windows, speakers) that were one before they were separated.
        self.parts = np.zeros_like(self.active)
        if segmentations.labels is not None:
            same = np.equal.outer(segmentations.labels, segmentations.labels)
            self.parts = self.active & (self.active @ same.astype(int) > 1)
        self.seconds = clear.sum(axis=1) * frame  # (windows, speakers), mostly without others
        # Indices (n,) of windows and local speakers that voices can be learnt from.
        usable = np.isfinite(embeddings).all(axis=2) & embeddings.any(axis=2)
        self.usable = np.nonzero(usable & (self.seconds >= MIN_ALONE))

    def clear_in_one(self) -> Array:
        """Return which speakers of the only window are voices; all if nobody speaks enough."""
        clear: Array = self.active[0] & (self.seconds[0] >= MIN_CLEAR)
        return clear if clear.any() else self.active[0]

    def add(self, voices: Array, least: int, most: float) -> Array:
        """Return `voices` (n, dimension) with missing voices appended, at most `most` in all. Below
        `least` voices, local speakers unlike every voice are added too, and in a minute those that
        are clear.
        """
        own, seconds = self.embeddings[self.usable], self.seconds[self.usable]
        while len(voices) < most:
            similar = cosines(own, voices).max(axis=1, initial=-1.0)
            left_out = self.assign(voices)[0][self.usable] < 0
            clear = (len(self.active) <= MINUTE) & (seconds >= MIN_CLEAR)
            unlike = UNLIKE if len(voices) < least else np.where(clear, CLEARLY_UNLIKE, -1.0)
            new = np.flatnonzero(similar < np.where(left_out, LEFT_OUT, unlike))
            if not len(new):
                break
            clearest = int(new[np.argmax(seconds[new])])
            alike = new[cosines(own[new], own[[clearest]])[:, 0] >= similar[new]]
            voice = np.average(own[alike], axis=0, weights=seconds[alike])
            voices = np.vstack([voices, voice])
        return voices

    def split(self, voices: Array, least: int) -> Array:
        """Return `voices` with voices split until there are `least`, if each is audible then."""
        while 0 < len(voices) < least:
            splits = [self._refine(each) for each in self._splits(voices)]
            splits.sort(key=self._separation, reverse=True)
            audible = next((each for each in splits[:TRIES] if self._are_audible(each)), None)
            if audible is None:
                break
            voices = audible
        return voices

    def _splits(self, voices: Array) -> Iterator[Array]:
        """Yield `voices` with one split into two unlike local speakers, and with one appended."""
        own = _normed(self.embeddings[self.usable])
        chosen, similar = (each[self.usable] for each in self.assign(voices))
        belongs = chosen[:, None] == np.arange(len(voices))
        nearness = similar.max(axis=1, where=belongs, initial=-1.0)
        for voice in range(len(voices)):
            members = np.flatnonzero(belongs[:, voice])
            if len(members) > 1:
                first = members[np.argmin(nearness[members])]
                second = members[np.argmin(own[members] @ own[first])]
                yield np.vstack([np.delete(voices, voice, axis=0), own[[first, second]]])
        for seed in np.argsort(nearness, kind="stable")[:SEEDS]:
            yield np.vstack([voices, own[seed]])

    def _refine(self, voices: Array) -> Array:
        """Return `voices` after rounds of k-means."""
        own, seconds = _normed(self.embeddings[self.usable]), self.seconds[self.usable]
        for _ in range(ROUNDS):
            chosen = self.assign(voices)[0][self.usable]
            voices = voices.copy()
            for voice in np.unique(chosen[chosen >= 0]):
                members = chosen == voice
                voices[voice] = np.average(own[members], axis=0, weights=seconds[members])
        return voices

    def _separation(self, voices: Array) -> float:
        """Return local speakers' mean lead of their voice over the next; -inf if one has none."""
        chosen, similar = (each[self.usable] for each in self.assign(voices))
        if len({*chosen[chosen >= 0]}) < len(voices):
            return -np.inf
        belongs = chosen[:, None] == np.arange(len(voices))
        nearness = similar.max(axis=1, where=belongs, initial=-1.0)
        closer = nearness - similar.max(axis=1, where=~belongs, initial=-1.0)
        assigned = chosen >= 0
        return float(np.average(closer[assigned], weights=self.seconds[self.usable][assigned]))

    def _are_audible(self, voices: Array) -> bool:
        """Decode like pyannote, which gives each frame to the voices that most windows hear, as
        many as speak. Return whether each voice has a frame.
        """
        windows, frames, _ = self.activity.shape
        starts = np.rint(np.arange(windows) * self.step).astype(int)
        votes = np.zeros((starts[-1] + frames, len(voices)))
        speaking, covered = np.zeros((2, len(votes)))
        chosen = self.assign(voices)[0]
        for start, activity, own in zip(starts, self.activity, chosen, strict=True):
            for speaker in np.flatnonzero(own >= 0):
                votes[start : start + frames, own[speaker]] += activity[:, speaker]
            speaking[start : start + frames] += activity.sum(axis=1)
            covered[start : start + frames] += 1
        number = np.rint(speaking / np.maximum(covered, 1))
        ranks = np.argsort(np.argsort(-votes, axis=1, kind="stable"), axis=1)
        return bool((ranks < number[:, None]).any(axis=0).all())

    def join(self, voices: Array, most: float, least: int = 1, alike: float = np.inf) -> Array:
        """Return `voices` with the two most similar joined until at most `most` are left, and none
        have a cosine of `alike` or only `least` are left.
        """
        while len(voices) > max(least, 1):
            similar = cosines(voices, voices) - 3 * np.eye(len(voices))
            if len(voices) <= most and np.max(similar) < alike:
                break
            chosen = self.assign(voices)[0]
            pairs = np.maximum(np.bincount(chosen[chosen >= 0], minlength=len(voices)), 1)
            both = sorted(map(int, np.unravel_index(np.argmax(similar), similar.shape)))
            joined = np.average(voices[both], axis=0, weights=pairs[both])
            voices = np.vstack([np.delete(voices, both, axis=0), joined])
        return voices

    def assign(self, voices: Array) -> tuple[Array, Array]:
        """Return each local speaker's voice (windows, speakers), -2 for none, and its similarity to
        each voice. Local speakers of a window get different voices, with the largest sum of
        similarities; then each part gets the most similar voice that nobody has at the same time.
        """
        windows, speakers, dimension = self.embeddings.shape
        similar = cosines(self.embeddings.reshape(-1, dimension), voices)
        similar = similar.reshape(windows, speakers, len(voices))
        chosen = np.full((windows, speakers), -2)
        for window, active in enumerate(self.active):
            present = np.flatnonzero(active & ~self.parts[window])
            rows, columns = linear_sum_assignment(similar[window, present], maximize=True)
            chosen[window, present[rows]] = columns
        for window, part in zip(*np.nonzero(self.parts), strict=True):
            activity = self.activity[window]
            at_once = activity[activity[:, part] > 0].any(axis=0)
            left = np.setdiff1d(np.arange(len(voices)), chosen[window, at_once])
            if len(left):
                chosen[window, part] = left[similar[window, part, left].argmax()]
        return chosen, similar


def _normed(vectors: Array) -> Array:
    normed: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return normed


def cosines(these: Sequence[Array] | Array, those: Sequence[Array] | Array) -> Array:
    """Return the cosines, (these, those); -1 for a vector of length zero."""
    if not len(these) or not len(those):
        return np.zeros((len(these), len(those)))
    cosines: Array = np.nan_to_num(1 - cdist(these, those, metric="cosine"), nan=-1.0)
    return cosines
