"""Who speaks in one live session, those that the client knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from diarization.diarizer import Diarization, DiarizationStream, Span, SpeakerHints
from diarization.known_speakers import KnownVoices, Naming, name_speakers
from diarization.thread import DiarizationClient
from runtime.shortest_first import Recording
from timebase import SAMPLE_RATE


class SessionSpeakers:
    """Asks the thread of diarization, as a `client`; for the event loop's thread.

    `threshold` is as `name_speakers` has it. `stream` is None where the diarizer has none.
    `warnings` are of wishes that nobody looks at.
    """

    def __init__(
        self,
        client: DiarizationClient,
        known: KnownVoices,
        threshold: float | None,
        stream: DiarizationStream | None,
        warnings: tuple[str, ...],
    ) -> None:
        self._client, self._stream = client, stream
        self._known, self._threshold = known, threshold
        self._labels: dict[str, str] = {}  # the diarizer's labels, and the session's
        self.warnings = warnings

    @property
    def missing(self) -> int | None:
        """So many samples from now on `push` tells more; None where the diarizer does not stream,
        and `find` does once all has come.
        """
        return None if self._stream is None else self._stream.missing

    async def push(self, samples: NDArray[np.float32], last: bool) -> tuple[Diarization, float]:
        """See `DiarizationStream.push`, with its clock; samples (n,) at 16 kHz."""
        assert self._stream is not None
        found = await self._client.push(self._stream, samples, last)
        return found.numbered(self._labels), self._stream.clock

    async def find(self, samples: NDArray[np.float32], speech: Sequence[Span]) -> Naming:
        """Who speaks when in a whole session of samples (n,) at 16 kHz, in which `speech` was
        detected. Raises what `Diarizer.diarize` raises.
        """
        recording = Recording(len(samples) / SAMPLE_RATE)
        self._client.begin(recording, [samples], SpeakerHints())
        (found,) = await self._client.found([speech])
        naming = name_speakers(found, self._known, self._threshold)
        told = found.warnings if found else ()
        return replace(naming, warnings=(*told, *naming.warnings))

    def close(self) -> None:
        """Nobody asks any more."""
        self._client.leave()
