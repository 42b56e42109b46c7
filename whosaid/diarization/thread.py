"""Runs diarization: one thread for all clients, and a stream of its own on CUDA.

Shorter recordings go first, also between two batches of a longer recording.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from whosaid.audio.decode import AudioLimits
from whosaid.diarization.diarizer import (
    Diarization,
    DiarizationCancelled,
    DiarizationStream,
    Diarizer,
    EarlyDiarization,
    Pause,
    Span,
    SpeakerHints,
)
from whosaid.diarization.known_speakers import (
    FindSpeech,
    KnownVoices,
    Naming,
    VoiceEnroller,
    name_speakers,
    speaker_voice,
)
from whosaid.errors import ModelError, OutOfMemory
from whosaid.runtime.device import compute_beside
from whosaid.runtime.errors import endpoint_errors, is_out_of_memory
from whosaid.scheduling.shortest_first import QueuedAudio, ShortestFirst, in_one_step
from whosaid.timebase import SAMPLE_RATE

WARM_UP_SECONDS = 10  # one window of pyannote's published pipelines

T = TypeVar("T")


# The thread, and its clients


class DiarizationThread(ShortestFirst):
    """Runs work on `device` in one thread, with `threads` OpenMP threads."""

    def __init__(self, threads: int, device: torch.device) -> None:
        super().__init__("diarization")
        self._threads, self._device = threads, device

    def warm_up(self, diarizer: Diarizer) -> None:
        if self._device.type == "cuda":
            self.compute(QueuedAudio(0.0), partial(warm_up, diarizer)).result()

    def compute(self, recording: QueuedAudio, work: Callable[[], T]) -> Future[T]:
        """Queue `work` on a recording. Cancelling the future drops the work and its samples."""
        computed = partial(compute_beside, work, self._threads, self._device)
        return self.submit(recording, in_one_step(computed))


class DiarizationClient:
    """Diarizes for one client; `diarizer` is None if the client wants no speakers."""

    def __init__(self, thread: DiarizationThread, diarizer: Diarizer | None) -> None:
        self._thread, self._diarizer = thread, diarizer
        self._shares: list[float] = []  # of each channel's diarization that is done
        self._left = threading.Event()
        self._begun: list[Future[Any]] = []
        self._early: EarlyDiarization | None = None
        self._hearing: Future[None] | None = None

    def leave(self) -> None:
        """Cancel all work of this client."""
        self._left.set()
        for each in (*self._begun, self._hearing):
            if each is not None:
                each.cancel()  # queued work holds the samples

    def enrolment(
        self, find_speech: FindSpeech, limits: AudioLimits, sampling_rate: int
    ) -> VoiceEnroller | None:
        """Return a new enrolment; None without a diarizer, or if the diarizer embeds no voices."""
        if self._diarizer is None or not self._diarizer.capabilities.voices:
            return None
        return VoiceEnroller(self._diarizer, find_speech, limits, sampling_rate)

    async def enrol(
        self, enroller: VoiceEnroller, clip: QueuedAudio, name: str, samples: NDArray[np.float32]
    ) -> None:
        """Call `enroller.enrol` in the thread, scheduled as the `clip`."""
        work = partial(enroller.enrol, name, samples, self._pause(clip))
        try:
            await asyncio.wrap_future(self._submit(clip, work))
        except asyncio.CancelledError:
            self.leave()
            raise

    def hear(self, recording: QueuedAudio, samples: NDArray[np.float32]) -> None:
        """Queue what the first `samples` (n,) allow, unless earlier samples are still queued."""
        if self._diarizer is None or not self._diarizer.capabilities.early or self._left.is_set():
            return
        if self._early is None:
            self._early = self._diarizer.start_early()
        if self._hearing is None or self._hearing.done():
            work = partial(self._early.hear, samples, self._pause(recording))
            self._hearing = self._submit(recording, work)

    def begin(
        self, recording: QueuedAudio, channels: Sequence[NDArray[np.float32]], hints: SpeakerHints
    ) -> None:
        """Queue the diarization of each channel, samples (n,) at 16 kHz, of a recording."""
        diarizer = self._early or self._diarizer
        assert diarizer is not None  # callers begin only if speakers are wanted
        for samples in channels:
            pause = self._pause(recording, len(self._shares))
            self._shares.append(0.0)
            work = partial(diarizer.diarize, samples, hints, pause)
            self._begun.append(self._submit(recording, work))
        if self._left.is_set():  # during the last step of the decoding
            self.leave()

    @property
    def share(self) -> float:
        """Return the share of the diarization that is done, as far as the diarizer tells it."""
        return sum(self._shares) / max(1, len(self._shares))

    async def found(self, speech: Sequence[Sequence[Span]]) -> list[Diarization | None]:
        """Return the diarization of each channel, given its detected `speech`; None without speech
        or if no speakers are wanted. Raises the errors of `Diarizer.diarize`.
        """
        found: list[Diarization | None] = []
        for begun, spans in zip_longest(self._begun, speech):
            own = await asyncio.wrap_future(begun) if begun is not None and spans else None
            found.append(own.touching(spans) if own and spans else None)
        return found

    async def with_voices(
        self,
        recording: QueuedAudio,
        channels: Iterable[tuple[NDArray[np.float32], Diarization | None, Sequence[Span]]],
    ) -> list[Diarization | None]:
        """Return each channel's diarization, given with samples and speech, with a voice for every
        speaker if the diarizer has any, each queued by itself. Raises `Diarizer.embed`'s errors.
        """
        diarizer, result = self._diarizer, []
        for samples, found, speech in channels:
            answered = {}
            if found is not None and diarizer is not None and diarizer.capabilities.voice_model:
                for label, spans in found.exclusive_spans(speech).items():
                    work = partial(speaker_voice, diarizer, samples, spans)
                    self._begun.append(begun := self._submit(recording, work))
                    answered[label] = await asyncio.wrap_future(begun)
            voices = {label: voice for label, voice in answered.items() if voice}
            result.append(found and replace(found, answered=voices))
        return result

    async def push(
        self, stream: DiarizationStream, samples: NDArray[np.float32], last: bool
    ) -> Diarization:
        """Call `stream.push` in the thread, before every recording, and between its batches."""
        work = partial(stream.push, samples, last, self._check)
        found = await asyncio.wrap_future(self._submit(QueuedAudio(0.0), work))
        return Diarization((), ()) if found is None else found

    def _submit(self, recording: QueuedAudio, work: Callable[[], T]) -> Future[T | None]:
        """Queue `work`. The future gives None if the client leaves first; raises EndpointError."""

        def unless_left() -> T | None:
            with endpoint_errors(), suppress(DiarizationCancelled):
                self._check()
                return work()
            return None

        return self._thread.compute(recording, unless_left)

    def _check(self) -> None:
        if self._left.is_set():
            raise DiarizationCancelled

    def _pause(self, recording: QueuedAudio, channel: int | None = None) -> Pause:
        """Return a `pause` that lets shorter recordings go first and notes a channel's share."""
        let_pass = self._thread.between_batches(recording)

        def pause(share: float | None = None) -> None:
            self._check()
            if channel is not None and share is not None:
                self._shares[channel] = share
            let_pass()

        return pause


class SessionSpeakers:
    """Finds the speakers of one live session; for the event loop. `threshold` is for
    `name_speakers`. `stream` may be None. `warnings` name the settings that the diarizer ignores.
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
        self.warnings = warnings

    @property
    def missing(self) -> int | None:
        """Number of samples until `push` can return more turns; None if the diarizer does not
        stream. Callers then call `find` at the session's end.
        """
        return None if self._stream is None else self._stream.missing

    async def push(self, samples: NDArray[np.float32], last: bool) -> tuple[Diarization, float]:
        """Push samples (n,) at 16 kHz. Return new turns and the second where known turns end."""
        assert self._stream is not None
        found = await self._client.push(self._stream, samples, last)
        return found, self._stream.clock

    async def find(
        self, samples: NDArray[np.float32], speech: Sequence[Span]
    ) -> Diarization | None:
        """Diarize a whole session, samples (n,) at 16 kHz with detected `speech`."""
        recording = QueuedAudio(len(samples) / SAMPLE_RATE)
        self._client.begin(recording, [samples], SpeakerHints())
        (found,) = await self._client.found([speech])
        return found

    def name(self, found: Diarization | None) -> Naming:
        """Name the speakers of a session, whose labels are those of its words."""
        naming = name_speakers(found, self._known, self._threshold)
        warnings = found.warnings if found else ()
        return replace(naming, warnings=(*warnings, *naming.warnings))

    def close(self) -> None:
        self._client.leave()


# Shared by all diarizers


@contextmanager
def computing(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Compute on `stream`, if any. Exceptions of the models become ModelError or OutOfMemory."""
    with torch.cuda.stream(stream):
        try:
            yield
        except DiarizationCancelled:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(
                    "speaker diarization does not fit into memory, even one window at a time"
                ) from error
            raise ModelError(f"speaker diarization failed ({type(error).__name__})") from error


def diarization_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Wait for all queued work and return the stream of all diarizers; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    return _stream_of(device)


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for the process's life: cuBLAS keeps a workspace for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def warm_up(diarizer: Diarizer) -> None:
    """Diarize noise once, for first-use setup. Raises the errors of `Diarizer.diarize`."""
    noise = np.random.default_rng(0).normal(0, 0.1, WARM_UP_SECONDS * SAMPLE_RATE)
    diarizer.diarize(noise.astype(np.float32), SpeakerHints())
