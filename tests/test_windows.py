from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.windows import FRAME, SAMPLE_RATE, SILENCE, Loudness, stretches, window_stop

RNG = np.random.default_rng(0)


def speech(seconds: float, level: float = 0.1) -> np.ndarray:
    return RNG.normal(0, level, round(seconds * SAMPLE_RATE)).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


@st.composite
def recordings(draw):
    """Loud and quiet parts of any length, with an odd number of samples at the end."""
    parts = draw(
        st.lists(st.tuples(st.integers(0, 6 * SAMPLE_RATE), st.sampled_from([0.0, 1e-4, 0.01, 0.2])), max_size=12)
    )
    return np.concatenate([np.zeros(0, np.float32), *(speech(length / SAMPLE_RATE, level) for length, level in parts)])


@settings(deadline=None, max_examples=60)
@given(recordings(), st.integers(1, 30))
def test_stretches_cover_every_sample_once(samples, seconds):
    found = stretches(Loudness(samples), seconds * SAMPLE_RATE)
    edges = [0, *(stretch.stop for stretch in found)]
    assert [stretch.start for stretch in found] == edges[:-1]
    assert edges[-1] == len(samples)
    assert all(stretch.start < stretch.stop for stretch in found)


@settings(deadline=None, max_examples=60)
@given(recordings(), st.integers(1, 30), st.floats(0, 1))
def test_windows_are_bounded_and_advance(samples, seconds, where):
    limit, loudness = seconds * SAMPLE_RATE, Loudness(samples)
    start = int(where * len(samples)) // FRAME * FRAME
    while start < len(samples):
        stop = window_stop(loudness, start, len(samples), limit)
        assert start < stop <= min(start + limit, len(samples))
        assert stop == len(samples) or stop - start >= 2 * limit // 3
        start = stop


@pytest.mark.parametrize("pause_at", [21.0, 24.3, 28.0])
def test_a_window_ends_in_the_pause(pause_at):
    samples = np.concatenate([speech(pause_at), silence(0.6), speech(40 - pause_at)])
    stop = window_stop(Loudness(samples), 0, len(samples), 30 * SAMPLE_RATE) / SAMPLE_RATE
    assert pause_at < stop < pause_at + 0.6


def test_what_fits_is_not_cut():
    samples = np.concatenate([speech(10), silence(5), speech(15)])
    assert len(stretches(Loudness(samples), 30 * SAMPLE_RATE)) == 1


def test_a_pause_separates_and_running_speech_does_not():
    paused = np.concatenate([speech(25), silence(0.6), speech(20)])
    running = np.concatenate([speech(25), speech(0.6, 0.05), speech(20)])
    assert len(stretches(Loudness(paused), 30 * SAMPLE_RATE)) == 2
    assert len(stretches(Loudness(running), 30 * SAMPLE_RATE)) == 1


def test_a_pause_is_found_in_a_noisy_room():
    room = speech(50, 0.008)
    room[: 25 * SAMPLE_RATE] += speech(25)
    room[-24 * SAMPLE_RATE :] += speech(24)
    assert len(stretches(Loudness(room), 30 * SAMPLE_RATE)) == 2


def test_dither_is_silent_and_a_whisper_is_not():
    dither = Loudness(speech(2, 1 / 32768))
    whisper = Loudness(np.concatenate([silence(1), speech(0.1, 2 * SILENCE), silence(1)]))
    assert dither.is_silent(0, 2 * SAMPLE_RATE)
    assert not whisper.is_silent(0, 2 * SAMPLE_RATE)
    assert whisper.is_silent(0, SAMPLE_RATE)


def test_loudness_is_the_mean_square_of_each_frame():
    samples = speech(1.01)
    expected = [np.mean(samples[start : start + FRAME] ** 2) for start in range(0, len(samples), FRAME)]
    np.testing.assert_allclose(Loudness(samples).power, expected, rtol=1e-5)


def test_nothing_has_no_stretches():
    assert stretches(Loudness(np.zeros(0, np.float32)), SAMPLE_RATE) == ()
