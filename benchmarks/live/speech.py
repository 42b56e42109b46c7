"""Recordings to replay: a folder's, or dialogues of synthetic voices."""

from __future__ import annotations

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
# Seconds of a dialogue, and of a sound without speech, in full and quick runs.
DIALOGUE, SOUND = 30.0, 20.0
QUICK_DIALOGUE, QUICK_SOUND = 6.0, 1.5
DIALOGUES = 4
# Silence after each recording, so that the detector finds the end of speech.
PAUSE = 1.5


@dataclass(frozen=True, eq=False)
class Speech:
    """A recording with its samples (n,), float32 at 16 kHz; without a text it has no speech."""

    recording: Recording
    samples: Samples

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE


def real(folder: Path, only: str) -> list[Speech]:
    """Return the recordings of a folder's manifest whose name contains `only`.

    Raises ValueError if the manifest is wrong or no recording matches.
    """
    spoken = [each for each in load_manifests([folder / "manifest.json"]) if only in each.name]
    if not spoken:
        raise ValueError("no recording is left to replay")
    return [Speech(each, each.samples()) for each in spoken]


def synthetic(quick: bool) -> list[Speech]:
    """Return dialogues for the demo models; with `quick` a short one."""
    if quick:
        return [_dialogue(0, QUICK_DIALOGUE)]
    return [_dialogue(number, DIALOGUE) for number in range(DIALOGUES)]


def without_words(quick: bool) -> list[Speech]:
    """Return silence and noise; with `quick` a little noise."""
    if quick:
        return [_sound("noise", QUICK_SOUND)]
    return [_sound("silence", SOUND), _sound("noise", SOUND)]


def joined(speech: Sequence[Speech], seconds: float) -> Samples:
    """Return recordings one after the other with pauses, repeated and cut to `seconds`."""
    pause = np.zeros(round(PAUSE * SAMPLE_RATE), np.float32)
    once = np.concatenate([part for each in speech for part in (each.samples, pause)])
    return np.resize(once, round(seconds * SAMPLE_RATE))


def with_pause(samples: Samples) -> Samples:
    """Return the samples, and the pause after them."""
    return np.pad(samples, (0, round(PAUSE * SAMPLE_RATE)))


def _dialogue(number: int, seconds: float) -> Speech:
    scene = dialogue([SEED, number], seconds)
    text = " ".join(word.text.strip() for word in scene.words)
    return Speech(Recording(Path(f"dialogue {number}"), "en", text), scene.samples)


def _sound(name: str, seconds: float) -> Speech:
    samples = getattr(sounds, name)(seconds, np.random.default_rng(SEED))
    return Speech(Recording(Path(name)), samples)
