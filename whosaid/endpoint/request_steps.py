"""The steps of one request, from its audio to its answer."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from config import InferenceConfig
from whosaid.answer.attribution import attributed
from whosaid.answer.response import Answer
from whosaid.asr import EarlyStart, EngineJob, Prior, Recogniser, Transcribed, Transcription
from whosaid.audio.crosstalk import without_crosstalk
from whosaid.audio.decode import Audio, decode_files, decoding_steps, find_offset
from whosaid.audio.tracks import begin_at, decode_tracks
from whosaid.diarization.diarizer import Diarization
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.diarization.thread import DiarizationClient
from whosaid.endpoint.events import Diarized
from whosaid.endpoint.request import TranscriptionRequest
from whosaid.endpoint.workers import GUESSED_BYTES_PER_SECOND, Workers
from whosaid.errors import InvalidParameter
from whosaid.overlap import OverlapDecoder
from whosaid.runtime.errors import endpoint_errors
from whosaid.scheduling.shortest_first import in_one_step
from whosaid.scheduling.steps import give_way
from whosaid.transcript import Transcript

REPORT_SECONDS = 1.0


class RequestSteps:
    """The steps of one request, in the order of the methods.

    Raises EndpointError in each step. `resources` are the request's samples and its diarization.
    """

    def __init__(
        self, workers: Workers, request: TranscriptionRequest, resources: ExitStack
    ) -> None:
        self._workers, self._request, self._resources = workers, request, resources
        diarizer = None if request.speakers is None else workers.models.diarizer
        self._speakers = DiarizationClient(workers.diarization, diarizer)
        self._known = KnownVoices()
        self._transcripts: list[Transcript] = []
        self._turns: list[Diarization | None] = []
        self._early: EarlyStart | None = None
        resources.callback(self._speakers.leave)

    async def enrol(self) -> None:
        """Embed the reference clips of known speakers, before the request's audio is read."""
        self._recogniser.check_alive()
        self._known = await self._workers.enrol(self._speakers, self._request.config)

    @property
    def decoded(self) -> bool:
        return self._decoding.done()

    async def decode(self) -> float:
        """Decode the audio to float32 samples at 16 kHz; return its duration in seconds.

        For a long recording, return an estimate once recognition can begin; the rest is decoded
        meanwhile. Diarization begins with the decoded audio, or on a GPU with its beginning, if the
        request wants speakers.
        """
        guess = len(self._request.upload) / GUESSED_BYTES_PER_SECOND
        preparation = self._workers.preparation
        self._recording = self._resources.enter_context(preparation.recording(guess))
        begun = asyncio.get_running_loop().create_future()
        steps = self._workers.prepare(self._recording, self._decode(begun), decodes=True)
        self._decoding = asyncio.ensure_future(steps)
        self._resources.callback(self._decoding.cancel)
        await asyncio.wait((self._decoding, begun), return_when=asyncio.FIRST_COMPLETED)
        return (await self._decoding).duration if self.decoded else begun.result()

    async def recognise(self) -> AsyncGenerator[Transcribed]:
        """Transcribe every channel; yield the progress of all channels together."""
        transcriptions: Mapping[int | None, Transcription]
        if self._early is not None:
            transcriptions = {None: self._early.transcription}
        else:
            self._audio = await self._decoding
            transcriptions = await self._workers.prepare(self._recording, self._start())
        async with aclosing(_recognise(self._recogniser, transcriptions)) as events:
            async for event in events:
                if isinstance(event, Transcribed):
                    self._workers.preparation.resume(self._recording)
                    yield event
                else:
                    self._transcripts = event
        self._audio = await self._decoding

    async def find_speakers(self) -> AsyncGenerator[Diarized]:
        """Wait for the speaker turns; yield every second which share of the work is done."""
        waiting = self._speakers.found([each.speech for each in self._transcripts])
        finding = asyncio.ensure_future(waiting)
        self._resources.callback(finding.cancel)
        while not (await asyncio.wait((finding,), timeout=REPORT_SECONDS))[0]:
            yield Diarized(self._speakers.share)
        self._turns = await finding

    async def decode_overlaps(self) -> None:
        """Decode passages in which speakers talk at once again, for each speaker, if the request
        wants it, but not those of a client's text, which is one sequence of words.
        """
        options = self._request.options
        if self._request.config.overlap == "off" or options.text:
            return
        decoder = OverlapDecoder(
            self._recogniser, lambda steps: self._workers.prepare(self._recording, steps())
        )
        every = zip(self._transcripts, self._turns, self._audio.channels, strict=True)
        with endpoint_errors():
            self._transcripts = [
                transcript
                if found is None
                else await decoder.decode(transcript, found, samples, options)
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
        return await self._workers.prepare(self._recording, finish)

    async def _decode(self, begun: asyncio.Future[float]) -> Audio:
        """Decode the audio, without crosstalk in separate channels. Start a long recording's
        transcription meanwhile, and give `begun` the expected seconds. Raises ClientError.
        """
        try:
            audio = await self._decode_whole(begun)
            if self._request.speakers is not None:
                self._speakers.begin(self._recording, audio.channels, self._request.speakers)
            if self._early is not None:
                await self._early.hear(audio.samples, complete=True)
            return audio
        except Exception as error:
            if self._early is not None:
                self._early.fail(error)
            raise

    async def _decode_whole(self, begun: asyncio.Future[float]) -> Audio:
        config = self._request.config
        limits = self._workers.limits.less(config.reference_bytes)
        files = decode_files(self._request.upload.take(), limits)
        rate = config.sampling_rate
        tracks = len(files) > 1
        if tracks:
            audio = await decode_tracks(files, rate, limits)
        else:
            hear = None if config.separate else partial(self._hear, begun)
            audio = await decoding_steps(files.pop(), rate, limits, config.separate, hear)
        if not config.separate:
            return audio
        for name in ("channel_names", "channel_starts"):
            given, count = getattr(config, name), len(audio.channels)
            if given and len(given) != count:
                raise InvalidParameter(f"needs one for each channel; the audio has {count}", name)
        if config.channel_starts or tracks:
            audio = begin_at(audio, config.channel_starts or [0.0] * len(audio.channels), limits)
        return await without_crosstalk(audio)

    async def _hear(
        self, begun: asyncio.Future[float], samples: NDArray[np.float32], seconds: float
    ) -> bool:
        """Go on with the transcription while the audio is decoded. Return whether it has begun, as
        it may if the recording is long, and its first samples have no offset. On a CPU decoding
        pauses until the first text.
        """
        first = self._early is None
        if self._early is None:
            recogniser, options = self._recogniser, self._request.options
            prior, wake = self._prior(None), recogniser.wake
            early = recogniser.transcriber.start_early(options, seconds, wake, prior)
            if early is None or not early.due <= len(samples) < 2 * early.due:
                return False
            if find_offset(samples):
                return False
            self._early = early
        self._speakers.hear(self._recording, samples)
        if await self._early.hear(samples):
            self._recording.paused = first and self._early.on_cpu
            begun.get_loop().call_soon_threadsafe(
                lambda: None if begun.done() else begun.set_result(seconds)
            )
        return True

    @property
    def _recogniser(self) -> Recogniser:
        return self._workers.models.recogniser

    async def _start(self) -> dict[int | None, Transcription]:
        """Find speech and plan windows; return a Transcription by channel, None if mixed."""
        separate, options = self._request.config.separate, self._request.options
        started: dict[int | None, Transcription] = {}
        start = self._recogniser.transcriber.start
        for number, samples in enumerate(self._audio.channels):
            channel = number if separate else None
            started[channel] = await start(samples, options, prior=self._prior(channel))
            await give_way()
        return started

    def _prior(self, channel: int | None) -> Prior:
        journal = self._request.journal
        return Prior(journal=journal and journal(channel))

    def _finish(self, found: Sequence[Diarization | None]) -> Answer:
        config, audio = self._request.config, self._audio
        answer = attributed(audio.duration, self._transcripts, found, self._known, config)
        warnings = (*self._request.warnings, *audio.warnings, *answer.warnings)
        return replace(answer, warnings=warnings + _undrafted(config, self._transcripts))


def _undrafted(config: InferenceConfig, heard: Sequence[Transcript]) -> tuple[str, ...]:
    """Return a warning if requested drafts were never made because of measured costs."""
    told = any(text.startswith("assisted: ") for each in heard for text in each.warnings)
    decoded = any(each.stats.steps for each in heard)
    if not config.assisted or told or not decoded or any(each.stats.drafted for each in heard):
        return ()
    return ("assisted: measured costs do not show that drafts save time; decoded without them",)


async def _recognise(
    recogniser: Recogniser, transcriptions: Mapping[int | None, Transcription]
) -> AsyncGenerator[Transcribed | list[Transcript]]:
    """Yield the joint progress of all transcriptions by channel (None: mixed), and finally their
    transcripts in order. Raises EndpointError. Closing the iterator frees the rows.
    """
    loop = asyncio.get_running_loop()
    reports: asyncio.Queue[tuple[int | None, Transcribed | None]] = asyncio.Queue()

    def report(channel: int | None, progress: Transcribed | None) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(reports.put_nowait, (channel, progress))

    def end(channel: int | None, _: Future[Transcript]) -> None:
        report(channel, None)

    seconds = {channel: each.seconds for channel, each in transcriptions.items()}
    jobs: dict[int | None, EngineJob[Transcript]] = {}
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
                yield Transcribed(done, total, tuple(chunks))
        yield [job.result.result() for job in jobs.values()]
    finally:
        for job in jobs.values():
            job.cancel()
