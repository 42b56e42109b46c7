"""A random Whisper and recordings of noise.

There is silence between parts of noise, which the tests' detector hears as speech, so that nothing
is downloaded and windows differ.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.real.manifest import Recording
from tests.helpers.oracle import TINY, models_of, noise_windows
from tests.support.audio_files import wav_file
from whosaid.asr.checkpoint.loading import WhisperModels

# A text token of the random model, where its texts end.
ENDING = 40


def tiny_models() -> WhisperModels:
    """Float64 models; windows are a second long, and texts end early."""
    return models_of(replace(TINY, positions=96), ENDING)


def write_recordings(folder: Path, count: int, windows: int = 1) -> list[Recording]:
    """WAV files of a few windows of noise each, in English."""
    folder.mkdir(parents=True, exist_ok=True)
    recordings = []
    for number in range(count):
        silence = np.zeros(8000, np.float32)
        parts = [part for each in noise_windows(windows, seed=number) for part in (each, silence)]
        path = folder / f"{number:02d}.wav"
        path.write_bytes(wav_file(np.concatenate(parts), 16_000))
        recordings.append(Recording(path, "en"))
    return recordings
