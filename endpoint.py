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
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import inf
from threading import Event as Flag
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from answer.channels import joined
from answer.response import Answer, response
from asr import (
    DecodeOptions,
    Job,
    Progress,
    Recogniser,
    Transcription,
    TranscriptionOptions,
    VadOptions,
    with_thresholds,
)
from audio.crosstalk import silence_crosstalk
from audio.decode import Audio, AudioLimits, DecodingStep, decode_base64, decoding_steps
from config import InferenceConfig, ignored_names
from diarization.diarizer import (
    Diarization,
    DiarizationCancelled,
    DiarizationStream,
    Diarizer,
    Span,
    SpeakerHints,
)
from diarization.enrolment import Enrolment
from diarization.known_speakers import NOBODY, KnownVoices, Naming, name_speakers
from diarization_utils import attribute, segment_per_chunk, speaker_segments
from errors import EndpointError, InvalidParameter, InvalidRequest, Unsupported
from payload.base64_text import Base64Text
from payload.reference_clips import ReferenceClip
from runtime.error_edge import end_process, endpoint_errors
from runtime.openmp import compute_beside, set_threads
from runtime.shortest_first import Recording, ShortestFirst, Steps, in_one_step
from timebase import SAMPLE_RATE
from transcript import Transcript

logger = logging.getLogger("endpoint")

BODY_KEYS = ("inputs", "parameters")
# Of a body, and of its parameters; those that nobody knows are ignored.
MOST_NAMES = 100
# Outputs that are made of words, and those that tell times and segments.
BY_WORD = {"srt", "vtt"}
TIMED = BY_WORD | {"tsv", "txt"}
# Until a file is opened it is taken for 16-bit samples at 16 kHz: the first look at it is short.
GUESSED_BYTES_PER_SECOND = 32_000
# Processors to each thread that prepares: the others compute.
PROCESSORS_PER_THREAD = 4
CLIP_SECONDS = 3.0  # about the length of a clip of a known speaker

T = TypeVar("T")
Inputs = str | Base64Text | bytes


class TranscriptionRequest(NamedTuple):
    """One request, checked: the audio file as it came, its parameters, what speech recognition is
    asked for, what is known of its speakers (None where they are not looked for), and a warning of
    everything in it that is ignored.
    """

    inputs: Inputs
    config: InferenceConfig
    options: TranscriptionOptions
    speakers: SpeakerHints | None = None
    warnings: tuple[str, ...] = ()


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
    computes on `device` has `threads` threads beneath it. `notice` is a warning of every answer.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        diarizer: Diarizer | None,
        limits: AudioLimits,
        device: torch.device,
        threads: int,
        max_decoded_bytes: float = inf,
        notice: str | None = None,
    ) -> None:
        self.recogniser, self.diarizer, self.limits = recogniser, diarizer, limits
        self.notice = notice
        self.outstanding = 0  # accepted requests that are not answered
        self._device, self._threads = device, threads
        self._preparation = ShortestFirst(
            "preparation",
            max(1, threads // PROCESSORS_PER_THREAD),
            max_decoded_bytes,
            partial(set_threads, 1),
        )
        self._diarization = ShortestFirst("diarization")

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
            if self.recogniser.failed:
                end_process("speech recognition has stopped")
            raise

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """The answer to a request. Raises EndpointError; cancelling the task frees its rows."""
        return await answer_of(self.stream(request))

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """What becomes of a request: Decoded, any number of Progress, and Finished.

        Raises EndpointError; closing the iterator frees its rows.
        """
        left = Flag()
        diarizing: list[Future[Diarization | None]] = []  # one a channel, or none
        self.outstanding += 1
        try:
            self.recogniser.check_alive()
            diarizer = None if request.speakers is None else self.diarizer
            known = await self._enrol(request.config, diarizer, left)
            guess = len(request.inputs) / GUESSED_BYTES_PER_SECOND
            with self._preparation.recording(guess) as recording:
                audio = await self._prepare(recording, self._decode(request), decodes=True)
                yield Decoded(audio.duration)
                if request.speakers is not None:
                    diarizing += [
                        self._start_diarization(recording, samples, request.speakers, left)
                        for samples in audio.channels
                    ]
                starting = self._starting_steps(audio, request.options)
                transcriptions = await self._prepare(recording, starting)
                heard: list[Transcript] = []
                async with aclosing(self._recognise(transcriptions, request.config)) as events:
                    async for event in events:
                        if isinstance(event, Progress):
                            yield event
                        else:
                            heard.append(event)
                spoken = [
                    (transcript, await _speakers(each, transcript.speech))
                    for transcript, each in zip_longest(heard, diarizing)
                ]
                finish = partial(self._finish, request, audio, spoken, known)
                yield Finished(await self._prepare(recording, in_one_step(finish)))
        finally:
            left.set()
            for each in diarizing:
                each.cancel()  # while it waits it holds the samples
            self.outstanding -= 1

    async def session_speakers(self, clips: Sequence[ReferenceClip]) -> SessionSpeakers:
        """Finds who speaks in a live session, those heard in `clips` by name.

        Raises Unsupported without a diarizer, InvalidReference for a clip that is no use, and what
        `Diarizer.diarize` raises.
        """
        if self.diarizer is None:
            raise Unsupported("speakers: no diarization model is loaded")
        config, left = InferenceConfig(known_speakers=[*clips]), Flag()
        try:
            known = await self._enrol(config, self.diarizer, left)
        except asyncio.CancelledError:
            left.set()
            raise
        can_stream = self.diarizer.capabilities.streams
        stream = self.diarizer.stream() if can_stream else None
        return SessionSpeakers(self, known, stream, self._unused(config), left)

    # The steps

    def parse(self, data: object, as_text: bool = False) -> TranscriptionRequest:
        """Check a request's body: a dict of `inputs` and `parameters`.

        `as_text` reads parameters as those of a query string or form. Raises InvalidRequest,
        InvalidParameter, or Unsupported.
        """
        return self.request_of(*_read_body(data, as_text))

    def request_of(
        self, inputs: Inputs, config: InferenceConfig, warnings: tuple[str, ...] = ()
    ) -> TranscriptionRequest:
        """The request for a recording with these parameters, and `warnings` of others.

        Raises InvalidParameter, or Unsupported.
        """
        speakers = None
        if config.tells_voices_apart and self.diarizer is not None:
            takes_hints = self.diarizer.capabilities.hints
            speakers = speaker_hints(config) if takes_hints else SpeakerHints()
        warnings += self._unused(config)
        by_speaker = config.separate or speakers is not None
        options = self.recogniser.validate(_options(config, by_speaker))
        return TranscriptionRequest(inputs, config, options, speakers, warnings)

    async def _enrol(
        self, config: InferenceConfig, diarizer: Diarizer | None, left: Flag
    ) -> KnownVoices:
        """The voices of a request's clips, before its audio is touched; their names alone where
        there is no diarizer for it or one without voices. Raises InvalidReference, or what
        `Diarizer.diarize` raises.
        """
        if not config.known_speakers:
            return NOBODY
        enrolment = Enrolment(
            diarizer if diarizer and diarizer.capabilities.voices else None,
            self.recogniser.find_speech,
            self.limits,
            config.sampling_rate,
        )

        def enrol() -> KnownVoices:
            with endpoint_errors(), suppress(DiarizationCancelled):
                return NOBODY if left.is_set() else enrolment.enrol(config.known_speakers, left)
            return NOBODY

        seconds = CLIP_SECONDS * len(config.known_speakers)
        return await asyncio.wrap_future(self._beside(Recording(seconds), enrol))

    def _decode(self, request: TranscriptionRequest) -> Steps[Audio]:
        """The audio, all of which counts as held in the end; clips leave fewer bytes. Of channels
        that are heard apart each has its own speech alone.

        Raises InvalidAudio, AudioTooLong, InvalidParameter.
        """
        config = request.config
        limits = self.limits.less(config.reference_bytes)
        data = decode_base64(request.inputs, limits)
        audio = yield from decoding_steps(data, config.sampling_rate, limits, config.separate)
        yield DecodingStep(audio.seconds, audio.seconds)
        if not config.separate:
            return audio
        _check_channel_names(config.channel_names, len(audio.channels))
        warnings = yield from silence_crosstalk(audio.channels)
        if len(audio.channels) == 1:
            warnings = ("channels: the audio has one, which is heard as it is",)
        return replace(audio, warnings=(*audio.warnings, *warnings))

    def _starting_steps(
        self, audio: Audio, options: TranscriptionOptions
    ) -> Steps[list[Transcription]]:
        """A transcription of each channel."""
        started = []
        for samples in audio.channels:
            started.append((yield from self.recogniser.starting_steps(samples, options)))
            yield None
        return started

    def _start_diarization(
        self, recording: Recording, samples: NDArray[np.float32], hints: SpeakerHints, left: Flag
    ) -> Future[Diarization | None]:
        """Diarization of samples (n,), begun before speech is detected; it ends when who asked has
        `left`.
        """
        diarizer = self.diarizer
        assert diarizer is not None  # who asks knows of it
        between = partial(self._diarization.let_pass, recording)

        def diarize() -> Diarization | None:
            with endpoint_errors(), suppress(DiarizationCancelled):
                if not left.is_set():
                    return diarizer.diarize(samples, hints, left, between)
            return None

        return self._beside(recording, diarize)

    def _beside(self, recording: Recording, work: Callable[[], T]) -> Future[T]:
        """What `work` returns in the thread of diarization."""
        computed = partial(compute_beside, work, self._threads, self._device)
        return self._diarization.submit(recording, in_one_step(computed))

    async def _recognise(
        self, transcriptions: Sequence[Transcription], config: InferenceConfig
    ) -> AsyncGenerator[Progress | Transcript]:
        """What the recogniser tells of the transcriptions of all channels, which share its rows;
        the transcripts come last, in order.
        """
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[tuple[int, Progress | None]] = asyncio.Queue()

        def tell(place: int, progress: Progress | None) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(told.put_nowait, (place, progress))

        def end(place: int, _: Future[Transcript]) -> None:
            tell(place, None)

        seconds = [each.seconds for each in transcriptions]
        jobs: list[Job[Transcript]] = []
        try:
            for place, transcription in enumerate(transcriptions):
                job = self.recogniser.submit(transcription, partial(tell, place))
                job.result.add_done_callback(partial(end, place))
                jobs.append(job)
            left = len(jobs)
            while left:
                place, progress = await told.get()
                if progress is None:
                    with endpoint_errors():
                        jobs[place].result.result()
                    left -= 1
                else:
                    seconds[place] = progress.done, progress.total
                    done, total = map(sum, zip(*seconds, strict=True))
                    channel = place if config.separate else None
                    chunks = [replace(chunk, channel=channel) for chunk in progress.chunks]
                    yield Progress(done, total, tuple(chunks))
            for job in jobs:
                yield job.result.result()
        finally:
            for job in jobs:
                job.cancel()

    def _finish(
        self,
        request: TranscriptionRequest,
        audio: Audio,
        spoken: Sequence[tuple[Transcript, Diarization | None]],
        known: KnownVoices,
    ) -> Answer:
        """What was found on all channels, words given to speakers, known ones by name, and every
        warning.
        """
        config = request.config
        answers = [_channel_answer(audio.duration, *each, known, config) for each in spoken]
        answer = joined(answers, _names(config, len(answers))) if config.separate else answers[0]
        notice = () if self.notice is None else (self.notice,)
        warnings = (*notice, *request.warnings, *audio.warnings, *answer.warnings)
        return replace(_with_segments(answer, config), warnings=warnings)

    async def _prepare(self, recording: Recording, steps: Steps[T], decodes: bool = False) -> T:
        """What `steps` return in a thread that prepares. Raises EndpointError."""
        submitted = self._preparation.submit(recording, _guarded(steps), decodes)
        return await asyncio.wrap_future(submitted)

    def _unused(self, config: InferenceConfig) -> tuple[str, ...]:
        """Warns of wishes about speakers that nobody will look at."""
        if self.diarizer is None:
            no_turns = no_hints = no_voices = "no diarization model is loaded"
        elif not config.diarize:
            no_turns = no_hints = no_voices = "diarize is false"
        else:
            can, no_turns = self.diarizer.capabilities, ""
            no_hints = "" if can.hints else "the diarization model takes none"
            no_voices = "" if can.voices else "the diarization model compares no voices"
        mixed = "" if config.separate else "channels are mixed"
        unused = (
            ("speaker hints are ignored", no_hints, speaker_hints(config) != SpeakerHints()),
            ("known_speakers are ignored", no_voices, bool(config.known_speakers)),
            ("output: rttm is empty", no_turns, "rttm" in config.output and not config.separate),
            ("channel_names are ignored", mixed, bool(config.channel_names)),
        )
        return tuple(f"{what}: {why}" for what, why, asked in unused if why and asked)


class SessionSpeakers:
    """Who speaks in one live session; for the event loop's thread.

    `warnings` are of wishes that nobody looks at. All ends once `left` is set.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        known: KnownVoices,
        stream: DiarizationStream | None,
        warnings: tuple[str, ...],
        left: Flag,
    ) -> None:
        self._endpoint, self._known, self._stream = endpoint, known, stream
        self.warnings, self._left = warnings, left

    @property
    def missing(self) -> int | None:
        """So many samples from now on `push` tells more; None where the diarizer does not stream,
        and `find` does once all has come.
        """
        return None if self._stream is None else self._stream.missing

    async def push(self, samples: NDArray[np.float32], last: bool) -> tuple[Diarization, float]:
        """See `DiarizationStream.push`, with its clock; samples (n,) at 16 kHz."""
        stream = self._stream
        assert stream is not None

        def hear() -> Diarization:
            with endpoint_errors(), suppress(DiarizationCancelled):
                return stream.push(samples, last, self._left)
            return Diarization((), ())

        # Without length, so that it goes between the batches of whatever runs.
        pushed = self._endpoint._beside(Recording(0.0), hear)
        return await asyncio.wrap_future(pushed), stream.clock

    async def find(self, samples: NDArray[np.float32], speech: Sequence[Span]) -> Naming:
        """Who speaks when in a whole session of samples (n,) at 16 kHz, in which `speech` was
        detected. Raises what `Diarizer.diarize` raises.
        """
        recording = Recording(len(samples) / SAMPLE_RATE)
        diarizing = self._endpoint._start_diarization(
            recording, samples, SpeakerHints(), self._left
        )
        try:
            found = await _speakers(diarizing, speech)
        finally:
            diarizing.cancel()  # while it waits it holds the samples
        naming = name_speakers(found, self._known)
        told = found.warnings if found else ()
        return replace(naming, warnings=(*told, *naming.warnings))

    def close(self) -> None:
        """Nobody asks any more."""
        self._left.set()


async def answer_of(events: AsyncGenerator[Event]) -> Answer:
    """The answer that a request's events end with; however it ends, they are closed."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished):
                return event.answer
    raise AssertionError("a request ends with its answer")


def speaker_hints(config: InferenceConfig) -> SpeakerHints:
    """What a request says about the number of its speakers."""
    return SpeakerHints(config.num_speakers, config.min_speakers, config.max_speakers)


def _options(config: InferenceConfig, by_speaker: bool) -> TranscriptionOptions:
    """What speech recognition is asked for.

    Speakers are given to words and subtitles are made of words, so both need word times even where
    the client does not ask for them. Tables and plain text have a line a segment and need
    timestamps; without them a whole window would be one line.
    """
    by_word = config.return_timestamps == "word" or not BY_WORD.isdisjoint(config.output)
    words = by_word or by_speaker or config.text is not None
    timed = config.return_timestamps is not False or not TIMED.isdisjoint(config.output)
    return TranscriptionOptions(
        task=config.task,
        language=config.language,
        multilingual=config.multilingual,
        chunk_length_s=config.chunk_length_s,
        prompt=config.prompt or "",
        hotwords=tuple(config.hotwords),
        text=config.text or "",
        decode=DecodeOptions(
            timestamps=timed or words,
            assisted=config.assisted,
            batch_size=config.batch_size,
            words=words,
            num_beams=config.num_beams,
            length_penalty=config.length_penalty,
            temperature=config.temperature or 0.0,
            fallback=with_thresholds(
                config.compression_ratio_threshold,
                config.logprob_threshold,
                config.no_speech_threshold,
            ),
        ),
        vad=_vad_options(config),
    )


def _vad_options(config: InferenceConfig) -> VadOptions | None:
    """What counts as speech; None: everything does."""
    if config.vad_filter is False:
        return None
    given = config.vad_parameters
    return VadOptions(**given.model_dump()) if given else VadOptions()


async def _speakers(
    diarizing: Future[Diarization | None] | None, speech: Sequence[Span]
) -> Diarization | None:
    """Who speaks when; None where nobody asks or nobody speaks."""
    if diarizing is None or not speech:
        return None
    found = await asyncio.wrap_future(diarizing)
    assert found is not None  # who asked is still there
    return found.touching(speech)


def _check_channel_names(names: Sequence[str], channels: int) -> None:
    if names and len(names) != channels:
        raise InvalidParameter(f"channel_names: should be as many as the audio's {channels}")


def _names(config: InferenceConfig, channels: int) -> Sequence[str]:
    """What channels are called that are heard apart."""
    return config.channel_names or [f"CHANNEL_{channel:02d}" for channel in range(channels)]


def _channel_answer(
    duration: float,
    transcript: Transcript,
    diarization: Diarization | None,
    known: KnownVoices,
    config: InferenceConfig,
) -> Answer:
    """What was found on one channel, without segments; words have speakers where these were looked
    for.
    """
    naming = name_speakers(diarization, known, config.known_speaker_threshold)
    turns, found = None, naming.diarization
    if found is not None:
        turns = found.turns
        chunks = attribute(transcript.chunks, found.turns, found.exclusive)
        transcript = replace(transcript, chunks=chunks)
    told = diarization.warnings if diarization else ()
    warnings = (*transcript.warnings, *told, *naming.warnings)
    return Answer(duration, transcript, None, turns, warnings, naming.known_speakers)


def _with_segments(answer: Answer, config: InferenceConfig) -> Answer:
    """The answer with what each speaker says; as it is where nobody asked for any."""
    if answer.turns is None:
        return answer
    chunks = answer.transcript.chunks
    segments = speaker_segments(chunks) if config.group_by_speaker else segment_per_chunk(chunks)
    return replace(answer, segments=segments)


def _guarded(steps: Steps[T]) -> Steps[T]:
    with endpoint_errors():
        return (yield from steps)


def _read_body(
    data: object, as_text: bool = False
) -> tuple[Inputs, InferenceConfig, tuple[str, ...]]:
    """Split a body into the audio as it came, the checked parameters, and a warning for every group
    of ignored names.

    Raises InvalidRequest for a wrong shape and InvalidParameter for a wrong parameter.
    """
    if not isinstance(data, dict):
        raise InvalidRequest("the body should be a JSON object")
    inputs, parameters = data.get("inputs"), data.get("parameters")
    if len(data) > MOST_NAMES:
        raise InvalidRequest(f"the body should have at most {MOST_NAMES} keys")
    if not isinstance(inputs, str | Base64Text | bytes):
        raise InvalidRequest("inputs: should be an audio file in base64")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("parameters: should be a JSON object")
    if len(parameters) > MOST_NAMES:
        raise InvalidRequest(f"parameters: should be at most {MOST_NAMES}")
    try:
        # Bytes come from the older toolkit, which takes their parameters from the query string, as
        # text.
        config = InferenceConfig.read(parameters, as_text=as_text or isinstance(inputs, bytes))
    except ValueError as error:
        raise InvalidParameter(str(error)) from error
    unknown = {
        "keys": [key for key in data if key not in BODY_KEYS],
        "parameters": InferenceConfig.unknown(parameters),
    }
    return (
        inputs,
        config,
        tuple(ignored_names(kind, names) for kind, names in unknown.items() if names),
    )
