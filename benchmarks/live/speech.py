"""What is replayed: recordings of a folder, or dialogues of synthetic voices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real.engines import decoded
from benchmarks.real.manifest import Recording, load_manifests
from demo.build.clip import Samples
from demo.build.dialogue import Style, draw_dialogue
from demo.build.voices import draw_voice, espeak_speakers
from testing import sounds
from timebase import SAMPLE_RATE

SEED = 27
# Seconds of a sound that is no speech; of a dialogue; of a quick run's dialogue.
SOUND, DIALOGUE, QUICK = 20.0, 30.0, 8.0
DIALOGUES = 4
# Silence after each recording, as of somebody who has said all: the detector hears the end.
PAUSE = 2.0


@dataclass(frozen=True, eq=False)
class Speech:
    """A recording with its samples (n,), float32 at 16 kHz. Without a text nobody speaks in it."""

    recording: Recording
    samples: Samples

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / SAMPLE_RATE


def real(folder: Path, silent: Iterable[str], only: str) -> list[Speech]:
    """The recordings of a folder's manifest, and the files beside them in which nobody speaks;
    those whose name holds `only`. Raises ValueError where the manifest is wrong or none is left.
    """
    recordings = [
        *load_manifests([folder / "manifest.json"]),
        *(Recording((folder / name).resolve()) for name in silent),
    ]
    for each in recordings:
        if not each.audio.is_file():
            raise ValueError(f"there is no {each.audio}")
    left = [each for each in recordings if only in each.name]
    if not left:
        raise ValueError("no recording is left to replay")
    return [Speech(each, np.asarray(decoded(each), np.float32)) for each in left]


def synthetic(quick: bool) -> list[Speech]:
    """Dialogues that the demo models understand; with `quick` a short one."""
    return [_dialogue(number, QUICK if quick else DIALOGUE) for number in range(_count(quick))]


def without_words(quick: bool) -> list[Speech]:
    """Silence and noise; with `quick` a little noise."""
    if quick:
        return [_sound("noise", 3.0)]
    return [_sound("silence", SOUND), _sound("noise", SOUND)]


def joined(speech: Sequence[Speech], seconds: float) -> Samples:
    """Recordings one after the other with pauses, again and again, cut to so many seconds."""
    pause = np.zeros(round(PAUSE * SAMPLE_RATE), np.float32)
    once = np.concatenate([part for each in speech for part in (each.samples, pause)])
    return np.resize(once, round(seconds * SAMPLE_RATE))


def with_pause(samples: Samples) -> Samples:
    """The samples, and the pause after them."""
    return np.pad(samples, (0, round(PAUSE * SAMPLE_RATE)))


def _count(quick: bool) -> int:
    return 1 if quick else DIALOGUES


def _dialogue(number: int, seconds: float) -> Speech:
    generator = np.random.default_rng([SEED, number])
    names = generator.choice(espeak_speakers("development"), 2, replace=False)
    voices = [draw_voice(str(name), generator) for name in names]
    scene = draw_dialogue(voices, seconds, Style(), generator)
    text = " ".join(word.text.strip() for word in scene.words)
    return Speech(Recording(Path(f"dialogue {number}"), "en", text), scene.samples)


def _sound(name: str, seconds: float) -> Speech:
    samples = getattr(sounds, name)(seconds, np.random.default_rng(SEED))
    return Speech(Recording(Path(name)), samples)
