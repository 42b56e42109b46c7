"""Training scenes for both diarization models: up to three voices with known speaker turns.

Scenes are mixed on the fly from one bank of clean clips. No scene occurs twice. The bounds of a
clip are the reference turns of its voice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

from tests.support.speech import MARGIN, Samples, draw_clip, draw_voice, speakers
from whosaid.timebase import SAMPLE_RATE

# Every training voice speaks with this many accents, pitches and speeds; each is one speaker.
SPEAKERS_A_VOICE, CLIPS_A_SPEAKER = 8, 12
VOICES_A_SCENE = 3
PADDED_SHARE, CLEAN_SHARE = 0.15, 0.1

# The clips of each speaker.
Bank = Sequence[Sequence[Samples]]
Odds = tuple[float, ...]


@dataclass(frozen=True)
class Scene:
    """A mixture and its turns: speaker (an index into `cast`), start and end in seconds."""

    samples: Samples
    cast: tuple[int, ...]
    turns: tuple[tuple[int, float, float], ...]

    def activity(self, times: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return 1 for the voices that speak at `times` (frames,) in seconds: (frames, voices)."""
        active = np.zeros((len(times), VOICES_A_SCENE), np.float32)
        for who, start, end in self.turns:
            active[(times >= start) & (times < end), who] = 1
        return active


def speak_bank() -> Bank:
    """Synthesise the clips of the training voices, which takes minutes."""
    rng = np.random.default_rng(0)
    cast = [draw_voice(name, rng) for name in speakers("training") for _ in range(SPEAKERS_A_VOICE)]
    return [[draw_clip(voice, rng).samples for _ in range(CLIPS_A_SPEAKER)] for voice in cast]


def stack(scenes: Sequence[Scene], times: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Return waveforms (batch, 1, samples) and activity at `times` (batch, frames, voices)."""
    samples = np.stack([scene.samples for scene in scenes])[:, None]
    active = np.stack([scene.activity(times) for scene in scenes])
    return torch.from_numpy(samples), torch.from_numpy(active)


def compose(bank: Bank, rng: np.random.Generator, seconds: float, cast_odds: Odds) -> Scene:
    """Compose a scene; `cast_odds[k]` is the probability of k voices. At most two speak at once."""
    voices = rng.choice(len(cast_odds), p=cast_odds)
    cast = tuple(int(speaker) for speaker in rng.choice(len(bank), voices, replace=False))
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    turns: list[tuple[int, float, float]] = []
    if cast:
        gains = rng.uniform(0.02, 0.12, len(cast))
        tilts = rng.uniform(-0.4, 0.4, len(cast))
        clock, busy_until, who = rng.uniform(-3, 1.5), -np.inf, int(rng.integers(len(cast)))
        while clock < seconds:
            clips = bank[cast[who]]
            clip = lfilter([1, -tilts[who]], [1], clips[int(rng.integers(len(clips)))])
            clip *= gains[who] / max(float(np.sqrt(np.mean(clip**2))), 1e-4)
            _add_clip(samples, clip, round(clock * SAMPLE_RATE))
            end = clock + len(clip) / SAMPLE_RATE
            turns.append((who, clock + MARGIN, end - MARGIN))
            # The next turn starts after the end of the turn before this one: never three at once.
            free_from, busy_until = busy_until, max(busy_until, end)
            who, clock = _next_turn(rng, who, len(cast), clock, end, free_from)
    if rng.random() >= CLEAN_SHARE:
        _add_noise(samples, rng)
    # The pipeline pads the last window of a recording with zeros; some scenes here end so too.
    length = rng.uniform(0, seconds) if rng.random() < PADDED_SHARE else seconds
    samples[round(length * SAMPLE_RATE) :] = 0
    kept = tuple((who, start, min(end, length)) for who, start, end in turns if start < length)
    return Scene(samples, cast, kept)


def _next_turn(
    rng: np.random.Generator, who: int, voices: int, start: float, end: float, free_from: float
) -> tuple[int, float]:
    """Draw who speaks next and when: mostly another voice, sometimes overlapping this one."""
    other = who
    if voices > 1 and rng.random() < 0.8:
        other = int((who + rng.integers(1, voices)) % voices)
    if other != who and rng.random() < 0.3:
        return other, max(free_from, start + 0.3, end - rng.exponential(0.8))
    pause = rng.uniform(0.05, 0.6) if rng.random() < 0.8 else rng.uniform(0.6, 4.0)
    return other, end + pause


def _add_clip(samples: Samples, clip: Samples, at: int) -> None:
    begin, end = max(at, 0), min(at + len(clip), len(samples))
    if begin < end:
        samples[begin:end] += clip[begin - at : end - at]


def _add_noise(samples: Samples, rng: np.random.Generator) -> None:
    """Add noise of 1e-4 to 1e-2 rms, white to brownish."""
    noise = lfilter([1], [1, -rng.uniform(0, 0.97)], rng.standard_normal(len(samples)))
    samples += (noise * (10 ** rng.uniform(-4, -2) / noise.std())).astype(np.float32)
