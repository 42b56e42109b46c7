"""Runs requests, step by step and thread by thread, for the handler and the server.

One engine thread decodes the windows of all requests together, and one thread diarizes. A few
preparation threads, without OpenMP threads of their own, decode audio, find speech and assemble
answers. The event loop only waits. Every queue serves short recordings first, by seconds of audio
(`runtime.shortest_first`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

import torch

from config import InferenceConfig
from whosaid.answer.response import Answer
from whosaid.asr import EngineCounts, Progress, Recogniser, Transcriber
from whosaid.audio.decode import AudioLimits
from whosaid.call import GUESSED_BYTES_PER_SECOND, Call
from whosaid.diarization.diarizer import Diarizer
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.diarization.thread import DiarizationClient, DiarizationThread, SessionSpeakers
from whosaid.errors import Unsupported
from whosaid.payload.parameters import ReferenceClip
from whosaid.request import (
    Inputs,
    TranscriptionRequest,
    Upload,
    read_body,
    unused_wishes,
    wanted_speakers,
    wanted_transcription,
)
from whosaid.runtime.device import set_threads
from whosaid.runtime.errors import endpoint_errors
from whosaid.runtime.on_demand import OnDemand
from whosaid.runtime.shortest_first import Recording, ShortestFirst

# Processors for each preparation thread: the other processors compute.
PROCESSORS_PER_THREAD = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio is decoded; it is `duration` seconds long. If a long recording is still being
    decoded, this is `estimated`.
    """

    duration: float
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request."""

    answer: Answer


Event = Decoded | Progress | Finished


@dataclass
class Models:
    """The models that answer requests; `diarizer` is None if no diarization model is named."""

    recogniser: Recogniser
    diarizer: Diarizer | None

    @classmethod
    def load(
        cls,
        asr: Callable[[], Transcriber],
        diarization: Callable[[], Diarizer | None],
        threads: int,
        counts: EngineCounts,
    ) -> Self:
        """Load both in the engine's thread: OpenMP keeps threads for each calling thread."""
        recogniser = Recogniser(asr, threads, counts)
        try:
            return cls(recogniser, recogniser.run(diarization))
        except BaseException:
            recogniser.close()
            raise

    def close(self) -> None:
        self.recogniser.close()


class Endpoint:
    """Answers requests of many clients with one set of models.

    Everything that needs the models, from the validation of a request on, runs within `loaded`,
    unless `models` stay in memory. `limits` apply to each audio file, `max_decoded_bytes`
    (approximately) to the samples of all requests together. Diarization on `device` uses `threads`
    OpenMP threads; the number of preparation threads follows from `threads`.
    """

    def __init__(
        self,
        models: OnDemand[Models],
        limits: AudioLimits,
        device: torch.device,
        threads: int,
        max_decoded_bytes: float = inf,
    ) -> None:
        self._models, self.limits = models, limits
        self.counts = self.recogniser.counts  # since the start, of all engines
        self.outstanding = 0  # accepted requests that are not answered
        self.preparation = ShortestFirst(
            "preparation",
            max(1, threads // PROCESSORS_PER_THREAD),
            max_decoded_bytes,
            partial(set_threads, 1),
        )
        self.diarization = DiarizationThread(threads, device)
        # The engine's thread holds the models. It ends with an endpoint that nobody closed, too.
        weakref.finalize(self, _stop, models).atexit = False

    def loaded(self) -> AbstractAsyncContextManager[Models]:
        """Hold the models in memory during the block; load them first if they are not."""
        return self._models.use()

    @property
    def idle(self) -> bool:
        return self._models.loaded is None

    @property
    def alive(self) -> bool:
        """Return whether requests can be answered, perhaps after the models have loaded."""
        models = self._models.loaded
        return models is None or models.recogniser.alive

    @property
    def failure(self) -> BaseException | None:
        """Return the error that stopped the engine for good; None while requests are answered."""
        models = self._models.loaded
        return None if models is None else models.recogniser.failure

    @property
    def recogniser(self) -> Recogniser:
        return self.models.recogniser

    @property
    def diarizer(self) -> Diarizer | None:
        return self.models.diarizer

    @property
    def models(self) -> Models:
        models = self._models.loaded
        assert models is not None, "the caller is not within `loaded`"
        return models

    @property
    def held_audio_bytes(self) -> int:
        return self.preparation.held_bytes

    def close(self) -> None:
        """End the threads; requests that still run fail."""
        self._models.close()
        self.preparation.shutdown()
        self.diarization.shutdown()

    def parse(self, data: object, as_text: bool = False) -> TranscriptionRequest:
        """Check a request's body: a dict of `inputs` and `parameters`.

        `as_text` reads parameters as text from a query string or form. Raises InvalidRequest,
        InvalidParameter or Unsupported.
        """
        return self.request_of(*read_body(data, as_text))

    def request_of(
        self, inputs: Inputs, config: InferenceConfig, warnings: tuple[str, ...] = ()
    ) -> TranscriptionRequest:
        """Return the request with checked options; `warnings` go before its own warnings.

        Raises InvalidParameter or Unsupported.
        """
        can = None if self.diarizer is None else self.diarizer.capabilities
        speakers = wanted_speakers(config, can)
        wanted = wanted_transcription(config, by_speaker=config.separate or speakers is not None)
        options = self.recogniser.transcriber.validate(wanted)
        warnings += unused_wishes(config, can)
        return TranscriptionRequest(Upload(inputs), config, options, speakers, warnings)

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """Return the answer. Raises EndpointError. Cancelling the task frees the request's rows."""
        return await answer_of(self.stream(request))

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """Yield Decoded, any number of Progress, and Finished.

        Raises EndpointError. Closing the iterator frees the request's rows.
        """
        with self.call(request) as call:
            await call.enrol()
            yield Decoded(await call.decode(), not call.decoded)
            call.diarize()
            async for progress in call.recognise():
                yield progress
            await call.decode_overlaps()
            yield Finished(await call.attribute())

    @contextmanager
    def call(self, request: TranscriptionRequest) -> Iterator[Call]:
        """Yield the request's steps; the end of the block frees its rows, samples and turns."""
        self.outstanding += 1
        try:
            with ExitStack() as resources:
                yield Call(self, request, resources)
        finally:
            self.outstanding -= 1

    async def session_speakers(
        self, clips: Sequence[ReferenceClip], threshold: float | None
    ) -> SessionSpeakers:
        """Return the diarization of a live session, which names the speakers of `clips`.

        `threshold` is a request's `known_speaker_threshold`. Raises Unsupported without a diarizer,
        InvalidReference for an unusable clip, and the errors of `Diarizer.diarize`.
        """
        if self.diarizer is None:
            raise Unsupported("no diarization model is loaded", "speakers")
        can = self.diarizer.capabilities
        config = InferenceConfig(known_speakers=[*clips], known_speaker_threshold=threshold)
        client = DiarizationClient(self.diarization, self.diarizer)
        known = await self.enrol(client, config)
        # A stream has no voices: known speakers are named at the session's end.
        stream = self.diarizer.stream() if can.streams and not clips else None
        return SessionSpeakers(client, known, threshold, stream, unused_wishes(config, can))

    async def prepare(
        self, recording: Recording, steps: Coroutine[Any, None, T], decodes: bool = False
    ) -> T:
        """Run `steps` in a preparation thread and return their result. Raises EndpointError."""
        with endpoint_errors():
            return await asyncio.wrap_future(self.preparation.submit(recording, steps, decodes))

    async def enrol(self, speakers: DiarizationClient, config: InferenceConfig) -> KnownVoices:
        """Embed the voices of a request's reference clips.

        Returns the names without voices if the request is not diarized. Each clip queues as a
        recording of its own, so other requests run between two clips.
        """
        clips, find_speech = config.known_speakers, self.recogniser.transcriber.find_speech
        enrolment = speakers.enrolment(find_speech, self.limits, config.sampling_rate)
        if enrolment is None or not clips:
            return KnownVoices({clip.name: () for clip in clips})
        for clip in clips:
            if clip.voice is not None:
                enrolment.enrol_voice(clip.name, clip.voice)
                continue
            guess = len(clip.reference) / GUESSED_BYTES_PER_SECOND
            with self.preparation.recording(guess) as recording:
                samples = await self.prepare(recording, enrolment.decode(clip), decodes=True)
                await speakers.enrol(enrolment, recording, clip.name, samples)
        return enrolment.known


def _stop(models: OnDemand[Models]) -> None:
    if models.loaded is not None:
        models.loaded.recogniser.stop()


async def answer_of(events: AsyncGenerator[Event]) -> Answer:
    """Return the answer from a request's last event; close `events` in every case."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished):
                return event.answer
    raise AssertionError("a request ends with its answer")
