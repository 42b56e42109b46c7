"""Speech from flite with word times: recorded voices, where espeak's are formant synthesis.

flite's command prints the end of each phone (`-psdur`) but not of each word. So each word is also
spoken alone, which tells how many of the phones are its own.
"""

from __future__ import annotations

import io
import subprocess
import tempfile
import wave
from functools import cache
from itertools import pairwise

import numpy as np

from demo.build.clip import Clip, Samples, clip_from_spans
from timebase import SAMPLE_RATE

PAUSE = "pau"
NATURAL_SPEED = 160


def speak(name: str, pitch: int, speed: int, sentence: str) -> Clip:
    """Speak lower-case words; `pitch` in Hz on average, `speed` in roughly words a minute."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        options = [
            "--setf",
            f"int_f0_target_mean={pitch}",
            "--setf",
            f"duration_stretch={NATURAL_SPEED / speed}",
        ]
        printed = _flite(["-voice", name, *options, "-psdur", "-t", sentence, "-o", file.name])
        samples = _read_wave(file.read())
    words = sentence.split(" ")
    return clip_from_spans(samples, words, _spans(words, _phones(printed), name))


def _flite(arguments: list[str]) -> str:
    return subprocess.run(["flite", *arguments], check=True, capture_output=True, text=True).stdout


def _read_wave(content: bytes) -> Samples:
    with wave.open(io.BytesIO(content)) as reader:
        if reader.getframerate() != SAMPLE_RATE:
            raise ValueError("only flite's 16 kHz voices are used")
        data = reader.readframes(reader.getnframes())
    return np.frombuffer(data, np.int16).astype(np.float32) / np.float32(32768)


def _phones(printed: str) -> list[tuple[float, float]]:
    """Start and end of every phone that is not a pause, from lines of `phone:end`."""
    pairs = [entry.rsplit(":", 1) for entry in printed.split()]
    ends = [0.0, *(float(end) for _, end in pairs)]
    return [span for (phone, _), span in zip(pairs, pairwise(ends), strict=True) if phone != PAUSE]


@cache
def _phone_count(word: str, voice: str) -> int:
    phones = _flite(["-voice", voice, "-ps", "-t", word, "none"]).split()
    return len(phones) - phones.count(PAUSE)


def _spans(
    words: list[str], phones: list[tuple[float, float]], voice: str
) -> list[tuple[float, float]]:
    """Start and end of each word, by the phones that belong to it.

    Where the sentence has fewer phones than its words alone, each word's share shrinks.
    """
    bounds = np.cumsum([0, *(_phone_count(word, voice) for word in words)], dtype=float)
    edges = np.round(bounds * len(phones) / bounds[-1]).astype(int)
    return [(phones[first][0], phones[max(first, last - 1)][1]) for first, last in pairwise(edges)]
