"""The steps of one request, from its audio to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from config import InferenceConfig
from whosaid.answer.attribution import attributed
from whosaid.answer.response import Answer
from whosaid.asr import (
    EarlyStart,
    Job,
    Progress,
    Recogniser,
    Transcriber,
    Transcription,
)
from whosaid.audio.crosstalk import without_crosstalk
from whosaid.audio.decode import Audio, decode_base64, decoding_steps, find_offset
from whosaid.diarization.diarizer import Diarization, SpeakerHints
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.diarization.thread import DiarizationClient
from whosaid.errors import InvalidParameter
from whosaid.overlap import OverlapDecoder
from whosaid.request import TranscriptionRequest
from whosaid.runtime.errors import endpoint_errors
from whosaid.runtime.shortest_first import in_one_step
from whosaid.runtime.steps import give_way
from whosaid.transcript import Transcript

if TYPE_CHECKING:
    from whosaid.endpoint import Endpoint

# An unopened file counts as 16-bit samples at 16 kHz: the first step, which opens it, is short.
GUESSED_BYTES_PER_SECOND = 32_000


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
        self._known = KnownVoices()
        self._transcripts: list[Transcript] = []
        self._turns: list[Diarization | None] = []
        self._early: EarlyStart | None = None
        self._hints: SpeakerHints | None = None  # of the diarization that is to begin
        resources.callback(self._speakers.leave)

    async def enrol(self) -> None:
        """Embed the reference clips of known speakers, before the request's audio is read."""
        self._endpoint.recogniser.check_alive()
        self._known = await self._endpoint.enrol(self._speakers, self._request.config)

    @property
    def decoded(self) -> bool:
        return self._decoding.done()

    async def decode(self) -> float:
        """Decode the audio to float32 samples at 16 kHz; return its duration in seconds.

        For a long recording, return an estimate once recognition can begin; the rest is decoded
        meanwhile.
        """
        guess = len(self._request.upload) / GUESSED_BYTES_PER_SECOND
        preparation = self._endpoint.preparation
        self._recording = self._resources.enter_context(preparation.recording(guess))
        begun = asyncio.get_running_loop().create_future()
        steps = self._endpoint.prepare(self._recording, self._decode(begun), decodes=True)
        self._decoding = asyncio.ensure_future(steps)
        self._resources.callback(self._decoding.cancel)
        await asyncio.wait((self._decoding, begun), return_when=asyncio.FIRST_COMPLETED)
        return (await self._decoding).duration if self.decoded else begun.result()

    def diarize(self) -> None:
        """Start diarization once the audio is decoded, if the request wants speakers."""
        self._hints = self._request.speakers
        if self.decoded:
            self._begin_diarization(self._decoding)
        else:
            self._decoding.add_done_callback(self._begin_diarization)

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
                    endpoint.preparation.resume(self._recording)
                    yield event
                else:
                    self._transcripts = event
        self._audio = await self._decoding
        self._begin_diarization(self._decoding)  # the callback may still be waiting

    async def decode_overlaps(self) -> None:
        """Wait for the speaker turns. Decode windows in which speakers talk at once again, once for
        each speaker, if the request wants it.

        A client's text is one sequence of words, so its windows stay as they are.
        """
        self._turns = await self._speakers.found([each.speech for each in self._transcripts])
        options = self._request.options
        if self._request.config.overlap == "off" or options.text:
            return
        decoder = OverlapDecoder(
            self._endpoint.recogniser,
            lambda steps: self._endpoint.prepare(self._recording, steps()),
        )
        every = zip(self._transcripts, self._turns, self._audio.channels, strict=True)
        with endpoint_errors():
            self._transcripts = [
                transcript
                if found is None
                else await decoder.decode(transcript, found.turns, samples, options)
                for transcript, found, samples in every
            ]

    async def attribute(self) -> Answer:
        """Assign every word to a speaker, and return the answer."""
        found = self._turns
        if self._request.config.voices:
            speech = [each.speech for each in self._transcripts]
            channels = zip(self._audio.channels, found, speech, strict=True)
            found = await self._speakers.with_voices(self._recording, channels)
        finish = in_one_step(partial(self._finish, found))
        return await self._endpoint.prepare(self._recording, finish)

    def _begin_diarization(self, decoding: asyncio.Future[Audio]) -> None:
        hints, self._hints = self._hints, None
        if hints is not None and not (decoding.cancelled() or decoding.exception()):
            self._speakers.begin(self._recording, decoding.result().channels, hints)

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

        On a CPU decoding pauses until the first text, because it takes processors from recognition.
        """
        first = self._early is None
        if self._early is None:
            recogniser, options = self._endpoint.recogniser, self._request.options
            early = recogniser.transcriber.start_early(options, seconds, recogniser.wake)
            if early is None or not early.due <= len(samples) < 2 * early.due:
                return False
            if find_offset(samples):
                return False
            self._early = early
        if await self._early.hear(samples):
            self._recording.paused = first and self._early.on_cpu
            begun.get_loop().call_soon_threadsafe(
                lambda: None if begun.done() else begun.set_result(seconds)
            )
        return True

    @property
    def _transcriber(self) -> Transcriber:
        return self._endpoint.recogniser.transcriber

    async def _start(self) -> dict[int | None, Transcription]:
        """Find speech and plan windows; return a Transcription by channel, None if mixed."""
        separate, options = self._request.config.separate, self._request.options
        started: dict[int | None, Transcription] = {}
        for channel, samples in enumerate(self._audio.channels):
            transcription = await self._transcriber.start(samples, options)
            started[channel if separate else None] = transcription
            await give_way()
        return started

    def _finish(self, found: Sequence[Diarization | None]) -> Answer:
        config, audio = self._request.config, self._audio
        answer = attributed(audio.duration, self._transcripts, found, self._known, config)
        warnings = (*self._request.warnings, *audio.warnings, *answer.warnings)
        return replace(answer, warnings=warnings + _undrafted(config, self._transcripts))


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
