"""Clips of people: as a request has them, and embedded as the endpoint does it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from tests.support.audio_files import wav_file
from tests.support.speech import Samples
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.audio.decode import AudioLimits
from whosaid.diarization.diarizer import Diarizer, Span, Vector
from whosaid.diarization.known_speakers import Enrolment
from whosaid.errors import InvalidReference
from whosaid.payload.parameters import ReferenceClip
from whosaid.runtime.steps import run_steps
from whosaid.timebase import SAMPLE_RATE


def encode_clip(samples: Samples) -> str:
    """Samples (n,) at 16 kHz as WAV in base64."""
    return base64.b64encode(wav_file(samples.astype(float), SAMPLE_RATE)).decode()


def embed_clips(
    diarizer: Diarizer, clips: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, Vector | None]]:
    """The unit vector of each name's clip (in base64); None for one that is refused."""
    find_speech, limits = SpeechFinder(), AudioLimits(60.0, 10**7)
    for name, reference in clips:
        enrolment = Enrolment(diarizer, find_speech, limits, SAMPLE_RATE)
        # Under another name, as people of a reference may be called what a request may not use.
        clip = ReferenceClip(name="someone", reference=reference)
        try:
            enrolment.enrol(clip.name, run_steps(enrolment.decode(clip)))
            yield name, enrolment.known.vectors[clip.name][0]
        except InvalidReference as error:
            print(f"refused, {name}: {error}", flush=True)
            yield name, None


class SpeechFinder:
    """Where somebody speaks in samples, in seconds, as the endpoint finds it."""

    def __init__(self) -> None:
        self._detect = SpeechDetector()

    def __call__(self, samples: Samples) -> list[Span]:
        """The stretches of speech in order."""
        return [
            (span.start / SAMPLE_RATE, span.stop / SAMPLE_RATE) for span in self._detect(samples)
        ]
