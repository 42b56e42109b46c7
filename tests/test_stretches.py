"""People who are one local speaker are separated by their stretches. Embeddings are axes, so that
it is known whose each one is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyannote.core import SlidingWindow, SlidingWindowFeature

from whosaid.diarization.stretches import (
    MAX_SECONDS,
    MIN_SECONDS,
    PAUSE,
    MixedSpeaker,
    SpeakerPart,
    Stretches,
    find_stretches,
    separate,
)

RATE = 20  # frames a second
AXES = np.eye(4)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 12)), max_size=8))
def test_stretches_lie_between_pauses(runs):
    """Runs of speech, each with the pause after it, in frames."""
    mask = np.concatenate([np.repeat([1.0, 0.0], run) for run in runs] or [np.zeros(1)])
    stretches = find_stretches(mask, 1 / RATE)
    assert len(stretches) != 1
    frames = np.concatenate(stretches or [np.zeros(0, int)])
    assert (np.diff(frames) > 0).all()
    assert mask[frames].all()
    for stretch in stretches:
        assert MIN_SECONDS <= len(stretch) / RATE <= MAX_SECONDS
        assert np.diff(stretch).max() / RATE <= PAUSE


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from([0.0, 1e-3, 0.1]),
)
def test_each_voice_of_a_local_speaker_becomes_one(windows, noise):
    """Turns of 2 s and pauses of half a second, of one local speaker in each window."""
    frames = 4 * RATE * 5 // 2
    masks = np.zeros((len(windows), 2, frames), np.float32)
    true = np.full((len(windows), frames), -1)
    for window, people in enumerate(windows):
        for turn, who in enumerate(people):
            span = slice(turn * RATE * 5 // 2, turn * RATE * 5 // 2 + 2 * RATE)
            masks[window, 1, span] = 1
            true[window, span] = who
    stretches = Stretches(masks, 1 / RATE)
    # The embedding under a mask is the mean of the axes of those who speak.
    spoken = np.where(true[..., None] >= 0, AXES[true], 0)
    vectors = np.einsum("wrf,wfd->wrd", stretches.masks, spoken)
    moved = np.random.default_rng(0).normal(0, noise, vectors.shape)
    vectors += moved * vectors.any(axis=2)[..., None]
    np.testing.assert_array_equal(stretches.masks[:, :2], masks)

    window = SlidingWindow(duration=frames / RATE, step=1)
    segmentations = SlidingWindowFeature(masks.transpose(0, 2, 1).copy(), window)
    mixed = list(stretches.mixed_speakers(vectors, range(len(windows))))
    found = separate(segmentations, vectors[:, :2], mixed)
    activity = segmentations.data
    # Nobody's time is lost, or is two people's.
    np.testing.assert_array_equal(activity.sum(axis=2), masks.sum(axis=1))
    for each, people, own in zip(activity, windows, true, strict=True):
        voices = [{*own[column > 0]} for column in each.T if column.any()]
        assert sorted(map(sorted, voices)) == [[who] for who in sorted({*people})]
    speaking = activity.any(axis=1)
    assert found.shape[:2] == speaking.shape
    for window, voice in np.argwhere(speaking):
        vector, own = found[window, voice], true[window][activity[window, :, voice] > 0]
        assert vector[own[0]] > 0.9 * np.linalg.norm(vector)


def test_frames_between_stretches_belong_to_the_nearest():
    """Also those that overlap with others, from which no embedding comes."""
    data = np.zeros((1, 10, 2), np.float32)
    data[0, :, 0] = data[0, 4:, 1] = 1
    segmentations = SlidingWindowFeature(data.copy(), SlidingWindow(duration=1, step=1))
    parts = [SpeakerPart(np.arange(3), AXES[0]), SpeakerPart(np.arange(8, 10), AXES[1])]
    embeddings = separate(segmentations, np.ones((1, 2, 4)), [MixedSpeaker(0, 0, parts)])
    assert segmentations.labels == [0, 1, 0, 1]
    np.testing.assert_array_equal(embeddings[0], [AXES[0], np.ones(4), AXES[1], np.zeros(4)])
    np.testing.assert_array_equal(segmentations.data[0, :, 0], [1] * 6 + [0] * 4)
    np.testing.assert_array_equal(segmentations.data[0, :, 2], [0] * 6 + [1] * 4)
    np.testing.assert_array_equal(segmentations.data[..., 1], data[..., 1])


def test_embeddings_that_are_not_finite_separate_nobody():
    stretches = Stretches(np.ones((1, 1, 5 * RATE), np.float32), 1 / RATE)
    vectors = np.full((1, stretches.masks.shape[1], 4), np.nan)
    assert not list(stretches.mixed_speakers(vectors, [0]))
