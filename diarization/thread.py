"""The thread that diarizes, for any number of clients: shorter recordings go first, also between
two batches of a longer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from threading import Event
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from audio.decode import AudioLimits
from diarization.diarizer import (
    Diarization,
    DiarizationCancelled,
    DiarizationStream,
    Diarizer,
    Span,
    SpeakerHints,
)
from diarization.enrolment import Enrolment, FindSpeech
from runtime.device import compute_beside
from runtime.errors import endpoint_errors
from runtime.shortest_first import Recording, ShortestFirst, in_one_step

T = TypeVar("T")


class DiarizationThread:
    """Runs what computes on `device`, with `threads` threads beneath it."""

    def __init__(self, threads: int, device: torch.device) -> None:
        self._threads, self._device = threads, device
        self._works = ShortestFirst("diarization")

    def submit(self, recording: Recording, work: Callable[[], T]) -> Future[T]:
        """What `work` on a recording returns; once that is cancelled nothing holds on to it."""
        computed = partial(compute_beside, work, self._threads, self._device)
        return self._works.submit(recording, in_one_step(computed))

    def between_batches(self, recording: Recording) -> Callable[[], None]:
        """What work on `recording` calls between its batches: shorter ones have their turn."""
        return self._works.between_batches(recording)

    def shutdown(self) -> None:
        """Wait for the work that runs; what has not begun is cancelled."""
        self._works.shutdown()


class DiarizationClient:
    """What one client, a request or a live session, asks of the thread; for the event loop's. All
    of it ends once the client has left.

    `diarizer` is None where the client does not look for speakers.
    """

    def __init__(self, thread: DiarizationThread, diarizer: Diarizer | None) -> None:
        self._thread, self._diarizer = thread, diarizer
        self._left = Event()
        self._begun: list[Future[Diarization | None]] = []

    def leave(self) -> None:
        """Nobody asks any more."""
        self._left.set()
        for each in self._begun:
            each.cancel()  # while it waits it holds the samples

    def enrolment(
        self, find_speech: FindSpeech, limits: AudioLimits, sampling_rate: int
    ) -> Enrolment | None:
        """What clips of known people are heard with; None where speakers are not looked for, or by
        a diarizer without voices.
        """
        if self._diarizer is None or not self._diarizer.capabilities.voices:
            return None
        return Enrolment(self._diarizer, find_speech, limits, sampling_rate)

    async def hear(
        self, enrolment: Enrolment, recording: Recording, name: str, samples: NDArray[np.float32]
    ) -> None:
        """See `Enrolment.hear`: a clip, which is a `recording` of its own."""
        between = self._thread.between_batches(recording)
        hear = partial(enrolment.hear, name, samples, self._left, between)
        try:
            await asyncio.wrap_future(self._submit(recording, hear))
        except asyncio.CancelledError:
            self.leave()
            raise

    def begin(
        self, recording: Recording, channels: Sequence[NDArray[np.float32]], hints: SpeakerHints
    ) -> None:
        """Begin to diarize each channel of a recording, samples (n,) at 16 kHz."""
        assert self._diarizer is not None  # who asks knows of it
        for samples in channels:
            between = self._thread.between_batches(recording)
            work = partial(self._diarizer.diarize, samples, hints, self._left, between)
            self._begun.append(self._submit(recording, work))

    async def found(self, speech: Sequence[Sequence[Span]]) -> list[Diarization | None]:
        """Who speaks when on each channel that was begun, in which this `speech` was detected; None
        where nobody speaks, or speakers are not looked for. Raises what `Diarizer.diarize` raises.
        """
        return [
            None if begun is None or not spans else await _touching(begun, spans)
            for begun, spans in zip_longest(self._begun, speech)
        ]

    async def push(
        self, stream: DiarizationStream, samples: NDArray[np.float32], last: bool
    ) -> Diarization:
        """See `DiarizationStream.push`. It has no length, and goes between the batches of whatever
        runs.
        """
        hear = partial(stream.push, samples, last, self._left)
        found = await asyncio.wrap_future(self._submit(Recording(0.0), hear))
        return Diarization((), ()) if found is None else found

    def _submit(self, recording: Recording, work: Callable[[], T]) -> Future[T | None]:
        """What `work` returns, None where the client leaves before. Raises EndpointError."""

        def unless_left() -> T | None:
            with endpoint_errors(), suppress(DiarizationCancelled):
                if not self._left.is_set():
                    return work()
            return None

        return self._thread.submit(recording, unless_left)


async def _touching(begun: Future[Diarization | None], speech: Sequence[Span]) -> Diarization:
    found = await asyncio.wrap_future(begun)
    assert found is not None  # who asked is still there
    return found.touching(speech).numbered({})
