"""Turns clips of known people into embeddings that speakers can be compared with.

A clip is diarized like any recording. That finds its speech and shows a second voice, by exclusive
turns, as noise is often taken for somebody who speaks beneath. Pauses and the other voice are
masked when the pipeline's own model embeds the clip, in one piece: the mean over windows, which
speakers have, does not exist below about 1.5 s and was no nearer above. A clip that is no use is
refused by its place in the request, as a name made of it would be wrong silently. Vectors live as
long as the request and are not written anywhere.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from audio.decode import AudioLimits, decode_audio, decode_base64
from diarization.diarizer import Diarizer, Span, SpeakerHints, Vector
from diarization.known_speakers import KnownVoices, alike, unit
from errors import ClientError, InvalidReference
from payload.reference_clips import ReferenceClip
from timebase import SAMPLE_RATE

# Seconds: of speech, of speech to be trusted, and of a whole clip. In a second of speech 0.8 s and
# more are found.
MIN_SPEECH, GOOD_SPEECH, MAX_SECONDS = 0.8, 3.0, 30.0
MAX_SECOND_VOICE = 0.15  # share of a clip's speech that may be another voice's
NOISY = 10.0  # decibels of speech above the rest of a clip
MIN_REST = 0.2  # seconds without speech from which noise is judged

FindSpeech = Callable[[NDArray[np.float32]], Sequence[Span]]


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What clips are judged and embedded by.

    `diarizer` is one that has voices. `find_speech` returns spans of seconds. `limits` are those of
    the request, its clips together.
    """

    diarizer: Diarizer
    find_speech: FindSpeech
    limits: AudioLimits
    sampling_rate: int

    def enrol(
        self, clips: Sequence[ReferenceClip], cancelled: threading.Event | None = None
    ) -> KnownVoices:
        """The voices of all clips, in order; several of a name are kept together.

        Raises InvalidReference for the first clip that is no use, and what `Diarizer.diarize`
        raises.
        """
        left = replace(self.limits, max_seconds=min(MAX_SECONDS, self.limits.max_seconds))
        vectors: dict[str, list[Vector]] = {}
        warnings: list[str] = []
        for place, clip in enumerate(clips):
            try:
                data = decode_base64(clip.reference, left)
                samples = decode_audio(data, self.sampling_rate, left).samples
            except ClientError as error:
                reason = str(error).removeprefix(f"{error.code}: ")
                raise _useless(place, reason.replace("inputs", "reference", 1)) from None
            left = left.less(len(data))
            vector, doubts = self._embed(samples, place, cancelled)
            vectors.setdefault(clip.name, []).append(vector)
            warnings += (f"known_speakers[{place}]: {doubt}" for doubt in doubts)
        same_voice = self.diarizer.capabilities.same_voice
        warnings += (
            f"known_speakers: names {one} and {two} sound alike and may be mixed up"
            for one, two in ([] if same_voice is None else alike(vectors, same_voice))
        )
        return KnownVoices(tuple(vectors), vectors, tuple(warnings), same_voice)

    def _embed(
        self, samples: NDArray[np.float32], place: int, cancelled: threading.Event | None
    ) -> tuple[Vector, list[str]]:
        """A clip's voice as a unit vector, and what speaks against relying on it."""
        found = self.diarizer.diarize(samples, SpeakerHints(), cancelled)
        spans: defaultdict[str, list[Span]] = defaultdict(list)
        for turn in found.within(self.find_speech(samples)).exclusive:
            spans[turn.speaker].append((turn.start, turn.end))
        seconds = {label: sum(end - start for start, end in own) for label, own in spans.items()}
        if not seconds:
            raise _useless(place, "no speech was found")
        label = max(seconds, key=lambda each: seconds[each])
        spoken = sum(seconds.values())
        if spoken - seconds[label] > MAX_SECOND_VOICE * spoken:
            raise _useless(place, "more than one person speaks")
        if seconds[label] < MIN_SPEECH:
            raise _useless(place, f"{seconds[label]:.1f} s of speech are too short")
        vector = unit(self.diarizer.embed(samples, spans[label]))
        if vector is None:
            raise _useless(place, "no voice could be made out")
        return vector, _doubts(samples, spans[label], seconds[label])


def _useless(place: int, reason: str) -> InvalidReference:
    return InvalidReference(f"known_speakers[{place}]: {reason}")


def _doubts(samples: NDArray[np.float32], spans: Sequence[Span], seconds: float) -> list[str]:
    doubts = []
    if seconds < GOOD_SPEECH:
        doubts.append(f"{seconds:.1f} s of speech is little, {GOOD_SPEECH:g} s are better")
    if _decibels(samples, spans) < NOISY:
        doubts.append("it is noisy")
    return doubts


def _decibels(samples: NDArray[np.float32], spans: Sequence[Span]) -> float:
    """How much louder `spans` are than the rest; infinite without enough of a rest."""
    speech = np.zeros(len(samples), bool)
    for start, end in spans:
        speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = True
    if np.count_nonzero(~speech) < MIN_REST * SAMPLE_RATE:
        return np.inf
    power, rest = (float(np.square(samples[part]).mean()) for part in (speech, ~speech))
    return 10 * float(np.log10(power / rest)) if power > 0 and rest > 0 else np.inf
