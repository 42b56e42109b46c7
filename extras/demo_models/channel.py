"""Augmentation of clips: speed perturbation, room reverberation, codecs.

These act on samples and are applied once, when a clip is made. Changes that are linear in power
(levels, noise, filters) are drawn anew for every training window, in `windows`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.signal import fftconvolve

from tests.support.speech import Clip, Samples, through_codec
from whosaid.timebase import SAMPLE_RATE

SPEED_SHARE, REVERB_SHARE, CODEC_SHARE = 0.5, 0.15, 0.15
DURATION_FACTORS = (0.89, 1.12)
CODECS = (
    ("wav", "pcm_mulaw", 8_000, 64_000),
    ("mp3", "libmp3lame", 8_000, 16_000),
    ("mp3", "libmp3lame", 16_000, 32_000),
    ("ogg", "libopus", 16_000, 12_000),
    ("ogg", "libopus", 48_000, 24_000),
    ("adts", "aac", 16_000, 24_000),
)


def degrade(clip: Clip, generator: np.random.Generator) -> Clip:
    """Return the clip with perturbed speed, reverberation and a codec, each with its own
    probability.
    """
    if generator.random() < SPEED_SHARE:
        clip = perturb_speed(clip, generator.uniform(*DURATION_FACTORS))
    if generator.random() < REVERB_SHARE:
        clip = replace(clip, samples=_reverberate(clip.samples, generator))
    if generator.random() < CODEC_SHARE:
        codec = CODECS[int(generator.integers(len(CODECS)))]
        clip = replace(clip, samples=through_codec(clip.samples, *codec))
    return clip


def perturb_speed(clip: Clip, factor: float) -> Clip:
    """Resample to `factor` times the duration; pitch and formants fall with it."""
    count = round(len(clip.samples) * factor)
    samples = np.interp(
        np.arange(count) / factor, np.arange(len(clip.samples)), clip.samples
    ).astype(np.float32)
    words = tuple(
        replace(word, start=word.start * factor, end=word.end * factor) for word in clip.words
    )
    return Clip(samples, words)


def _reverberate(samples: Samples, generator: np.random.Generator) -> Samples:
    """Convolve with an impulse and a tail of noise that decays by 60 dB in 0.1 to 0.4 s."""
    decay = generator.uniform(0.1, 0.4)
    time = np.arange(int(decay * SAMPLE_RATE)) / SAMPLE_RATE
    tail = generator.standard_normal(len(time)) * 10 ** (-3 * time / decay)
    tail *= generator.uniform(0.1, 0.5) / np.linalg.norm(tail)
    tail[0] = 1.0
    wet: Samples = fftconvolve(samples, tail)[: len(samples)].astype(np.float32)
    return wet
