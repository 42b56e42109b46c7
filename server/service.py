"""Answers requests of many clients with one set of models.

The one decision: whatever computes runs in few threads of its own, and the event loop only waits.
One thread runs the engine for all requests at once, one runs diarization, short recordings first,
and two prepare: they read audio, find speech, and put answers together. They compute without
threads beneath them, and large bodies have one of the two to themselves, so that small ones wait
for none of those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Event as Flag
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from asr import Transcription
from audio import Audio
from diarization.known_speakers import NOBODY, KnownVoices
from diarization.pipeline import Diarization, DiarizationCancelled, Diarizer, SpeakerHints
from errors import EndpointError
from handler import EndpointHandler, TranscriptionRequest, endpoint_errors, speaker_hints
from openmp import run_in_passing_thread, set_threads
from response import Answer
from server.audio_memory import AudioMemory
from server.engine_loop import EngineCounts, EngineLoop, Progress, stopped
from server.shortest_first import ShortestFirst
from transcript import Transcript

# Characters or bytes of a body; it takes a second or so to read that much compressed audio.
LARGE_BODY = 4_000_000
# Of the memory for decoded audio; the rest is for recordings whose bodies are large.
SMALL_SHARE = 1 / 4
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

    At most `max_rows` windows are decoded at once, fewer where memory does not hold so many; of one
    request at most three quarters of them, so that others find a free row. A recording is decoded
    while less than `max_decoded_bytes` of samples are held. `notice` is a warning of every answer.
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
        self._small, self._large = (
            ThreadPoolExecutor(1, name, set_threads, (1,)) for name in ("small", "large")
        )
        self._memory = {
            self._small: AudioMemory(max_decoded_bytes * SMALL_SHARE),
            self._large: AudioMemory(max_decoded_bytes * (1 - SMALL_SHARE)),
        }
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
        return sum(memory.held for memory in self._memory.values())

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
        pool, left = self._pool(request), Flag()
        diarizing: Future[Diarization | None] | None = None
        self.outstanding += 1
        try:
            known = await self._enrol(request, left)
            async with self._decoded(request) as audio:
                yield Decoded(audio.duration)
                diarizing = self._start_diarization(audio, request, left)
                start = self.handler.transcriber.start
                transcription = await _in(pool, start, audio.samples, request.options)
                async with aclosing(self._transcribe(transcription)) as events:
                    async for event in events:
                        if isinstance(event, Transcript):
                            transcript = event
                        else:
                            yield event
                diarization = await _speakers(diarizing, transcript)
                answer = self.handler.answer
                answered = _in(pool, answer, request, audio, transcript, diarization, known)
                yield Finished(self._with_notice(await answered))
        finally:
            left.set()
            if diarizing is not None:
                diarizing.cancel()  # while it waits it holds the samples
            self.outstanding -= 1

    def close(self) -> None:
        """End the threads; requests that still run fail."""
        self._loop.close()
        for pool in (self._small, self._large):
            pool.shutdown(cancel_futures=True)
        self._diarization.shutdown()

    def _with_notice(self, answer: Answer) -> Answer:
        if self.notice is None:
            return answer
        return replace(answer, warnings=(self.notice, *answer.warnings))

    def _decoded(self, request: TranscriptionRequest) -> AbstractAsyncContextManager[Audio]:
        """The audio of a request, which is held until the block ends."""
        pool = self._pool(request)
        return self._memory[pool].decoded(partial(_in, pool, self.handler.decode, request))

    def _pool(self, request: TranscriptionRequest) -> ThreadPoolExecutor:
        return self._large if len(request.inputs) > LARGE_BODY else self._small

    async def _enrol(self, request: TranscriptionRequest, left: Flag) -> KnownVoices:
        """The voices of the request's clips, embedded where recordings are diarized."""
        if not request.config.known_speakers:
            return NOBODY
        enrol = partial(_enrol, self.handler, request, left)
        work = partial(run_in_passing_thread, enrol, self.handler.threads)
        seconds = CLIP_SECONDS * len(request.config.known_speakers)
        return await asyncio.wrap_future(self._diarization.submit(seconds, work))

    def _start_diarization(
        self, audio: Audio, request: TranscriptionRequest, left: Flag
    ) -> Future[Diarization | None] | None:
        """Diarization, begun before speech is detected; it ends when the request has `left`."""
        diarizer = self.handler.diarizer
        if diarizer is None or not self.handler.diarizes(request.config):
            return None
        hints = speaker_hints(request.config)
        diarize = partial(_diarize, diarizer, audio.samples, hints, left)
        work = partial(run_in_passing_thread, diarize, self.handler.threads)
        return self._diarization.submit(audio.duration, work)

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
    diarizer: Diarizer, samples: NDArray[np.float32], hints: SpeakerHints, left: Flag
) -> Diarization | None:
    """None where the request has left meanwhile."""
    with endpoint_errors(), suppress(DiarizationCancelled):
        return None if left.is_set() else diarizer.diarize(samples, hints, left)
    return None


def _enrol(handler: EndpointHandler, request: TranscriptionRequest, left: Flag) -> KnownVoices:
    """Nobody where the request has left meanwhile."""
    with endpoint_errors(), suppress(DiarizationCancelled):
        return NOBODY if left.is_set() else handler.enrol(request, left)
    return NOBODY


async def _in(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> T:
    """What `work` returns in a thread of `pool`. Raises EndpointError."""
    return await asyncio.wrap_future(pool.submit(_guarded, work, *arguments))


def _guarded(work: Callable[..., T], *arguments: object) -> T:
    with endpoint_errors():
        return work(*arguments)
