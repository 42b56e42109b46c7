"""Crosstalk goes, and nothing else: on noise in the rhythm of speech, of which all is known."""

from functools import partial

import numpy as np
import pytest
from scipy.signal import fftconvolve, istft, stft

from whosaid.audio.crosstalk import without_crosstalk
from whosaid.audio.decode import Audio
from whosaid.scheduling.steps import run_steps

RATE = 16_000
SECONDS = 20


def talk(seed: int, *spans: tuple[float, float]) -> np.ndarray:
    """Syllables of noise within these seconds, each of another colour."""
    generator = np.random.default_rng(seed)
    samples = np.zeros(SECONDS * RATE)
    for start, stop in spans:
        for begin in np.arange(start, stop - 0.2, 0.25):
            syllable = generator.standard_normal(3200)
            coloured = np.convolve(syllable, generator.standard_normal(8), "same")
            samples[round(begin * RATE) :][:3200] += 0.03 * coloured * np.hanning(3200)
    return samples


def room(samples: np.ndarray, decibels: float, delay: float) -> np.ndarray:
    """The samples through a room of 100 ms, softer and later."""
    echoes = np.random.default_rng(9).standard_normal(1600) * np.exp(-np.arange(1600) / 250)
    echoes[0] = 10
    echoes *= 10 ** (decibels / 20) / np.linalg.norm(echoes)
    heard = fftconvolve(samples, echoes)[: len(samples)]
    return np.concatenate([np.zeros(round(delay * RATE)), heard])[: len(samples)]


def silenced(*channels: np.ndarray) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The channels without crosstalk, and the warnings."""
    generator = np.random.default_rng(5)
    noisy = [each + generator.normal(0, 1e-5, len(each)) for each in channels]
    kept = [each.astype(np.float32) for each in noisy]
    return kept, warnings_of(kept)


def warnings_of(channels: list[np.ndarray]) -> tuple[str, ...]:
    return run_steps(without_crosstalk(Audio(tuple(channels), SECONDS, ()))).warnings


def power(samples: np.ndarray, start: float, stop: float) -> float:
    return float(np.square(samples[round(start * RATE) : round(stop * RATE)], dtype=float).mean())


@pytest.mark.parametrize(("decibels", "delay"), [(-6, 0.0), (-20, 0.01), (-6, 0.2), (-30, 0.4)])
def test_crosstalk_goes_and_speech_stays(decibels, delay):
    one, other = talk(1, (0.5, 9)), talk(2, (11, 19))
    leak = partial(room, decibels=decibels, delay=delay)
    channels = one + leak(other), other + leak(one)
    (first, second), warnings = silenced(*channels)
    assert np.allclose(first[: 9 * RATE], channels[0][: 9 * RATE], atol=1e-4)
    assert np.allclose(second[11 * RATE :], channels[1][11 * RATE :], atol=1e-4)
    assert power(second, 1.5, 8.5) < 0.02 * power(channels[1], 1.5, 8.5)
    assert power(first, 12, 18.5) < 0.02 * power(channels[0], 12, 18.5)
    assert [warning.split(":")[0] for warning in warnings] == ["channel 0", "channel 1"]


def coded(samples: np.ndarray) -> np.ndarray:
    """Simulate a codec that keeps the spectrum of each 20 ms, and much of its phases."""
    _, _, spectra = stft(samples, nperseg=320)
    generator = np.random.default_rng(7)
    noise = generator.standard_normal(spectra.shape) + 1j * generator.standard_normal(spectra.shape)
    return istft(spectra * (1 + 0.5 * noise), nperseg=320)[1][: len(samples)]


def drifting(samples: np.ndarray) -> np.ndarray:
    """Simulate a clock that is slow by 50 millionths."""
    places = np.arange(len(samples))
    return np.interp(places * (1 - 50e-6), places, samples)


@pytest.mark.parametrize(
    ("line", "decibels", "delay"),
    [(coded, -6, 0.12), (drifting, -6, 0.4), (coded, -20, 0.4), (drifting, -12, 0.12)],
)
def test_loud_late_echoes_are_removed_on_any_line(line, decibels, delay):
    """Nearly all of the echo is removed, and nothing of a speaker who talks over it."""
    one, other = talk(1, (0.5, 9), (13, 19)), talk(2, (9.5, 15))
    channels = one, other + line(room(one, decibels, delay))
    (first, second), _ = silenced(*channels)
    assert np.allclose(first, one, atol=1e-4)
    assert power(second, 1, 9) < 0.04 * power(channels[1], 1, 9)
    assert power(second, 16, 19) < 0.04 * power(channels[1], 16, 19)
    spoken = slice(10 * RATE, round(14.5 * RATE))
    assert np.allclose(second[spoken], channels[1][spoken], atol=1e-4)


def test_a_soft_voice_under_another_ones_short_calls_is_kept():
    """A filter that is made of few frames fits them whatever they hold."""
    calls = [(start, start + 0.3) for start in np.arange(1.0, 18, 3.1)]
    one, other = talk(1, *calls), 10 ** (-10 / 20) * talk(2, (0.5, 19))
    (_, second), warnings = silenced(one, other)
    assert warnings == ()
    assert np.allclose(second, other, atol=1e-4)


def test_a_single_word_is_silenced():
    one = talk(1, (8.0, 8.8))
    channels = one, room(one, -6, 0.25)
    (_, second), _ = silenced(*channels)
    assert power(second, 8, 9.2) < 0.02 * power(channels[1], 8, 9.2)


@pytest.mark.parametrize("decibels", [0, -40])
def test_simultaneous_speech_is_kept(decibels):
    """A soft voice is kept too, because the other channel does not contain it."""
    one = talk(1, (0.5, 19))
    other = 10 ** (decibels / 20) * talk(2, (0.5, 19))
    (first, second), warnings = silenced(one, other)
    assert warnings == ()
    assert np.allclose(first, one, atol=1e-4)
    assert np.allclose(second, other, atol=1e-4)


def test_speech_over_crosstalk_is_kept():
    one, other = talk(1, (0.5, 19)), talk(2, (8, 11))
    channels = one, 0.5 * other + room(one, -20, 0.05)
    (first, second), _ = silenced(*channels)
    assert np.allclose(first, one, atol=1e-4)
    assert np.allclose(second[8 * RATE : 11 * RATE], channels[1][8 * RATE : 11 * RATE], atol=1e-4)
    assert power(second, 1.5, 7) < 0.02 * power(channels[1], 1.5, 7)


def test_speaker_stays_and_copies_in_others_are_silenced():
    one = talk(1, (0.5, 19))
    channels = [one, *(room(one, decibels, 0.02) for decibels in (-8, -16, -24))]
    (first, *others), warnings = silenced(*channels)
    assert np.allclose(first, one, atol=1e-4)
    for other, before in zip(others, channels[1:], strict=True):
        assert power(other, 1.5, 18) < 0.02 * power(before, 1.5, 18)
    assert len(warnings) == 3


def test_a_copy_is_left_out_and_silence_is_none():
    one = talk(1, (0.5, 19))
    kept = [one.astype(np.float32), (0.5 * one).astype(np.float32), np.zeros(len(one), np.float32)]
    (warning,) = warnings_of(kept)
    assert warning == "channel 1 is a copy of channel 0, and left out"
    assert np.array_equal(kept[0], one.astype(np.float32))
    assert not kept[1].any()


@pytest.mark.parametrize("loud", [0, 1])
def test_louder_of_two_copies_stays(loud):
    speech = talk(1, (0.5, 3.0))
    channels = [speech * np.float32(0.01), speech * np.float32(0.01)]
    channels[loud] = speech.copy()
    warnings = warnings_of(channels)
    np.testing.assert_array_equal(channels[loud], speech)
    assert not channels[1 - loud].any()
    assert warnings == (f"channel {1 - loud} is a copy of channel {loud}, and left out",)


def test_one_channel_is_left_alone():
    one = talk(1, (0.5, 19)).astype(np.float32)
    kept = one.copy()
    (warning,) = warnings_of([kept])
    assert warning.startswith("channels: the audio has one channel")
    assert np.array_equal(kept, one)
