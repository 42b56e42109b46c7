"""Runs requests, step by step and thread by thread, for the handler and the server.

One engine thread decodes the windows of all requests together, and one thread diarizes. A few
preparation threads, without OpenMP threads of their own, decode audio, find speech and assemble
answers. The event loop only waits. Every queue serves short recordings first, by seconds of audio
(`runtime.shortest_first`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from config import InferenceConfig
from whosaid.answer.attribution import attributed
from whosaid.answer.response import Answer
from whosaid.asr import (
    EarlyStart,
    EngineCounts,
    Job,
    Progress,
    Recogniser,
    Transcriber,
    Transcription,
)
from whosaid.audio.crosstalk import without_crosstalk
from whosaid.audio.decode import (
    Audio,
    AudioLimits,
    DecodingStep,
    decode_base64,
    decoding_steps,
    find_offset,
)
from whosaid.diarization.diarizer import Diarization, Diarizer
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.diarization.thread import DiarizationClient, DiarizationThread, SessionSpeakers
from whosaid.errors import InvalidParameter, Unsupported
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
from whosaid.runtime.shortest_first import Recording, ShortestFirst, in_one_step
from whosaid.runtime.steps import give_way
from whosaid.transcript import Transcript

# An unopened file counts as 16-bit samples at 16 kHz: the first step, which opens it, is short.
GUESSED_BYTES_PER_SECOND = 32_000
# Processors for each preparation thread: the other processors compute.
PROCESSORS_PER_THREAD = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio is decoded; it is `duration` seconds long."""

    duration: float


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
        """Return whether the models are not in memory."""
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
            yield Decoded(await call.decode())
            call.diarize()
            async for progress in call.recognise():
                yield progress
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
        stream = self.diarizer.stream() if can.streams else None
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
            return KnownVoices(tuple(dict.fromkeys(clip.name for clip in clips)))
        for clip in clips:
            if clip.voice is not None:
                enrolment.enrol_voice(clip.name, clip.voice)
                continue
            guess = len(clip.reference) / GUESSED_BYTES_PER_SECOND
            with self.preparation.recording(guess) as recording:
                samples = await self.prepare(recording, enrolment.decode(clip), decodes=True)
                await speakers.enrol(enrolment, recording, clip.name, samples)
        return enrolment.known


class Call:
    """The steps of one request, in the order of `Endpoint.stream`.

    Raises EndpointError in each step. `resources` are the request's samples and its diarization.
    """

    def __init__(
        self, endpoint: Endpoint, request: TranscriptionRequest, resources: ExitStack
    ) -> None:
        self._endpoint, self._request, self._resources = endpoint, request, resources
        diarizer = None if request.speakers is None else endpoint.diarizer
        self._speakers = DiarizationClient(endpoint.diarization, diarizer)
        self._known = KnownVoices(())
        self._transcripts: list[Transcript] = []
        self._early: EarlyStart | None = None
        resources.callback(self._speakers.leave)

    async def enrol(self) -> None:
        """Embed the reference clips of known speakers, before the request's audio is read."""
        self._endpoint.recogniser.check_alive()
        self._known = await self._endpoint.enrol(self._speakers, self._request.config)

    async def decode(self) -> float:
        """Decode the audio to float32 samples at 16 kHz; return its duration in seconds.

        Of a long recording, return the expected duration once recognition can begin; the rest is
        decoded meanwhile.
        """
        guess = len(self._request.upload) / GUESSED_BYTES_PER_SECOND
        preparation = self._endpoint.preparation
        self._recording = self._resources.enter_context(preparation.recording(guess))
        begun = asyncio.get_running_loop().create_future()
        steps = self._endpoint.prepare(self._recording, self._decode(begun), decodes=True)
        self._decoding = asyncio.ensure_future(steps)
        self._resources.callback(self._decoding.cancel)
        await asyncio.wait((self._decoding, begun), return_when=asyncio.FIRST_COMPLETED)
        return begun.result() if begun.done() else (await self._decoding).duration

    def diarize(self) -> None:
        """Start diarization once the audio is decoded, if the request wants speakers."""
        hints = self._request.speakers

        def begin(decoding: asyncio.Future[Audio]) -> None:
            if hints is not None and not (decoding.cancelled() or decoding.exception()):
                self._speakers.begin(self._recording, decoding.result().channels, hints)

        if self._decoding.done():
            begin(self._decoding)
        else:
            self._decoding.add_done_callback(begin)

    async def recognise(self) -> AsyncGenerator[Progress]:
        """Transcribe every channel; yield the progress of all channels together."""
        endpoint = self._endpoint
        transcriptions: Mapping[int | None, Transcription]
        if self._early is not None:
            transcriptions = {None: self._early.transcription}
        else:
            self._audio = await self._decoding
            transcriptions = await endpoint.prepare(self._recording, self._start())
        async with aclosing(_recognise(endpoint.recogniser, transcriptions)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    yield event
                else:
                    self._transcripts = event
        self._audio = await self._decoding

    async def attribute(self) -> Answer:
        """Wait for the speaker turns, assign every word to a speaker, and return the answer."""
        speech = [each.speech for each in self._transcripts]
        found = await self._speakers.found(speech)
        if self._request.config.voices:
            channels = zip(self._audio.channels, found, speech, strict=True)
            found = await self._speakers.with_voices(self._recording, channels)
        finish = in_one_step(partial(self._finish, found))
        return await self._endpoint.prepare(self._recording, finish)

    async def _decode(self, begun: asyncio.Future[float]) -> Audio:
        """Decode the audio, without crosstalk if its channels are transcribed separately.

        Start the transcription of a long recording meanwhile, and give `begun` the seconds that are
        expected. Raises InvalidAudio, AudioTooLong, InvalidParameter.
        """
        try:
            audio = await self._decode_whole(begun)
            if self._early is not None:
                await self._early.hear(audio.samples, complete=True)
            return audio
        except Exception as error:
            if self._early is not None:
                self._early.fail(error)
            raise

    async def _decode_whole(self, begun: asyncio.Future[float]) -> Audio:
        config = self._request.config
        limits = self._endpoint.limits.less(config.reference_bytes)
        audio = await decoding_steps(
            decode_base64(self._request.upload.take(), limits),
            config.sampling_rate,
            limits,
            config.separate,
            None if config.separate else partial(self._hear, begun),
        )
        await give_way(DecodingStep(audio.seconds, audio.seconds))
        if not config.separate:
            return audio
        if config.channel_names and len(config.channel_names) != len(audio.channels):
            count = len(audio.channels)
            raise InvalidParameter(f"should be as many as the audio's {count}", "channel_names")
        return await without_crosstalk(audio)

    async def _hear(
        self, begun: asyncio.Future[float], samples: NDArray[np.float32], seconds: float
    ) -> bool:
        """Go on with the transcription while the audio is decoded. Return whether it has begun: it
        may if the recording is long, and if its first samples have no offset.
        """
        if self._early is None:
            recogniser, options = self._endpoint.recogniser, self._request.options
            early = recogniser.transcriber.start_early(options, seconds, recogniser.wake)
            if early is None or not early.due <= len(samples) < 2 * early.due:
                return False
            if find_offset(samples):
                return False
            self._early = early
        if await self._early.hear(samples):
            begun.get_loop().call_soon_threadsafe(
                lambda: None if begun.done() else begun.set_result(seconds)
            )
        return True

    async def _start(self) -> dict[int | None, Transcription]:
        """Find speech and plan windows; return a Transcription by channel, None if mixed."""
        separate, options = self._request.config.separate, self._request.options
        started: dict[int | None, Transcription] = {}
        for channel, samples in enumerate(self._audio.channels):
            transcriber = self._endpoint.recogniser.transcriber
            started[channel if separate else None] = await transcriber.start(samples, options)
            await give_way()
        return started

    def _finish(self, found: Sequence[Diarization | None]) -> Answer:
        config, audio = self._request.config, self._audio
        answer = attributed(audio.duration, self._transcripts, found, self._known, config)
        warnings = (*self._request.warnings, *audio.warnings, *answer.warnings)
        return replace(answer, warnings=warnings + _undrafted(config, self._transcripts))


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


def _undrafted(config: InferenceConfig, heard: Sequence[Transcript]) -> tuple[str, ...]:
    """Return a warning if requested drafts were never made because of measured costs.

    Transcripts have warnings with every other reason.
    """
    told = any(text.startswith("assisted: ") for each in heard for text in each.warnings)
    decoded = any(each.stats.steps for each in heard)
    if not config.assisted or told or not decoded or any(each.stats.drafted for each in heard):
        return ()
    return ("assisted: measured costs do not show that drafts save time; decoded without them",)


async def _recognise(
    recogniser: Recogniser, transcriptions: Mapping[int | None, Transcription]
) -> AsyncGenerator[Progress | list[Transcript]]:
    """Yield the joint progress of all transcriptions, and finally their transcripts in order.

    The keys are channels, None if channels are mixed. Raises EndpointError. Closing the iterator
    frees the rows.
    """
    loop = asyncio.get_running_loop()
    reports: asyncio.Queue[tuple[int | None, Progress | None]] = asyncio.Queue()

    def report(channel: int | None, progress: Progress | None) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(reports.put_nowait, (channel, progress))

    def end(channel: int | None, _: Future[Transcript]) -> None:
        report(channel, None)

    seconds = {channel: each.seconds for channel, each in transcriptions.items()}
    jobs: dict[int | None, Job[Transcript]] = {}
    try:
        for channel, transcription in transcriptions.items():
            jobs[channel] = recogniser.submit(transcription, partial(report, channel))
            jobs[channel].result.add_done_callback(partial(end, channel))
        left = len(jobs)
        while left:
            channel, progress = await reports.get()
            if progress is None:
                with endpoint_errors():
                    jobs[channel].result.result()
                left -= 1
            else:
                seconds[channel] = progress.done, progress.total
                done, total = map(sum, zip(*seconds.values(), strict=True))
                chunks = [replace(chunk, channel=channel) for chunk in progress.chunks]
                yield Progress(done, total, tuple(chunks))
        yield [job.result.result() for job in jobs.values()]
    finally:
        for job in jobs.values():
            job.cancel()
