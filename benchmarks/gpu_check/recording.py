"""The conversation that is transcribed, decoded by whatever this machine has.

A rented GPU machine often lacks PyAV and the `silero-vad` package. The check then goes on with
less, and its page says with what.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from config import REPOSITORY
from whosaid.asr.frontend.vad import DetectSpeech, SpeechDetector
from whosaid.asr.frontend.windows import Span
from whosaid.timebase import SAMPLE_RATE

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
TRUTH = REPOSITORY / "demo" / "conversation.json"
NOISE_SECONDS = 120
MAX_SECONDS, MAX_BYTES = 600.0, 1 << 28
SPAN_SECONDS, PAUSE_SECONDS = 15.0, 0.5  # where no detector finds speech

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """Mono samples (n,) at 16 kHz, and how they were made; `is_speech` is False for noise."""

    samples: Samples
    source: str
    is_speech: bool = True

    @property
    def seconds(self) -> float:
        """The recording's length."""
        return len(self.samples) / SAMPLE_RATE

    def lasting(self, seconds: float) -> Recording:
        """Return the recording, repeated or cut to last so many seconds."""
        count = round(seconds * SAMPLE_RATE)
        return Recording(np.resize(self.samples, count), self.source, self.is_speech)


def read_conversation(path: Path = CONVERSATION) -> Recording:
    """Return the conversation by the first decoder that is installed; noise if there is none."""
    decoders: dict[str, Callable[[Path], Samples]] = {
        "PyAV, as the endpoint does": _decode_with_av,
        "the program ffmpeg": _decode_with_ffmpeg,
    }
    for name, decode in decoders.items():
        try:
            return Recording(decode(path), f"{path.name}, decoded by {name}")
        except (ImportError, OSError, subprocess.CalledProcessError):
            continue
    noise = np.random.default_rng(0).normal(0, 0.1, NOISE_SECONDS * SAMPLE_RATE)
    source = "noise: neither PyAV nor ffmpeg is here to decode the conversation"
    return Recording(noise.astype(np.float32), source, is_speech=False)


def speech_detector(recording: Recording) -> tuple[DetectSpeech, str]:
    """Return the endpoint's detector and its name; without its weights all audio is speech."""
    if not recording.is_speech:
        return fixed_spans, "none: all of the noise counts as speech"
    try:
        return SpeechDetector(), "Silero's"
    except ImportError:
        return fixed_spans, "none: without the package silero-vad all audio counts as speech"


def fixed_spans(samples: Samples) -> Sequence[Span]:
    """Return all audio as spans of equal length, so close that the windows' margins cover the
    pauses.

    Windows between pauses are independent and fill a batch.
    """
    length, pause = round(SPAN_SECONDS * SAMPLE_RATE), round(PAUSE_SECONDS * SAMPLE_RATE)
    stop = len(samples)
    return [Span(start, min(start + length - pause, stop)) for start in range(0, stop, length)]


def spoken_words() -> list[str]:
    """Return the words of the conversation, in the order of their starts."""
    words = json.loads(TRUTH.read_text(encoding="utf-8"))["words"]
    return [word["text"] for word in sorted(words, key=lambda word: word["start"])]


def count_word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Return the least number of words to insert, delete or replace (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))
    for number, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], number
        for place, found in enumerate(hypothesis, 1):
            replaced = diagonal + (expected != found)
            diagonal = row[place]
            row[place] = min(replaced, diagonal + 1, row[place - 1] + 1)
    return row[-1]


def _decode_with_av(path: Path) -> Samples:
    from whosaid.audio.decode import AudioLimits, decode_audio

    limits = AudioLimits(MAX_SECONDS, MAX_BYTES)
    return decode_audio(path.read_bytes(), SAMPLE_RATE, limits).samples


def _decode_with_ffmpeg(path: Path) -> Samples:
    command = ["ffmpeg", "-v", "error", "-nostdin", "-i", str(path)]
    raw = ["-f", "f32le", "-ac", "1", "-ar", str(SAMPLE_RATE), "-"]
    done = subprocess.run([*command, *raw], capture_output=True, check=True, timeout=60)
    return np.frombuffer(done.stdout, np.float32).copy()
