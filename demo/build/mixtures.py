"""Endless training material for the diarization models: scenes of one to three voices whose truth
is known.

The one decision: both models learn from the same scenes, cut from one bank of clean clips on the
fly, so that no scene is ever seen twice and a clip's own bounds are the truth about when its voice
is heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from demo.build.clip import MARGIN, Samples
from demo.build.speech import draw_clip
from demo.build.voices import draw_voice, speakers
from timebase import SAMPLE_RATE

# Every training voice is heard with this many accents, pitches and speeds; each counts as a speaker
# of its own.
SPEAKERS_A_VOICE, CLIPS_A_SPEAKER = 8, 12
VOICES_A_SCENE = 3
PADDED_SHARE = 0.15


@dataclass(frozen=True)
class ClipBank:
    """Clean clips end to end, int16 at 16 kHz; clip i is `samples[bounds[i]:bounds[i + 1]]`, said
    by `speaker[i]`.
    """

    samples: NDArray[np.int16]
    bounds: NDArray[np.int64]
    speaker: NDArray[np.int64]

    @property
    def speakers(self) -> int:
        """How many speakers there are, numbered from 0."""
        return int(self.speaker.max()) + 1

    def clip(self, number: int) -> Samples:
        """Return one clip, float32."""
        return self.samples[self.bounds[number] : self.bounds[number + 1]].astype(
            np.float32
        ) / np.float32(32768)

    def draw(self, rng: np.random.Generator, speaker: int) -> Samples:
        """Return one of the speaker's clips, float32."""
        return self.clip(int(rng.choice(np.flatnonzero(self.speaker == speaker))))


@dataclass(frozen=True)
class Scene:
    """A mixture and its truth: who (an index into `cast`) is heard from when to when, in
    seconds.
    """

    samples: Samples
    cast: tuple[int, ...]
    turns: tuple[tuple[int, float, float], ...]

    def activity(
        self, times: NDArray[np.float64], voices: int = VOICES_A_SCENE
    ) -> NDArray[np.float32]:
        """Rasterise the turns at moments `times` (frames,), in seconds: (frames, voices) of 0 and
        1.
        """
        active = np.zeros((len(times), voices), np.float32)
        for who, start, end in self.turns:
            active[(times >= start) & (times < end), who] = 1
        return active


def load_bank(path: Path) -> ClipBank:
    """Load the training voices' clips from the .npz file `path`, synthesised first where it is
    missing (minutes).
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
    """Compose a scene; `cast_odds[k]` is the chance of k voices. At most two of them are ever heard
    at once.
    """
    cast = tuple(
        int(s)
        for s in rng.choice(bank.speakers, rng.choice(len(cast_odds), p=cast_odds), replace=False)
    )
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    turns: list[tuple[int, float, float]] = []
    if cast:
        gains = rng.uniform(0.02, 0.12, len(cast))
        tilts = rng.uniform(-0.4, 0.4, len(cast))
        clock, heard_until, who = rng.uniform(-3, 1.5), -np.inf, int(rng.integers(len(cast)))
        while clock < seconds:
            clip = lfilter([1, -tilts[who]], [1], bank.draw(rng, cast[who]))
            clip *= gains[who] / max(float(np.sqrt(np.mean(clip**2))), 1e-4)
            _lay(samples, clip, round(clock * SAMPLE_RATE))
            end = clock + len(clip) / SAMPLE_RATE
            turns.append((who, clock + MARGIN, end - MARGIN))
            # The next turn never starts before the one before this ended: two at once, never three.
            free_from, heard_until = heard_until, max(heard_until, end)
            who, clock = _next(rng, who, len(cast), clock, end, free_from)
    # The pipeline fills a recording's last window with zeros; so are some scenes here.
    length = rng.uniform(0, seconds) if rng.random() < PADDED_SHARE else seconds
    samples = _colour(samples, rng)
    samples[round(length * SAMPLE_RATE) :] = 0
    return Scene(
        samples,
        cast,
        tuple((who, start, min(end, length)) for who, start, end in turns if start < length),
    )


def _next(
    rng: np.random.Generator, who: int, voices: int, start: float, end: float, free_from: float
) -> tuple[int, float]:
    """Choose who speaks next and when: mostly another voice, now and then over the end of this
    one.
    """
    other = (
        int((who + rng.integers(1, voices)) % voices) if voices > 1 and rng.random() < 0.8 else who
    )
    if other != who and rng.random() < 0.3:
        return other, max(free_from, start + 0.3, end - rng.exponential(0.8))
    return other, end + (rng.uniform(0.05, 0.6) if rng.random() < 0.8 else rng.uniform(0.6, 4.0))


def _lay(samples: Samples, clip: Samples, at: int) -> None:
    begin, end = max(at, 0), min(at + len(clip), len(samples))
    if begin < end:
        samples[begin:end] += clip[begin - at : end - at]


def _colour(samples: Samples, rng: np.random.Generator) -> Samples:
    """Add noise, white or brownish, between 1e-4 and 1e-2 rms; a few scenes stay digitally
    clean.
    """
    if rng.random() < 0.1:
        return samples
    noise = lfilter([1], [1, -rng.uniform(0, 0.97)], rng.standard_normal(len(samples)))
    coloured: Samples = samples + (noise * (10 ** rng.uniform(-4, -2) / noise.std())).astype(
        np.float32
    )
    return coloured
