"""Answers requests of many clients with one set of models.

The one decision: whatever computes runs in few threads of its own, and the event loop only waits.
One thread runs the engine for all requests at once, one runs diarization, in which shorter
recordings go between two batches of a longer one, and few prepare: they read audio, find speech,
and put answers together, without threads beneath them. Everywhere short recordings go first, by
seconds of audio (`server/shortest_first.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Event as Flag
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from answer.response import Answer
from asr import Transcription
from audio.decode import Audio, DecodingStep
from diarization.known_speakers import NOBODY, KnownVoices
from diarization.pipeline import Diarization, DiarizationCancelled, Diarizer, SpeakerHints
from errors import EndpointError
from handler import EndpointHandler, TranscriptionRequest, endpoint_errors, speaker_hints
from runtime.openmp import set_threads
from server.engine_loop import EngineCounts, EngineLoop, Progress, stopped
from server.shortest_first import Recording, ShortestFirst, Steps, in_one_step
from transcript import Transcript

# Until a file is opened it is taken for 16-bit samples at 16 kHz: the first look at it is short.
GUESSED_BYTES_PER_SECOND = 32_000
# Processors to each thread that prepares: the others compute.
PROCESSORS_PER_THREAD = 4
CLIP_SECONDS = 3.0  # about the length of a clip of a known speaker

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio was read: it is `duration` seconds long."""

    duration: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request."""

    answer: Answer


Event = Decoded | Progress | Finished


class Service:
    """Runs requests; submitted on the event loop, computed in threads.

    At most `max_rows` windows are decoded at once, fewer where memory does not hold so many; of
    long recordings at most three quarters of them, so that others find a free row. About
    `max_decoded_bytes` of samples are held. `notice` is a warning of every answer.
    """

    def __init__(
        self,
        handler: EndpointHandler,
        max_rows: int | None = None,
        max_decoded_bytes: float = inf,
        notice: str | None = None,
    ) -> None:
        self.handler = handler
        self.notice = notice
        self.outstanding = 0  # accepted requests that are not answered
        self._engine = handler.transcriber.engine
        if max_rows is not None:
            self._engine.admission.max_rows = max_rows
        self._loop = EngineLoop(self._engine)
        self._preparation = ShortestFirst(
            "preparation",
            max(1, handler.threads // PROCESSORS_PER_THREAD),
            max_decoded_bytes,
            partial(set_threads, 1),
        )
        self._diarization = ShortestFirst("diarization")

    @property
    def alive(self) -> bool:
        """Whether requests are still computed."""
        return self._loop.alive

    @property
    def running_rows(self) -> int:
        """How many windows are being decoded."""
        return self._engine.running_rows

    @property
    def waiting_windows(self) -> int:
        """How many windows wait for a row."""
        return self._engine.waiting_windows

    @property
    def held_audio_bytes(self) -> int:
        """How much decoded audio there is."""
        return self._preparation.held_bytes

    @property
    def counts(self) -> EngineCounts:
        """What the engine has done so far; read only."""
        return self._loop.counts

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """The answer to a request. Raises EndpointError; cancelling the task frees its rows."""
        async with aclosing(self.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event.answer
        raise AssertionError("a request ends with its answer")

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """What becomes of a request: Decoded, any number of Progress, and Finished.

        Raises EndpointError; closing the iterator frees its rows.
        """
        if not self.alive:
            raise stopped()
        left = Flag()
        diarizing: Future[Diarization | None] | None = None
        self.outstanding += 1
        try:
            known = await self._enrol(request, left)
            guess = len(request.inputs) / GUESSED_BYTES_PER_SECOND
            with self._preparation.recording(guess) as recording:
                decoding = _decode(self.handler, request)
                audio = await self._prepare(recording, decoding, decodes=True)
                yield Decoded(audio.duration)
                diarizing = self._start_diarization(recording, audio, request, left)
                starting = self.handler.transcriber.starting_steps(audio.samples, request.options)
                transcription = await self._prepare(recording, starting)
                async with aclosing(self._transcribe(transcription)) as events:
                    async for event in events:
                        if isinstance(event, Transcript):
                            transcript = event
                        else:
                            yield event
                diarization = await _speakers(diarizing, transcript)
                answer = partial(
                    self.handler.answer, request, audio, transcript, diarization, known
                )
                answered = self._prepare(recording, in_one_step(answer))
                yield Finished(self._with_notice(await answered))
        finally:
            left.set()
            if diarizing is not None:
                diarizing.cancel()  # while it waits it holds the samples
            self.outstanding -= 1

    def close(self) -> None:
        """End the threads; requests that still run fail."""
        self._loop.close()
        self._preparation.shutdown()
        self._diarization.shutdown()

    def _with_notice(self, answer: Answer) -> Answer:
        if self.notice is None:
            return answer
        return replace(answer, warnings=(self.notice, *answer.warnings))

    async def _prepare(self, recording: Recording, steps: Steps[T], decodes: bool = False) -> T:
        """What `steps` return in a thread that prepares. Raises EndpointError."""
        submitted = self._preparation.submit(recording, _guarded(steps), decodes)
        return await asyncio.wrap_future(submitted)

    async def _enrol(self, request: TranscriptionRequest, left: Flag) -> KnownVoices:
        """The voices of the request's clips, embedded where recordings are diarized."""
        if not request.config.known_speakers:
            return NOBODY
        enrol = partial(_enrol, self.handler, request, left)
        work = partial(self.handler.second_thread.run, enrol)
        clips = Recording(CLIP_SECONDS * len(request.config.known_speakers))
        return await asyncio.wrap_future(self._diarization.submit(clips, in_one_step(work)))

    def _start_diarization(
        self, recording: Recording, audio: Audio, request: TranscriptionRequest, left: Flag
    ) -> Future[Diarization | None] | None:
        """Diarization, begun before speech is detected; it ends when the request has `left`."""
        diarizer = self.handler.diarizer
        if diarizer is None or not self.handler.diarizes(request.config):
            return None
        hints = speaker_hints(request.config)
        between = partial(self._diarization.let_pass, recording)
        diarize = partial(_diarize, diarizer, audio.samples, hints, left, between)
        work = partial(self.handler.second_thread.run, diarize)
        return self._diarization.submit(recording, in_one_step(work))

    async def _transcribe(
        self, transcription: Transcription
    ) -> AsyncGenerator[Progress | Transcript]:
        """What the engine's thread tells of a transcription; the transcript comes last."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Progress | Transcript | EndpointError] = asyncio.Queue()

        def tell(event: Progress | Transcript | EndpointError) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = self._loop.submit(transcription, tell)
        try:
            while True:
                event = await events.get()
                if isinstance(event, EndpointError):
                    raise event
                yield event
                if isinstance(event, Transcript):
                    return
        finally:
            job.cancel()


async def _speakers(
    diarizing: Future[Diarization | None] | None, transcript: Transcript
) -> Diarization | None:
    """Who speaks when; None where nobody asks or nobody speaks."""
    if diarizing is None or not transcript.speech:
        return None
    found = await asyncio.wrap_future(diarizing)
    assert found is not None  # the request is still there
    return found.within(transcript.speech)


def _diarize(
    diarizer: Diarizer,
    samples: NDArray[np.float32],
    hints: SpeakerHints,
    left: Flag,
    between: Callable[[], None],
) -> Diarization | None:
    """None where the request has left meanwhile."""
    with endpoint_errors(), suppress(DiarizationCancelled):
        return None if left.is_set() else diarizer.diarize(samples, hints, left, between)
    return None


def _enrol(handler: EndpointHandler, request: TranscriptionRequest, left: Flag) -> KnownVoices:
    """Nobody where the request has left meanwhile."""
    with endpoint_errors(), suppress(DiarizationCancelled):
        return NOBODY if left.is_set() else handler.enrol(request, left)
    return NOBODY


def _decode(handler: EndpointHandler, request: TranscriptionRequest) -> Steps[Audio]:
    """The audio, all of which counts as held in the end."""
    audio = yield from handler.decode(request)
    yield DecodingStep(audio.duration, audio.duration)
    return audio


def _guarded(steps: Steps[T]) -> Steps[T]:
    with endpoint_errors():
        return (yield from steps)
