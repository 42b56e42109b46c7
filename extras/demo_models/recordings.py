"""Recordings of the demo's training voices with their texts, from which Medusa heads learn.

They are audio files with a manifest, as anybody's recordings are, so that the heads are trained by
the command that trains them for any Whisper (`python -m extras.medusa train`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from extras.demo_models.conversation import encode_opus
from extras.demo_models.corpus import FLITE_SHARE
from tests.support.dialogue import Style, draw_dialogue
from tests.support.speech import draw_voice, espeak_speakers, recorded_speakers

SEED = 14
MANIFEST = "manifest.json"
# Seconds of a recording: short ones of a sentence or two, long ones of several windows.
SHORT, LONG, SHORT_SHARE = (6.0, 10.0), (20.0, 70.0), 0.3
NOISE = (-4.0, -2.0)  # powers of ten of the standard deviation
OVERLAP_SHARE = 0.05

Entry = dict[str, str]


def build_recordings(folder: Path, count: int, workers: int = 2) -> Iterator[int]:
    """Write `count` recordings (Opus) and their manifest to `folder`, keeping those that exist.

    Yields how many are done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(folder / f"{index:04d}.ogg", index) for index in range(count)]
    entries: list[Entry] = []
    with get_context("spawn").Pool(workers) as pool:
        for entry in pool.imap(_write, jobs, chunksize=8):
            entries.append(entry)
            yield len(entries)
    (folder / MANIFEST).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def _write(job: tuple[Path, int]) -> Entry:
    """Write one recording and its text, drawn from a seed of its own."""
    path, index = job
    written = path.with_suffix(".txt")
    if not written.exists():
        generator = np.random.default_rng([SEED, index])
        short = generator.random() < SHORT_SHARE
        seconds = float(generator.uniform(*(SHORT if short else LONG)))
        style = Style(noise=10 ** generator.uniform(*NOISE), overlap_share=OVERLAP_SHARE)
        voices = [draw_voice(name, generator) for name in _draw_names(generator)]
        scene = draw_dialogue(voices, seconds, style, generator)
        path.write_bytes(encode_opus(scene.samples))
        written.write_text(" ".join(word.text for word in scene.words), encoding="utf-8")
    return {"audio": path.name, "language": "en", "text": written.read_text(encoding="utf-8")}


def _draw_names(generator: np.random.Generator) -> Sequence[str]:
    """Return two training voices of one synthesiser, different ones if it has two."""
    recorded = generator.random() < FLITE_SHARE
    names = recorded_speakers("training") if recorded else espeak_speakers("training")
    return [str(name) for name in generator.choice(names, 2, replace=len(names) < 2)]
