"""The scenes accuracy is measured on: dialogues of voices that nothing was trained or tuned on, and
sounds that are not speech.

A scene depends only on its split, condition, number and length, all fixed before any result was
seen. Each is synthesised in a process of its own, because espeak-ng keeps state from sentence to
sentence, and kept as a 16-bit file with its reference beside it: what is measured is what a client
would send. Run with a folder and a split, this module makes the files; its processes then import
nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import wave
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np

from tests.support import sounds
from tests.support.dialogue import Scene, Style, draw_dialogue
from tests.support.speech import GRAMMAR, Samples, Voice, draw_voice, espeak_speakers, shift
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word

REPOSITORY = Path(__file__).resolve().parents[2]
Split = Literal["reserved", "development"]

SEEDS: dict[Split, int] = {"reserved": 20260, "development": 71}
# Share of turns that begin before the last one ended, and decibels of speech above the noise.
OVERLAP_SHARE, SPEECH_TO_NOISE = 0.4, (15.0, 20.0)
SHORT, LONG = 70.0, 600.0
SHORT_SCENES, LONG_SCENES, GAP_SCENES = 10, 2, 2
# Seconds of speech between two gaps, and of a gap.
SPOKEN, GAP = 20.0, (30.0, 60.0)
DIALOGUES = ("clean", "overlap", "noise", "overlap and noise")
SOUNDS = {"silence": sounds.silence, "noise": sounds.noise, "music": sounds.music}
WORKERS = 2
GAPS = tuple(f"gaps of {sound}" for sound in SOUNDS)
ALONE = tuple(f"only {sound}" for sound in SOUNDS)


@dataclass(frozen=True)
class SceneKey:
    """All that a scene depends on; `condition` is one of DIALOGUES, GAPS and ALONE."""

    split: Split
    condition: str
    number: int
    seconds: float

    @property
    def name(self) -> str:
        """A file name of its own."""
        return f"{self.split}-{self.condition.replace(' ', '-')}-{self.seconds:.0f}-{self.number}"


def scene_keys(split: Split, quick: bool = False) -> list[SceneKey]:
    """The scenes of an evaluation, with `quick` a few for a smoke test."""
    short, long, gaps, alone = (
        (2, 0, 1, SHORT) if quick else (SHORT_SCENES, LONG_SCENES, GAP_SCENES, LONG)
    )
    return [
        *(SceneKey(split, name, number, SHORT) for number in range(short) for name in DIALOGUES),
        *(SceneKey(split, name, number, SPOKEN) for number in range(gaps) for name in GAPS),
        *(SceneKey(split, name, 0, alone) for name in ALONE),
        *(SceneKey(split, name, number, LONG) for number in range(long) for name in DIALOGUES),
    ]


def speakers_of(split: Split) -> tuple[str, ...]:
    """The voices of a split: espeak-ng's, whose word times are exact. No voice is in both."""
    return espeak_speakers(split)


def scene_files(split: Split, quick: bool, folder: Path) -> dict[SceneKey, Path]:
    """Each scene's sound file under `folder`, with a .json of the same name; missing ones are made.

    Their folder is named after the code that makes them, so that changed code makes new ones.
    """
    folder /= _digest()
    script = [
        sys.executable,
        "-m",
        "benchmarks.accuracy.scenes",
        str(folder),
        split,
        *(["--quick"] if quick else []),
    ]
    subprocess.run(script, check=True, cwd=REPOSITORY)
    return {key: _path(folder, key) for key in scene_keys(split, quick)}


def load(path: Path) -> Scene:
    """A scene as `make` kept it."""
    truth = json.loads(path.with_suffix(".json").read_text())
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(
            np.float32
        ) / np.float32(32768)
    words = tuple(Word(**word) for word in truth["words"])
    return Scene(samples, words, tuple(SpeakerTurn(**turn) for turn in truth["turns"]))


def draw_scene(key: SceneKey) -> Scene:
    """Draw a scene of two to four voices, by its number; SPEAKER_0i is the i-th of them."""
    kind = (*DIALOGUES, *GAPS, *ALONE).index(key.condition)
    generator = np.random.default_rng([SEEDS[key.split], kind, round(key.seconds), key.number])
    if key.condition in ALONE:
        return _wordless(list(SOUNDS)[ALONE.index(key.condition)], key.seconds, generator)
    names = generator.choice(speakers_of(key.split), 2 + key.number % 3, replace=False)
    voices = [draw_voice(str(name), generator) for name in names]
    if key.condition in GAPS:
        return _with_gaps(voices, list(SOUNDS)[GAPS.index(key.condition)], generator)
    style = Style(overlap_share=OVERLAP_SHARE if "overlap" in key.condition else 0.0)
    scene = draw_dialogue(voices, key.seconds, style, generator)
    return _with_noise(scene, generator) if "noise" in key.condition else scene


def _digest() -> str:
    """A hash of what scenes depend on besides their keys: the code, the grammar and its voices."""
    drawn = ("clip", "dialogue", "speech", "voices", "espeak", "flite")
    sources = [
        Path(__file__),
        Path(sounds.__file__),
        GRAMMAR,
        *(GRAMMAR.with_name(f"{name}.py") for name in drawn),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _path(folder: Path, key: SceneKey) -> Path:
    return folder / f"{key.name}.wav"


def make(key: SceneKey, path: Path) -> None:
    """Write the reference first, the sound last: a sound file that exists is whole."""
    scene = draw_scene(key)
    truth = {
        "words": [asdict(word) for word in scene.words],
        "turns": [asdict(turn) for turn in scene.turns],
    }
    path.with_suffix(".json").write_text(json.dumps(truth))
    partial = path.with_suffix(".part")
    with wave.open(str(partial), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((scene.samples * 32767).round().astype(np.int16).tobytes())
    partial.rename(path)


def _wordless(sound: str, seconds: float, generator: np.random.Generator) -> Scene:
    return Scene(SOUNDS[sound](seconds, generator), (), ())


def _with_gaps(voices: Sequence[Voice], sound: str, generator: np.random.Generator) -> Scene:
    """Three parts of one dialogue with a long gap of `sound` after each."""
    parts: list[Scene] = []
    for _ in range(3):
        parts.append(draw_dialogue(voices, SPOKEN, Style(), generator))
        parts.append(_wordless(sound, float(generator.uniform(*GAP)), generator))
    return _joined(parts)


def _joined(parts: Sequence[Scene]) -> Scene:
    words: list[Word] = []
    turns: list[SpeakerTurn] = []
    now = 0.0
    for part in parts:
        words += [shift(word, now) for word in part.words]
        turns += [replace(turn, start=turn.start + now, end=turn.end + now) for turn in part.turns]
        now += part.duration
    return Scene(np.concatenate([part.samples for part in parts]), tuple(words), tuple(turns))


def _with_noise(scene: Scene, generator: np.random.Generator) -> Scene:
    """Add white or pink noise at a level drawn in decibels below that of the words."""
    spoken = np.concatenate([_within(scene.samples, word) for word in scene.words])
    level = spoken.std() * 10 ** (-generator.uniform(*SPEECH_TO_NOISE) / 20)
    noise = sounds.coloured_noise(len(scene.samples), bool(generator.random() < 0.5), generator)
    return replace(scene, samples=(scene.samples + level * noise).clip(-1, 1).astype(np.float32))


def _within(samples: Samples, word: Word) -> Samples:
    return samples[round(word.start * SAMPLE_RATE) : round(word.end * SAMPLE_RATE)]


def _main() -> None:
    parser = argparse.ArgumentParser(description="Synthesise the scenes of an evaluation.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("split", choices=SEEDS)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    files = [(key, _path(chosen.folder, key)) for key in scene_keys(chosen.split, chosen.quick)]
    with get_context("spawn").Pool(WORKERS, maxtasksperchild=1) as pool:
        pool.starmap(make, [(key, path) for key, path in files if not path.exists()], chunksize=1)


if __name__ == "__main__":
    _main()
