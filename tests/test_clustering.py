"""Voices that a clustering leaves out, requested numbers of speakers, and clusterings that stay.

Embeddings are axes of a space and mixtures of them, so the speaker of each one is known."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyannote.core import SlidingWindow, SlidingWindowFeature

from whosaid.diarization.clustering import (
    CLEARLY_UNLIKE,
    LEFT_OUT,
    MINUTE,
    SHORT,
    SHORT_FA,
    UNLIKE,
    complete,
    complete_voices,
)

FRAMES, DIMENSION = 100, 6  # of a window of 10 s, and of an embedding
AXES = np.eye(DIMENSION)
NOBODY = None


def near(axis: int, cosine: float, other: int = 5) -> np.ndarray:
    """A vector of that cosine to an axis, and otherwise along another one."""
    return cosine * AXES[axis] + np.sqrt(1 - cosine**2) * AXES[other]


def recording(*windows):
    """Embeddings and segmentations of windows whose speakers take turns; None for nobody."""
    places = max(map(len, windows))
    embeddings = np.zeros((len(windows), places, DIMENSION))
    activity = np.zeros((len(windows), FRAMES, places), np.float32)
    for window, speakers in enumerate(windows):
        for place, vector in enumerate(speakers):
            if vector is not None:
                embeddings[window, place] = vector
                share = FRAMES // len(speakers)
                activity[window, place * share : (place + 1) * share, place] = 1
    return embeddings, SlidingWindowFeature(activity, SlidingWindow(duration=10, step=1))


class Finds:
    """A clustering that finds certain voices, and gives every pair the nearest."""

    def __init__(self, *voices):
        self.voices, self.asked = np.array(voices).reshape(-1, DIMENSION), []

    def __call__(self, embeddings, segmentations, **asked):
        self.asked.append(asked)
        self.found = (embeddings @ self.voices.T).argmax(axis=2), None, self.voices
        return self.found


def cluster(own, windows, **told):
    embeddings, segmentations = recording(*windows)
    return complete(own, embeddings, segmentations, **told)


def test_complete_clustering_is_returned_unchanged():
    own = Finds(AXES[0], AXES[1])
    for told in ({}, {"num_clusters": 2}, {"min_clusters": 1, "max_clusters": 4}):
        assert cluster(own, [[AXES[0], AXES[1]], [AXES[1], NOBODY]], **told) is own.found
    assert own.asked == 3 * [{"min_clusters": 1, "max_clusters": np.inf}]


def test_speakers_of_the_only_window_are_the_voices():
    chosen, _, voices = cluster(Finds(), [[AXES[0], NOBODY, near(0, 0.9), AXES[2]]])
    assert chosen[0, 1] == -2
    assert sorted(chosen[0, [0, 2, 3]]) == [0, 1, 2]
    np.testing.assert_array_equal(voices, [AXES[0], near(0, 0.9), AXES[2]])


def test_single_window_without_usable_embeddings_keeps_its_speakers():
    chosen, _, voices = cluster(Finds(), [[np.full(DIMENSION, np.nan), AXES[1]]])
    assert sorted(chosen[0]) == [0, 1]
    assert len(voices) == 2


@pytest.mark.parametrize(("cosine", "added"), [(LEFT_OUT - 0.01, 1), (LEFT_OUT + 0.01, 0)])
def test_voice_that_finds_no_cluster_is_added_unless_alike(cosine, added):
    other = near(0, cosine)
    windows = [[AXES[0], NOBODY], [AXES[0], other], [AXES[0], other]]
    chosen, similar, voices = cluster(Finds(AXES[0]), windows)
    assert len(voices) == 1 + added
    if added:
        np.testing.assert_allclose(voices[1], other)
        assert chosen.tolist() == [[0, -2], [0, 1], [0, 1]]
        assert similar.shape == (3, 2, 2)


def test_an_embedding_of_zeros_is_no_voice():
    assert len(cluster(Finds(AXES[0]), [[AXES[0], 0 * AXES[1]]] * 3)[2]) == 1


def test_nobody_is_added_for_a_moment():
    embeddings, segmentations = recording([AXES[0], AXES[1]], [AXES[0], AXES[1]])
    segmentations.data[:, 53:, 1] = 0  # 0.3 s in each window
    _, _, voices = complete(Finds(AXES[0]), embeddings, segmentations)
    assert len(voices) == 1


def test_clearest_voices_start_clusters_if_none_is_found():
    windows = [[AXES[0], AXES[1]], [AXES[0], NOBODY]]
    chosen, _, voices = cluster(Finds(np.full(DIMENSION, np.nan)), windows)
    assert len(voices) == 2
    assert chosen[0, 0] == chosen[1, 0] != chosen[0, 1]


@pytest.mark.parametrize("cosine", [UNLIKE - 0.01, UNLIKE + 0.01, 0.9])
@pytest.mark.parametrize("told", [{"num_clusters": 3}, {"min_clusters": 3}])
def test_voices_are_added_while_embeddings_differ(cosine, told):
    windows = [[AXES[0]], [AXES[0]], [near(0, cosine)], [near(0, cosine)]]
    chosen, _, voices = cluster(Finds(AXES[0]), windows, **told)
    assert len(voices) == 2
    assert not set(chosen[2:, 0]) & set(chosen[:2, 0])


def test_a_voice_that_would_not_be_heard_is_not_split_off():
    """The windows around outvote the third window's speaker."""
    windows = [[AXES[0]], [AXES[0]], [near(0, 0.5)], [AXES[0]], [AXES[0]]]
    embeddings, segmentations = recording(*windows)
    segmentations.data[2, :20] = segmentations.data[2, 80:] = 0
    _, _, voices = complete(Finds(AXES[0]), embeddings, segmentations, 2, 2, 2)
    assert len(voices) == 1


@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(2, 20))
def test_a_told_number_of_separable_people_is_found(seed, people, windows):
    """The order of windows does not matter, from the mean of all."""
    random = np.random.default_rng(seed)
    true = random.permutation(np.resize(np.arange(people), max(windows, people)))
    rows = [AXES[who] + random.normal(0, 0.05, DIMENSION) for who in true]
    everybody = np.mean(rows, axis=0)
    # Windows that do not overlap, so that nobody is outvoted.
    embeddings, segmentations = recording(*([row] for row in rows))
    segmentations.sliding_window = SlidingWindow(duration=10, step=10)
    told = dict.fromkeys(("num_clusters", "min_clusters", "max_clusters"), people)
    chosen, _, voices = complete(Finds(everybody), embeddings, segmentations, **told)
    assert len(voices) == people
    assert len({*zip(true, chosen[:, 0], strict=True)}) == people


def test_short_recordings_are_strong_evidence_for_vbx():
    class VBxClustering(Finds):
        Fa = 0.07

        def __call__(self, *arguments, **options):
            used.append(self.Fa)
            return super().__call__(*arguments, **options)

    used, pipeline = [], SimpleNamespace(clustering=VBxClustering(AXES[0]))
    complete_voices(pipeline)
    for windows in (SHORT, SHORT + 1):
        pipeline.clustering(*recording(*[[AXES[0]]] * windows))
    assert used == [SHORT_FA, 0.07]


def test_alike_voices_of_a_short_recording_are_one():
    for windows, found in ((SHORT, 1), (SHORT + 1, 2)):
        rows = [[AXES[0]], *[[near(0, LEFT_OUT + 0.01)]] * (windows - 1)]
        assert len(cluster(Finds(AXES[0], near(0, LEFT_OUT + 0.01)), rows)[2]) == found


def test_a_moment_is_no_voice_of_the_only_window():
    embeddings, segmentations = recording([AXES[0], AXES[1]])
    segmentations.data[0, 59:, 1] = 0  # 0.9 s are left
    assert len(complete(Finds(), embeddings, segmentations)[2]) == 1


def test_parts_of_a_speaker_may_be_one_voice():
    """And differ from those who speak at the same time."""
    embeddings, segmentations = recording([AXES[0], AXES[0], near(0, 0.9)], *2 * [[AXES[1]]])
    segmentations.labels = [0, 0, 1]
    segmentations.data[0, :10, 2] = 1  # while the first part speaks
    chosen, _, _ = complete(Finds(AXES[0], AXES[1]), embeddings, segmentations)
    assert chosen[0].tolist() == [1, 0, 0]


def test_unlike_voices_of_a_minute_are_added_without_a_number():
    windows = [[AXES[0]], [near(0, CLEARLY_UNLIKE - 0.01)]]
    own = Finds(AXES[0])
    assert len(cluster(own, windows)[2]) == 2
    assert len(cluster(own, [[AXES[0]], [near(0, CLEARLY_UNLIKE + 0.01)]])[2]) == 1
    assert cluster(own, windows * MINUTE) is own.found


@pytest.mark.parametrize("told", [{"num_clusters": 2}, {"max_clusters": 2}])
def test_too_many_are_joined_the_most_alike_first(told):
    windows = [[AXES[0], AXES[1]], [near(0, 0.8, 1), NOBODY], [AXES[1], NOBODY]]
    chosen, _, voices = cluster(Finds(AXES[0], near(0, 0.8, 1), AXES[1]), windows, **told)
    assert len(voices) == 2
    assert chosen[0, 0] == chosen[1, 0] != chosen[0, 1] == chosen[2, 0]


def test_only_clusterings_that_find_the_number_are_replaced():
    class Pipeline:
        clustering = None

    class AgglomerativeClustering(Finds):
        pass

    for own, replaced in ((AgglomerativeClustering(), True), (Finds(), False)):
        pipeline = Pipeline()
        pipeline.clustering = own
        complete_voices(pipeline)
        assert (pipeline.clustering is not own) == replaced


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_any_recording_keeps_what_is_promised(seed, windows, told, found):
    random = np.random.default_rng(seed)
    places = 3
    embeddings = random.normal(size=(windows, places, DIMENSION))
    activity = (random.random((windows, FRAMES, places)) < random.random((windows, 1, places))) * 1
    segmentations = SlidingWindowFeature(activity, SlidingWindow(duration=10, step=1))
    own = Finds(*random.normal(size=(found, DIMENSION)))
    if not found:
        own.voices = np.full((1, DIMENSION), np.nan)
    before = embeddings.copy()
    answer = complete(own, embeddings, segmentations, told, told, told)
    np.testing.assert_array_equal(embeddings, before)
    if windows > 1 and answer is own.found:
        return
    chosen, _, voices = answer
    assert len(voices) <= told
    for row, speaks in zip(chosen, activity.any(axis=1), strict=True):
        heard = row[speaks & (row >= 0)]
        assert len(set(heard)) == len(heard) == min(speaks.sum(), len(voices))
        assert (row[~speaks] == -2).all()
    assert chosen.max(initial=-1) < max(len(voices), 1)
