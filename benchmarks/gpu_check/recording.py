"""The conversation that is transcribed, decoded by whatever this machine has.

A rented GPU machine often lacks PyAV and the `silero-vad` package. The check then goes on with
less, and its page says with what.
"""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
FILTER_TAPS = 96  # on each side, of the low-pass before decimation

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
        """The same, repeated or cut to last so long."""
        count = round(seconds * SAMPLE_RATE)
        return Recording(np.resize(self.samples, count), self.source, self.is_speech)


def read_conversation(path: Path = CONVERSATION) -> Recording:
    """The conversation by the first decoder there is; noise where there is none."""
    decoders: dict[str, Callable[[Path], Samples]] = {
        "PyAV, as the endpoint does": _decode_with_av,
        "soundfile": _decode_with_soundfile,
        "the program ffmpeg": _decode_with_ffmpeg,
    }
    for name, decode in decoders.items():
        try:
            return Recording(decode(path), f"{path.name}, decoded by {name}")
        except (ImportError, OSError, RuntimeError, subprocess.CalledProcessError):
            continue
    noise = np.random.default_rng(0).normal(0, 0.1, NOISE_SECONDS * SAMPLE_RATE)
    source = "noise: neither PyAV nor soundfile nor ffmpeg is here to decode the conversation"
    return Recording(noise.astype(np.float32), source, is_speech=False)


def speech_detector(recording: Recording) -> tuple[DetectSpeech, str]:
    """The endpoint's detector and its name; all audio counts as speech where it has no weights."""
    if not recording.is_speech:
        return fixed_spans, "none: all of the noise counts as speech"
    try:
        return SpeechDetector(), "Silero's"
    except ImportError:
        return fixed_spans, "none: without the package silero-vad all audio counts as speech"


def fixed_spans(samples: Samples) -> Sequence[Span]:
    """All audio as spans of equal length, so close that the windows' margins cover the pauses.

    Windows between pauses are independent and fill a batch.
    """
    length, pause = round(SPAN_SECONDS * SAMPLE_RATE), round(PAUSE_SECONDS * SAMPLE_RATE)
    stop = len(samples)
    return [Span(start, min(start + length - pause, stop)) for start in range(0, stop, length)]


def spoken_words() -> list[str]:
    """What is said in the conversation, in order of the words' starts."""
    words = json.loads(TRUTH.read_text(encoding="utf-8"))["words"]
    return [word["text"] for word in sorted(words, key=lambda word: word["start"])]


def count_word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """The least number of words to insert, delete or replace (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))
    for number, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], number
        for place, found in enumerate(hypothesis, 1):
            replaced = diagonal + (expected != found)
            diagonal = row[place]
            row[place] = min(replaced, diagonal + 1, row[place - 1] + 1)
    return row[-1]


def decimate(samples: Samples, factor: int) -> Samples:
    """Every `factor`-th sample after a low-pass at the new Nyquist frequency (Blackman window)."""
    if factor == 1:
        return samples
    places = np.arange(-FILTER_TAPS, FILTER_TAPS + 1)
    low_pass = np.sinc(places / factor) * np.blackman(len(places)) / factor
    return np.convolve(samples, low_pass, mode="same")[::factor].astype(np.float32)


def _decode_with_av(path: Path) -> Samples:
    from whosaid.audio.decode import AudioLimits, decode_audio

    limits = AudioLimits(MAX_SECONDS, MAX_BYTES)
    return decode_audio(path.read_bytes(), SAMPLE_RATE, limits).samples


def _decode_with_soundfile(path: Path) -> Samples:
    soundfile: Any = importlib.import_module("soundfile")

    samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    factor, rest = divmod(rate, SAMPLE_RATE)
    if rest:
        raise RuntimeError(f"{rate} Hz is no multiple of {SAMPLE_RATE} Hz")
    return decimate(samples.mean(axis=1), factor)


def _decode_with_ffmpeg(path: Path) -> Samples:
    command = ["ffmpeg", "-v", "error", "-nostdin", "-i", str(path)]
    raw = ["-f", "f32le", "-ac", "1", "-ar", str(SAMPLE_RATE), "-"]
    done = subprocess.run([*command, *raw], capture_output=True, check=True, timeout=60)
    return np.frombuffer(done.stdout, np.float32).copy()
