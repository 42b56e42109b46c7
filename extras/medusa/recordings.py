"""The recordings that heads are trained on or evaluated with, and their windows.

Speech is found and windows are planned as for a request, so that heads see the lengths, the pauses
and the cuts that they will draft for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.manifest import Recording, load_manifests
from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.vad import DetectSpeech
from whosaid.audio import ENDING
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.payload.languages import ENGLISH, language_code
from whosaid.timebase import SAMPLE_RATE

MANIFEST = "manifest.json"
LIMITS = AudioLimits(max_seconds=24 * 3600, max_bytes=2**33)

Samples = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SpokenWindow:
    """At most 30 s of a recording: samples (n,), mono at 16 kHz, and the language's code; None in
    an English-only model's.
    """

    samples: Samples
    language: str | None


def find_recordings(source: Path) -> list[Recording]:
    """Return the recordings of a manifest, or of a folder: those its `manifest.json` lists, else
    every audio file below it.

    Raises ValueError of one line if there are none.
    """
    if not source.exists():
        raise ValueError(f"{source}: there is no such folder or manifest")
    manifest = source / MANIFEST if source.is_dir() else source
    if manifest.is_file():
        found = load_manifests([manifest])
    else:
        files = sorted(path for path in source.rglob("*") if ENDING.fullmatch(path.suffix))
        found = [Recording(path.resolve()) for path in files]
    if not found:
        raise ValueError(f"{source}: it holds no recordings")
    return found


def load_samples(recording: Recording) -> Samples:
    """Return a recording's samples (n,), mono at 16 kHz. Raises InvalidAudio or AudioTooLong."""
    return decode_audio(recording.audio.read_bytes(), SAMPLE_RATE, LIMITS).samples


def spoken_windows(
    recordings: Sequence[Recording],
    special_tokens: SpecialTokens,
    detect_speech: DetectSpeech,
    detect_language: Callable[[Samples], str],
    window_seconds: float,
) -> Iterator[SpokenWindow]:
    """Yield the windows of recordings in order; a language that is not given is detected in the
    first window of its recording.
    """
    for recording in recordings:
        samples = load_samples(recording)
        schedule = Schedule(samples, detect_speech(samples), int(window_seconds * SAMPLE_RATE))
        parts = [schedule.samples(window) for window in schedule.planned()]
        language = language_code(recording.language) if recording.language else None
        if not special_tokens.multilingual:
            language = ENGLISH
        elif language is None and parts:
            language = detect_language(parts[0])
        yield from (SpokenWindow(part, language) for part in parts)
