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
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from audio.decode import AudioLimits, DecodingStep, decode_base64, decoding_steps
from diarization.diarizer import Diarizer, Span, SpeakerHints, Vector
from diarization.known_speakers import KnownVoices, alike, unit
from errors import ClientError, InvalidReference
from payload.reference_clips import ReferenceClip
from runtime.steps import give_way
from timebase import SAMPLE_RATE

# Seconds: of speech, of speech to be trusted, and of a whole clip. In a second of speech 0.8 s and
# more are found.
MIN_SPEECH, GOOD_SPEECH, MAX_SECONDS = 0.8, 3.0, 30.0
MAX_SECOND_VOICE = 0.15  # share of a clip's speech that may be another voice's
NOISY = 10.0  # decibels of speech above the rest of a clip
MIN_REST = 0.2  # seconds without speech from which noise is judged

FindSpeech = Callable[[NDArray[np.float32]], Sequence[Span]]


class Enrolment:
    """The clips of a request, one after the other: each is decoded, and then heard, in any thread.

    `diarizer` is one that has voices. `find_speech` returns spans of seconds. `limits` are those of
    the request, its clips together.
    """

    def __init__(
        self, diarizer: Diarizer, find_speech: FindSpeech, limits: AudioLimits, sampling_rate: int
    ) -> None:
        self._diarizer, self._find_speech, self._rate = diarizer, find_speech, sampling_rate
        self._left = replace(limits, max_seconds=min(MAX_SECONDS, limits.max_seconds))
        self._place = 0  # of the clip that is next to be heard
        self._vectors: dict[str, list[Vector]] = {}
        self._warnings: list[str] = []

    @property
    def known(self) -> KnownVoices:
        """The voices of all clips that were heard, in order; several of a name are together."""
        same_voice = self._diarizer.capabilities.same_voice
        pairs = [] if same_voice is None else alike(self._vectors, same_voice)
        warnings = (
            *self._warnings,
            *(
                f"known_speakers: names {one} and {two} sound alike and may be mixed up"
                for one, two in pairs
            ),
        )
        return KnownVoices(tuple(self._vectors), self._vectors, warnings, same_voice)

    async def decode(self, clip: ReferenceClip) -> NDArray[np.float32]:
        """The samples of the next clip, (n,) at 16 kHz, all of which count as held in the end.

        Raises InvalidReference.
        """
        try:
            data = decode_base64(clip.reference, self._left)
            audio = await decoding_steps(data, self._rate, self._left)
        except ClientError as error:
            reason = str(error).removeprefix(f"{error.code}: ")
            raise self._useless(reason.replace("inputs", "reference", 1)) from None
        self._left = self._left.less(len(data))
        await give_way(DecodingStep(audio.seconds, audio.seconds))
        return audio.samples

    def hear(
        self,
        name: str,
        samples: NDArray[np.float32],
        cancelled: threading.Event | None = None,
        between: Callable[[], None] | None = None,
    ) -> None:
        """Add the voice in the clip that was decoded, which is that of `name`.

        Raises InvalidReference for one that is no use, and what `Diarizer.diarize` raises.
        """
        found = self._diarizer.diarize(samples, SpeakerHints(), cancelled, between)
        spans: defaultdict[str, list[Span]] = defaultdict(list)
        for turn in found.within(self._find_speech(samples)).exclusive:
            spans[turn.speaker].append((turn.start, turn.end))
        seconds = {label: sum(end - start for start, end in own) for label, own in spans.items()}
        if not seconds:
            raise self._useless("no speech was found")
        label = max(seconds, key=lambda each: seconds[each])
        spoken = sum(seconds.values())
        if spoken - seconds[label] > MAX_SECOND_VOICE * spoken:
            raise self._useless("more than one person speaks")
        if seconds[label] < MIN_SPEECH:
            raise self._useless(f"{seconds[label]:.1f} s of speech are too short")
        vector = unit(self._diarizer.embed(samples, spans[label]))
        if vector is None:
            raise self._useless("no voice could be made out")
        doubts = _doubts(samples, spans[label], seconds[label])
        self._warnings += (f"known_speakers[{self._place}]: {doubt}" for doubt in doubts)
        self._vectors.setdefault(name, []).append(vector)
        self._place += 1

    def _useless(self, reason: str) -> InvalidReference:
        return InvalidReference(f"known_speakers[{self._place}]: {reason}")


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
