"""Turns put together from windows, against pyannote's own."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyannote.audio.pipelines import SpeakerDiarization
from pyannote.core import SlidingWindow, SlidingWindowFeature

from whosaid.diarization.pyannote import ClusteredWindows, spare_memory

RESOLUTION = SlidingWindow(start=0.0, duration=0.2, step=0.1)  # of frames; 20 in a window


class Pipeline:
    """The parts of a SpeakerDiarization that `reconstruct` uses."""

    to_diarization = staticmethod(SpeakerDiarization.to_diarization)
    reconstruct = SpeakerDiarization.reconstruct


def heard(seed, windows, voices, step=1.0):
    """Return the local speakers of 2 s windows, one every `step` seconds, their identities, and
    the number who speak at once."""
    random = np.random.default_rng(seed)
    activity = (random.random((windows, 20, 3)) < 0.4).astype(np.float32)
    activity *= random.random((windows, 1, 3)) < 0.8
    window = SlidingWindow(start=0.0, duration=2.0, step=step)
    segmentations = SlidingWindowFeature(activity, window)
    clusters = random.integers(voices, size=(windows, 3))
    clusters[0, 0] = voices - 1
    clusters[activity.sum(axis=1) == 0] = -2
    count = SpeakerDiarization.speaker_count(segmentations, RESOLUTION, warm_up=(0.0, 0.0))
    return segmentations, clusters, count


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 5))
def test_turns_are_put_together_as_by_pyannote(seed, windows, voices):
    segmentations, clusters, count = heard(seed, windows, voices)
    if clusters.max() < 0:
        return
    stock = Pipeline().reconstruct(segmentations, clusters, count)
    pipeline = Pipeline()
    spare_memory(pipeline)
    assert "reconstruct" in vars(pipeline)
    ours = pipeline.reconstruct(segmentations, clusters, count)
    np.testing.assert_array_equal(ours.data, stock.data)
    assert vars(ours.sliding_window) == vars(stock.sliding_window)


def test_an_hour_is_written_down_a_window_at_a_time():
    windows, frames, voices = 3591, 589, 30  # as pyannote's published pipelines hear an hour
    activity = np.zeros((windows, frames, 3), np.float32)
    clusters = np.random.default_rng(0).integers(voices, size=(windows, 3))
    clusters[0] = voices - 1
    window = SlidingWindow(start=0.0, duration=10.0, step=1.0)
    written = ClusteredWindows(SlidingWindowFeature(activity, window), clusters)
    assert written.data.shape == (windows, frames, voices)
    tracemalloc.start()
    try:
        assert sum(scores.shape == (frames, voices) for _, scores in written) == windows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * frames * voices * 8  # bytes; all at once are 484 MiB
