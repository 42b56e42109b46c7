"""Gives a diarizer without embeddings the voices of another one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from whosaid.diarization.diarizer import (
    Diarization,
    DiarizationStream,
    Diarizer,
    Pause,
    Span,
    SpeakerHints,
    Vector,
)
from whosaid.diarization.known_speakers import MIN_SPEECH, clip_of


class VoicedDiarizer(Diarizer):
    """A diarizer with the turns of `diarizer` and the embeddings of `voices`, which diarizes
    itself if `diarizer` finds the most speakers that it can distinguish: there may be more. It does
    not start early, because voices are embedded after the turns of the whole recording.
    """

    def __init__(self, diarizer: Diarizer, voices: Diarizer) -> None:
        self._diarizer, self._voices = diarizer, voices
        can = diarizer.capabilities
        self.capabilities = replace(
            voices.capabilities, hints=can.hints, streams=can.streams, early=False
        )

    def diarize(
        self, samples: NDArray[np.float32], hints: SpeakerHints, pause: Pause = lambda *_: None
    ) -> Diarization:
        """Diarize as specified by `Diarizer.diarize`. Each voice is embedded as a clip is."""
        found = self._diarizer.diarize(samples, hints, pause)
        if len({turn.speaker for turn in found.turns}) == found.most_speakers:
            return self._voices.diarize(samples, hints, pause)
        voices = {}
        for speaker, own in found.exclusive_spans().items():
            pause()
            if sum(end - start for start, end in own) >= MIN_SPEECH:
                voices[speaker] = self.embed(*clip_of(samples, own))
        return replace(found, voices=voices)

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        return self._voices.embed(samples, spans)

    def stream(self) -> DiarizationStream:
        return self._diarizer.stream()
