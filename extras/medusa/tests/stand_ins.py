"""Recordings and hidden states of a random Whisper, for the tests of the package `medusa`.

Recordings are files of noise with silence between, which the tests' detector hears as speech, so
that nothing is downloaded and windows differ.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from benchmarks.real.manifest import Recording
from extras.medusa.hidden_states import Teacher
from tests.oracle import TINY, models_of, noise_windows
from tests.support.tiny_whispers import hears_sound
from whosaid.asr.checkpoint.loading import WhisperModels

# A text token of the random model, where its texts end.
ENDING = 40


def tiny_models() -> WhisperModels:
    """A random Whisper in float64, whose windows are a second long."""
    return models_of(TINY, ENDING)


def teacher_of(models: WhisperModels) -> Teacher:
    """A teacher to whom all sound is speech."""
    return Teacher(models, hears_sound)


def write_recordings(folder: Path, count: int, windows: int = 2) -> list[Recording]:
    """WAV files of a few windows of noise each, in English."""
    folder.mkdir(parents=True, exist_ok=True)
    recordings = []
    for number in range(count):
        silence = np.zeros(8000, np.float32)
        parts = [part for each in noise_windows(windows, seed=number) for part in (each, silence)]
        path = folder / f"{number:02d}.wav"
        with wave.open(str(path), "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(16_000)
            writer.writeframes((np.concatenate(parts) * 32_767).astype("<i2").tobytes())
        recordings.append(Recording(path, "en"))
    return recordings
