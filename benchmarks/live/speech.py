"""Recordings to replay: a folder's, or for a quick run a dialogue of synthetic voices."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real.manifest import Recording, load_manifests
from benchmarks.speed.recordings import dialogue
from tests.support import sounds
from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE

SEED = 27
SOUND = 20.0  # seconds of a sound without speech
QUICK_DIALOGUE, QUICK_SOUND = 6.0, 1.5
# Silence after each recording, so that the detector finds the end of speech.
PAUSE = np.zeros(round(1.5 * SAMPLE_RATE), np.float32)


@dataclass(frozen=True, eq=False)
class Speech:
    """A recording with its samples (n,), float32 at 16 kHz; without a text it has no speech."""

    recording: Recording
    samples: Samples

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def with_pause(self) -> Samples:
        return np.concatenate([self.samples, PAUSE])


def real(folder: Path) -> list[Speech]:
    """Return a folder's recordings, silence and noise; raises ValueError if its manifest is
    wrong.
    """
    spoken = [Speech(each, each.samples()) for each in load_manifests([folder / "manifest.json"])]
    return [*spoken, _sound("silence", SOUND), _sound("noise", SOUND)]


def quick() -> list[Speech]:
    """Return a short dialogue for the demo models, and a little noise."""
    scene = dialogue([SEED, 0], QUICK_DIALOGUE)
    text = " ".join(word.text.strip() for word in scene.words)
    spoken = Speech(Recording(Path("dialogue"), "en", text), scene.samples)
    return [spoken, _sound("noise", QUICK_SOUND)]


def joined(speech: Sequence[Speech], seconds: float) -> Samples:
    """Return recordings one after the other with pauses, repeated and cut to `seconds`."""
    once = np.concatenate([each.with_pause for each in speech])
    return np.resize(once, round(seconds * SAMPLE_RATE))


def _sound(name: str, seconds: float) -> Speech:
    samples = getattr(sounds, name)(seconds, np.random.default_rng(SEED))
    return Speech(Recording(Path(name)), samples)
