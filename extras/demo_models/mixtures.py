"""Training scenes for both diarization models: up to three voices with known speaker turns.

Scenes are mixed on the fly from one bank of clean clips. No scene is seen twice, and the bounds of
a clip are the reference for when its voice speaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from tests.support.speech import MARGIN, Samples, draw_clip, draw_voice, speakers
from whosaid.timebase import SAMPLE_RATE

# Every training voice speaks with this many accents, pitches and speeds; each is one speaker.
SPEAKERS_A_VOICE, CLIPS_A_SPEAKER = 8, 12
VOICES_A_SCENE = 3
PADDED_SHARE = 0.15


@dataclass(frozen=True)
class ClipBank:
    """Clean clips end to end, int16 at 16 kHz.

    Clip i is `samples[bounds[i]:bounds[i + 1]]`, spoken by `speaker[i]`.
    """

    samples: NDArray[np.int16]
    bounds: NDArray[np.int64]
    speaker: NDArray[np.int64]

    @property
    def speakers(self) -> int:
        """The number of speakers, which are numbered from 0."""
        return int(np.max(self.speaker)) + 1

    def clip(self, number: int) -> Samples:
        """Return one clip, float32."""
        start, stop = self.bounds[number], self.bounds[number + 1]
        return self.samples[start:stop].astype(np.float32) / np.float32(32768)

    def draw(self, rng: np.random.Generator, speaker: int) -> Samples:
        """Return one of the speaker's clips, float32."""
        return self.clip(int(rng.choice(np.flatnonzero(self.speaker == speaker))))


@dataclass(frozen=True)
class Scene:
    """A mixture and its turns: speaker (an index into `cast`), start and end in seconds."""

    samples: Samples
    cast: tuple[int, ...]
    turns: tuple[tuple[int, float, float], ...]

    def activity(
        self, times: NDArray[np.float64], voices: int = VOICES_A_SCENE
    ) -> NDArray[np.float32]:
        """Return the voices that speak at `times` (frames,) in seconds: (frames, voices) of 0 and
        1.
        """
        active = np.zeros((len(times), voices), np.float32)
        for who, start, end in self.turns:
            active[(times >= start) & (times < end), who] = 1
        return active


def load_bank(path: Path) -> ClipBank:
    """Load the clips of the training voices from the .npz file `path`.

    Where it is missing they are synthesised first, which takes minutes.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **vars(_synthesise(np.random.default_rng(0))))
    with np.load(path) as arrays:
        return ClipBank(**arrays)


def _synthesise(rng: np.random.Generator) -> ClipBank:
    cast = [draw_voice(name, rng) for name in speakers("training") for _ in range(SPEAKERS_A_VOICE)]
    clips = [draw_clip(voice, rng).samples for voice in cast for _ in range(CLIPS_A_SPEAKER)]
    return ClipBank(
        (np.concatenate(clips).clip(-1, 1) * 32767).astype(np.int16),
        np.cumsum([0, *map(len, clips)]),
        np.repeat(np.arange(len(cast)), CLIPS_A_SPEAKER),
    )


def compose(
    bank: ClipBank, rng: np.random.Generator, seconds: float, cast_odds: tuple[float, ...]
) -> Scene:
    """Compose a scene; `cast_odds[k]` is the probability of k voices. At most two speak at once."""
    voices = rng.choice(len(cast_odds), p=cast_odds)
    cast = tuple(int(s) for s in rng.choice(bank.speakers, voices, replace=False))
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    turns: list[tuple[int, float, float]] = []
    if cast:
        gains = rng.uniform(0.02, 0.12, len(cast))
        tilts = rng.uniform(-0.4, 0.4, len(cast))
        clock, busy_until, who = rng.uniform(-3, 1.5), -np.inf, int(rng.integers(len(cast)))
        while clock < seconds:
            clip = lfilter([1, -tilts[who]], [1], bank.draw(rng, cast[who]))
            clip *= gains[who] / max(float(np.sqrt(np.mean(clip**2))), 1e-4)
            _add_clip(samples, clip, round(clock * SAMPLE_RATE))
            end = clock + len(clip) / SAMPLE_RATE
            turns.append((who, clock + MARGIN, end - MARGIN))
            # The next turn starts after the end of the turn before this one: never three at once.
            free_from, busy_until = busy_until, max(busy_until, end)
            who, clock = _next_turn(rng, who, len(cast), clock, end, free_from)
    # The pipeline pads the last window of a recording with zeros; some scenes here end so too.
    length = rng.uniform(0, seconds) if rng.random() < PADDED_SHARE else seconds
    samples = _add_noise(samples, rng)
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


def _add_noise(samples: Samples, rng: np.random.Generator) -> Samples:
    """Add noise of 1e-4 to 1e-2 rms, white to brownish; a tenth of the scenes stays clean."""
    if rng.random() < 0.1:
        return samples
    noise = lfilter([1], [1, -rng.uniform(0, 0.97)], rng.standard_normal(len(samples)))
    scaled = noise * (10 ** rng.uniform(-4, -2) / noise.std())
    noisy: Samples = samples + scaled.astype(np.float32)
    return noisy
