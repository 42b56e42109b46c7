"""Sounds that are not speech: their levels and spectra, and that they depend on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import sounds


def test_pink_noise_falls_by_three_decibels_an_octave():
    noise = sounds.coloured_noise(2**18, True, np.random.default_rng(0))
    power = np.abs(np.fft.rfft(noise)) ** 2
    octaves = [power[2**k : 2 ** (k + 1)].mean() for k in range(10, 16)]
    falls = -10 * np.diff(np.log10(octaves))
    np.testing.assert_allclose(falls, 3.0, atol=0.7)


@pytest.mark.parametrize("sound", [sounds.silence, sounds.noise, sounds.music])
def test_a_sound_has_its_length_and_repeats_with_its_seed(sound):
    one, two = (sound(2.5, np.random.default_rng(1)) for _ in range(2))
    assert one.shape == (40_000,)
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, two)


def test_levels_are_those_announced():
    assert not sounds.silence(1.0, np.random.default_rng(0)).any()
    noise, music = (sound(4.0, np.random.default_rng(0)) for sound in (sounds.noise, sounds.music))
    low, high = sounds.NOISE_DB
    assert low <= 20 * np.log10(noise.std()) <= high
    assert 20 * np.log10(music.std()) == pytest.approx(sounds.MUSIC_DB, abs=0.5)
