"""Training windows: clips at random positions in 4, 10 or 30 seconds, with text and times.

Everything is added as mel power. Segments follow Whisper's convention: one segment a sentence, and
of a sentence that the end of the window cuts only the start timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from extras.demo_models.corpus import FLOOR, MELS, SpokenMel, log_mel_power
from whosaid.timebase import SAMPLE_RATE

FRAMES_PER_SECOND = 100
EMPTY_SHARE, SPARSE_SHARE, CUT_START_SHARE, CUT_END_SHARE = 0.03, 0.25, 0.35, 0.5
MASKS_SHARE, FILTER_SHARE, TELEPHONE_SHARE, NOISE_SHARE = 0.3, 0.5, 0.12, 0.85
BACKGROUND_SHARE, OVERLAP_SHARE = 0.04, 0.08
TELEPHONE_MELS = 56  # Whisper's mel filters below 4 kHz
DYNAMIC_RANGE = 8.0  # Whisper clamps log10 power to this far below the window's maximum

Power = NDArray[np.float64]


@dataclass(frozen=True)
class Spoken:
    """A segment of a window: word ids and their spans in seconds.

    `complete` is false if the end of the window cuts it.
    """

    words: NDArray[np.int16]
    spans: NDArray[np.float32]
    complete: bool


@dataclass(frozen=True)
class Window:
    """Features (80, frames) as Whisper's extractor computes them, and segments."""

    features: NDArray[np.float32]
    segments: tuple[Spoken, ...]


def draw_window(
    corpus: Sequence[SpokenMel], seconds: int, generator: np.random.Generator
) -> Window:
    """Draw a window of `seconds` with as many clips as fit, or only a few, or none."""
    frames = seconds * FRAMES_PER_SECOND
    power = np.full((frames, MELS), FLOOR)
    segments: list[Spoken] = []
    limit = _clip_limit(generator)
    position = _lead_frames(seconds, generator)
    while len(segments) < limit and position < frames - 20:
        clip = corpus[int(generator.integers(len(corpus)))]
        if not segments and position == 0 and generator.random() < CUT_START_SHARE:
            clip = _without_start(clip, generator)
        fits = position + len(clip.log_power) <= frames
        if not fits and generator.random() > CUT_END_SHARE:
            break
        _add(power, clip, position, 10 ** generator.uniform(-1.0, 0.0))
        segments.append(Spoken(clip.words, clip.spans + position / FRAMES_PER_SECOND, fits))
        position = max(0, position + len(clip.log_power) + _gap_frames(generator))
    if generator.random() < BACKGROUND_SHARE:
        quiet = corpus[int(generator.integers(len(corpus)))]
        at = int(generator.integers(frames // 2))
        _add(power, quiet, at, 10 ** generator.uniform(-4.0, -2.5))
    _augment(power, position, generator)
    return Window(_features(power, generator), tuple(segments))


def _clip_limit(generator: np.random.Generator) -> int:
    """Return the largest number of clips in a window: none, a few, or as many as fit."""
    kind = generator.random()
    if kind < EMPTY_SHARE:
        return 0
    return int(generator.integers(1, 4)) if kind < EMPTY_SHARE + SPARSE_SHARE else 99


def _lead_frames(seconds: int, generator: np.random.Generator) -> int:
    """Frames before the first clip: none, up to a second, or up to half of the window."""
    kind = generator.random()
    if kind < 0.4:
        return 0
    return int(generator.uniform(0, 100 if kind < 0.85 else seconds * 50))


def _gap_frames(generator: np.random.Generator) -> int:
    """Frames between clips: a short gap, a pause, a long pause, or negative for an overlap."""
    kind = generator.random()
    if kind < OVERLAP_SHARE:
        return int(generator.integers(-50, 0))
    low, high = (10, 60) if kind < 0.55 else (20, 160) if kind < 0.92 else (100, 500)
    return int(generator.integers(low, high))


def _without_start(clip: SpokenMel, generator: np.random.Generator) -> SpokenMel:
    """Return the clip from one of its words on."""
    first = int(generator.integers(len(clip.words)))
    start = int(clip.spans[first, 0] * FRAMES_PER_SECOND)
    spans = np.maximum(clip.spans[first:] - start / FRAMES_PER_SECOND, 0)
    return SpokenMel(clip.log_power[start:], clip.words[first:], spans)


def _add(power: Power, clip: SpokenMel, position: int, gain: float) -> None:
    part = clip.log_power[: len(power) - position].astype(np.float32)
    power[position : position + len(part)] += gain * np.power(10.0, part)


def _augment(power: Power, end: int, generator: np.random.Generator) -> None:
    """Add noise to the whole window or up to frame `end`; then scale, filter and mask bands."""
    used = len(power) if generator.random() < 0.5 else min(len(power), end)
    start = int(generator.integers(len(_noise()) - used + 1))
    if generator.random() < NOISE_SHARE:
        level = _smooth_curve(generator, 0.4) * 10 ** generator.uniform(-8.0, -4.3)
        power[:used] += _noise()[start : start + used] * level
    power *= 10 ** generator.uniform(-2.0, 0.5)
    if generator.random() < FILTER_SHARE:
        power *= _smooth_curve(generator, 0.5)
    if generator.random() < TELEPHONE_SHARE:
        power[:, TELEPHONE_MELS:] *= 1e-6
    if generator.random() < MASKS_SHARE:
        first, width = generator.integers(MELS), generator.integers(1, 10)
        power[:, first : first + width] *= 1e-4


def _features(power: Power, generator: np.random.Generator) -> NDArray[np.float32]:
    """Features (80, frames) scaled as Whisper does; sometimes a few short spans are masked."""
    log_power = np.log10(np.maximum(power, FLOOR))
    log_power = np.maximum(log_power, log_power.max() - DYNAMIC_RANGE)
    if generator.random() < MASKS_SHARE:
        for first in generator.integers(len(power), size=1 + len(power) // 400):
            log_power[first : first + generator.integers(2, 12)] = log_power.min()
    features: NDArray[np.float32] = ((log_power.T + 4.0) / 4.0).astype(np.float32)
    return features


def _smooth_curve(generator: np.random.Generator, spread: float) -> Power:
    """Return a smooth random factor for each mel band, with `spread` as deviation of its log10."""
    points = generator.normal(0, spread, 6)
    curve: Power = 10 ** np.interp(np.arange(MELS), np.linspace(0, MELS - 1, 6), points)
    return curve


@cache
def _noise() -> NDArray[np.float32]:
    """Mel power (6000, 80) of a minute of white noise with standard deviation 1."""
    samples = np.random.default_rng(0).standard_normal(60 * SAMPLE_RATE).astype(np.float32)
    return np.power(10.0, log_mel_power(samples).astype(np.float32))
