"""The endpoint: one path of a request, for the handler, the server and archives alike.

A request is parsed, the clips of known speakers are enrolled, its audio is decoded, speech is
recognised while somebody else finds out who speaks when, words are given to speakers. Whatever
computes runs in few threads: the recogniser's for all requests at once, one for diarization, in
which shorter recordings go between two batches of a longer one, and few that prepare: they read
audio, find speech and put answers together, without threads beneath them. The event loop only
waits. Everywhere short recordings go first, by seconds of audio (`runtime.shortest_first`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, TypeVar

import torch

from answer.attribution import attributed
from answer.response import Answer, response
from asr import Job, Progress, Recogniser, Transcription
from audio.crosstalk import without_crosstalk
from audio.decode import Audio, AudioLimits, DecodingStep, decode_base64, decoding_steps
from config import InferenceConfig
from diarization.diarizer import Diarization, Diarizer
from diarization.known_speakers import KnownVoices
from diarization.session_speakers import SessionSpeakers
from diarization.thread import DiarizationClient, DiarizationThread
from errors import EndpointError, InvalidParameter, Unsupported
from payload.reference_clips import ReferenceClip
from runtime.error_edge import end_process, endpoint_errors
from runtime.openmp import set_threads
from runtime.shortest_first import Recording, ShortestFirst, in_one_step
from runtime.steps import give_way
from transcript import Transcript
from transcription_request import (
    Inputs,
    TranscriptionRequest,
    Upload,
    read_body,
    unused_wishes,
    wanted_speakers,
    wanted_transcription,
)

logger = logging.getLogger("endpoint")

# Until a file is opened it is taken for 16-bit samples at 16 kHz: the first look at it is short.
GUESSED_BYTES_PER_SECOND = 32_000
# Processors to each thread that prepares: the others compute.
PROCESSORS_PER_THREAD = 4

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


class Endpoint:
    """Answers requests of many clients with one set of models.

    `limits` are those of one audio file; about `max_decoded_bytes` of samples are held. What
    computes on `device` has `threads` threads beneath it.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        diarizer: Diarizer | None,
        limits: AudioLimits,
        device: torch.device,
        threads: int,
        max_decoded_bytes: float = inf,
    ) -> None:
        self.recogniser, self.diarizer, self.limits = recogniser, diarizer, limits
        self.outstanding = 0  # accepted requests that are not answered
        self._preparation = ShortestFirst(
            "preparation",
            max(1, threads // PROCESSORS_PER_THREAD),
            max_decoded_bytes,
            partial(set_threads, 1),
        )
        self._diarization = DiarizationThread(threads, device)

    @property
    def held_audio_bytes(self) -> int:
        """How much decoded audio there is."""
        return self._preparation.held_bytes

    def close(self) -> None:
        """End the threads; requests that still run fail."""
        self.recogniser.close()
        self._preparation.shutdown()
        self._diarization.shutdown()

    async def respond(self, data: object) -> dict[str, Any]:
        """Answer a request's body, a dict of `inputs` and `parameters`, with plain values.

        Raises ClientError, or ServerError, and nothing else. Ends the process where nothing will be
        recognised any more; `server.lifecycle` does it where there are more clients to be told.
        """
        started = time.perf_counter()
        try:
            with endpoint_errors():
                request = await asyncio.to_thread(self.parse, data)
                answer = await self.answer(request)
                seconds = time.perf_counter() - started
                logger.info("%.1f s of audio answered in %.2f s", answer.duration, seconds)
                return await asyncio.to_thread(response, answer, request.config)
        except EndpointError:
            if self.recogniser.failure is not None:
                end_process("speech recognition has stopped")
            raise

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """The answer to a request. Raises EndpointError; cancelling the task frees its rows."""
        return await answer_of(self.stream(request))

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """What becomes of a request: Decoded, any number of Progress, and Finished.

        Raises EndpointError; closing the iterator frees its rows.
        """
        self.outstanding += 1
        diarizer = None if request.speakers is None else self.diarizer
        speakers = DiarizationClient(self._diarization, diarizer)
        try:
            self.recogniser.check_alive()
            known = await self._enrol(speakers, request.config)
            guess = len(request.upload) / GUESSED_BYTES_PER_SECOND
            with self._preparation.recording(guess) as recording:
                audio = await self._prepare(recording, self._decode(request), decodes=True)
                yield Decoded(audio.duration)
                if request.speakers is not None:
                    speakers.begin(recording, audio.channels, request.speakers)
                transcriptions = await self._prepare(recording, self._start(audio, request))
                heard: list[Transcript] = []
                async with aclosing(_recognise(self.recogniser, transcriptions)) as events:
                    async for event in events:
                        if isinstance(event, Progress):
                            yield event
                        else:
                            heard = event
                found = await speakers.found([each.speech for each in heard])
                finish = partial(self._finish, request, audio, heard, found, known)
                yield Finished(await self._prepare(recording, in_one_step(finish)))
        finally:
            speakers.leave()
            self.outstanding -= 1

    async def session_speakers(
        self, clips: Sequence[ReferenceClip], threshold: float | None
    ) -> SessionSpeakers:
        """Finds who speaks in a live session, those heard in `clips` by name; `threshold` is as a
        request's `known_speaker_threshold`.

        Raises Unsupported without a diarizer, InvalidReference for a clip that is no use, and what
        `Diarizer.diarize` raises.
        """
        if self.diarizer is None:
            raise Unsupported("speakers: no diarization model is loaded")
        can = self.diarizer.capabilities
        config = InferenceConfig(known_speakers=[*clips], known_speaker_threshold=threshold)
        client = DiarizationClient(self._diarization, self.diarizer)
        known = await self._enrol(client, config)
        stream = self.diarizer.stream() if can.streams else None
        return SessionSpeakers(client, known, threshold, stream, unused_wishes(config, can))

    # The steps

    def parse(self, data: object, as_text: bool = False) -> TranscriptionRequest:
        """Check a request's body: a dict of `inputs` and `parameters`.

        `as_text` reads parameters as those of a query string or form. Raises InvalidRequest,
        InvalidParameter, or Unsupported.
        """
        return self.request_of(*read_body(data, as_text))

    def request_of(
        self, inputs: Inputs, config: InferenceConfig, warnings: tuple[str, ...] = ()
    ) -> TranscriptionRequest:
        """The request for a recording with these parameters, and `warnings` of others.

        Raises InvalidParameter, or Unsupported.
        """
        can = None if self.diarizer is None else self.diarizer.capabilities
        speakers = wanted_speakers(config, can)
        wanted = wanted_transcription(config, by_speaker=config.separate or speakers is not None)
        options = self.recogniser.transcriber.validate(wanted)
        warnings += unused_wishes(config, can)
        return TranscriptionRequest(Upload(inputs), config, options, speakers, warnings)

    async def _enrol(self, speakers: DiarizationClient, config: InferenceConfig) -> KnownVoices:
        """The voices of a request's clips, before its audio is touched; their names alone where
        nobody hears them. Each is a recording of its own: others have their turn between two.
        """
        clips, find_speech = config.known_speakers, self.recogniser.transcriber.find_speech
        enrolment = speakers.enrolment(find_speech, self.limits, config.sampling_rate)
        if enrolment is None or not clips:
            return KnownVoices(tuple(dict.fromkeys(clip.name for clip in clips)))
        for clip in clips:
            guess = len(clip.reference) / GUESSED_BYTES_PER_SECOND
            with self._preparation.recording(guess) as recording:
                samples = await self._prepare(recording, enrolment.decode(clip), decodes=True)
                await speakers.hear(enrolment, recording, clip.name, samples)
        return enrolment.known

    async def _decode(self, request: TranscriptionRequest) -> Audio:
        """The audio, all of which counts as held in the end; clips leave fewer bytes. Of channels
        that are heard apart each has its own speech alone.

        Raises InvalidAudio, AudioTooLong, InvalidParameter.
        """
        config = request.config
        limits = self.limits.less(config.reference_bytes)
        audio = await decoding_steps(
            decode_base64(request.upload.take(), limits),
            config.sampling_rate,
            limits,
            config.separate,
        )
        await give_way(DecodingStep(audio.seconds, audio.seconds))
        if not config.separate:
            return audio
        if config.channel_names and len(config.channel_names) != len(audio.channels):
            count = len(audio.channels)
            raise InvalidParameter(f"channel_names: should be as many as the audio's {count}")
        return await without_crosstalk(audio)

    async def _start(
        self, audio: Audio, request: TranscriptionRequest
    ) -> dict[int | None, Transcription]:
        """Find speech. Return a transcription of each channel, or of None if channels are mixed."""
        started: dict[int | None, Transcription] = {}
        for channel, samples in enumerate(audio.channels):
            key = channel if request.config.separate else None
            started[key] = await self.recogniser.transcriber.start(samples, request.options)
            await give_way()
        return started

    def _finish(
        self,
        request: TranscriptionRequest,
        audio: Audio,
        heard: Sequence[Transcript],
        found: Sequence[Diarization | None],
        known: KnownVoices,
    ) -> Answer:
        """What was found on all channels, and every warning."""
        answer = attributed(audio.duration, heard, found, known, request.config)
        warnings = (*request.warnings, *audio.warnings, *answer.warnings)
        return replace(answer, warnings=warnings + _undrafted(request.config, heard))

    async def _prepare(
        self, recording: Recording, steps: Coroutine[Any, None, T], decodes: bool = False
    ) -> T:
        """Return what `steps` return in a thread that prepares. Raises EndpointError."""
        with endpoint_errors():
            return await asyncio.wrap_future(self._preparation.submit(recording, steps, decodes))


async def answer_of(events: AsyncGenerator[Event]) -> Answer:
    """The answer that a request's events end with; however it ends, they are closed."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished):
                return event.answer
    raise AssertionError("a request ends with its answer")


def _undrafted(config: InferenceConfig, heard: Sequence[Transcript]) -> tuple[str, ...]:
    """Warn if a request for drafts got none and no transcript says why: costs are the reason."""
    told = any(text.startswith("assisted: ") for each in heard for text in each.warnings)
    decoded = any(each.stats.steps for each in heard)
    if not config.assisted or told or not decoded or any(each.stats.drafted for each in heard):
        return ()
    return ("assisted: measured costs do not show that drafts save time; decoded without them",)


async def _recognise(
    recogniser: Recogniser, transcriptions: Mapping[int | None, Transcription]
) -> AsyncGenerator[Progress | list[Transcript]]:
    """Yield the progress of all transcriptions together, by channel, None if channels are mixed;
    at last their transcripts in order.

    Raises EndpointError; closing the iterator frees the rows.
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
