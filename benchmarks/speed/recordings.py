"""The audio to decode: dialogues of two synthetic voices from fixed seeds.

A recording depends only on its length, so every engine, run and machine with the same synthesisers
gets the same audio. The voices are not the ones reserved for the evaluation of accuracy.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import RESULTS
from tests.support.dialogue import Scene, Style, draw_dialogue
from tests.support.speech import Samples, draw_voice, espeak_speakers
from whosaid.asr.frontend.windows import Loudness, window_stop
from whosaid.timebase import SAMPLE_RATE

SEED, FOLDER = 5, RESULTS / "speech"


def dialogue(seed: list[int], seconds: float) -> Scene:
    """Return a dialogue of two voices."""
    generator = np.random.default_rng(seed)
    names = generator.choice(espeak_speakers("development"), 2, replace=False)
    voices = [draw_voice(str(name), generator) for name in names]
    return draw_dialogue(voices, seconds, Style(), generator)


def recording(seconds: int) -> Samples:
    """Return a dialogue of `seconds`, mono at 16 kHz; synthesised once and kept in FOLDER."""
    path = FOLDER / f"{seconds}.npy"
    if not path.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        np.save(path, dialogue([SEED, seconds], float(seconds)).samples)
    samples: NDArray[np.float32] = np.load(path)
    return samples


def cut(samples: Samples, seconds: int = 30) -> list[Samples]:
    """Return windows of at most `seconds`, cut in quiet places."""
    limit, loudness, windows, start = seconds * SAMPLE_RATE, Loudness(samples), [], 0
    while start < len(samples):
        stop = window_stop(loudness, start, len(samples), limit)
        windows.append(samples[start:stop])
        start = stop
    return windows
