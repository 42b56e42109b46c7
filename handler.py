"""The endpoint: `EndpointHandler` loads the models once, and every call answers one request.

The one decision: this file holds the order of the steps and the edges, nothing else. What the
servers need is settled at the top (they import this file by its path), what a client reads at the
bottom, and in between every exception that is not ours already becomes ours, so that neither a
traceback nor a path leaves the endpoint.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

# hf-serve leaves the repository's folder off the import path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from answer.response import Answer, response
from asr import Checkpoint, Transcriber, TranscriptionOptions, load_whisper, with_assistant
from asr.startup import start
from audio.decode import (
    Audio,
    AudioLimits,
    DecodingSteps,
    all_at_once,
    decode_base64,
    decoding_steps,
)
from config import (
    InferenceConfig,
    ModelReference,
    ModelSettings,
    ignored_names,
    misspelt_variables,
    nvidia_device_present,
)
from diarization.enrolment import Enrolment
from diarization.known_speakers import NOBODY, KnownVoices, name_speakers
from diarization.pipeline import Diarization, Diarizer, SpeakerHints, load_diarizer
from diarization_utils import attribute, segment_per_chunk, speaker_segments
from errors import (
    EndpointError,
    InvalidParameter,
    InvalidRequest,
    ModelError,
    OutOfMemory,
    StartError,
)
from payload.base64_text import Base64Text
from runtime.device import choose_device, choose_dtype, prepare_device
from runtime.device_errors import is_device_lost, is_out_of_memory
from runtime.model_errors import loading
from runtime.openmp import SecondThread, run_in_passing_thread
from runtime.restart import restart_without_graphs
from runtime.server_logs import hide_bodies, keep_one_line
from runtime.versions import describe_versions
from transcript import Transcript

logger = logging.getLogger("endpoint")

BODY_KEYS = ("inputs", "parameters")
# Of a body, and of its parameters; those that nobody knows are ignored.
MOST_NAMES = 100
# Outputs that are made of words, and those that tell times and segments.
BY_WORD = {"srt", "vtt"}
TIMED = BY_WORD | {"tsv", "txt"}
# When the device is lost: time for the answer to leave, and the status the platform sees.
SECONDS_TO_ANSWER, EXIT_STATUS = 1.0, 70


class TranscriptionRequest(NamedTuple):
    """One request, checked: the audio file as it came, its parameters, what speech recognition is
    asked for, and a warning for every group of names that are ignored.
    """

    inputs: str | Base64Text | bytes
    config: InferenceConfig
    options: TranscriptionOptions
    warnings: tuple[str, ...] = ()


class EndpointHandler:
    """Speech recognition with speakers, as the servers call it; safe to call from several
    threads.

    A server of our own takes the same steps one by one: `parse`, `enrol`, `decode`, recognition by
    `transcriber` beside `diarizer`, `answer`.
    """

    transcriber: Transcriber
    diarizer: Diarizer | None
    limits: AudioLimits
    threads: int  # that compute beneath one
    second_thread: SecondThread  # where diarization runs

    def __init__(
        self, path: str = "", settings: ModelSettings | None = None, serves: bool = True
    ) -> None:
        """Load the models that `settings`, by default the environment, names.

        `path` is where the server found this repository; models are looked for beside this file,
        which is there. Ends the process where it cannot serve: SystemExit, which prints one line
        and passes through the servers. Where the device is lost meanwhile, a process that `serves`
        begins again without CUDA graphs (`runtime.restart`).
        """
        hide_bodies()
        try:
            settings = settings or _environment_settings()
            self._load(settings)
        except StartError as error:
            lost = any(is_device_lost(cause) for cause in _causes(error))
            if lost and serves and settings is not None and settings.cuda_graphs:
                restart_without_graphs(str(error))
            keep_one_line(str(error))
            raise SystemExit(str(error)) from error

    def _load(self, settings: ModelSettings) -> None:
        started = time.perf_counter()
        logger.info(describe_versions())
        for line in misspelt_variables():
            logger.warning(line)
        device = choose_device(settings.device, nvidia_device_present())
        dtype = choose_dtype(settings.dtype, device)
        prepare_device(device)
        self.threads, on_cpu = torch.get_num_threads(), device.type == "cpu"
        self.second_thread = SecondThread(self.threads, lasts=not on_cpu)
        load = partial(self._load_models, settings, device, dtype)
        if on_cpu:  # the thread that serves is to have the only team of threads
            run_in_passing_thread(load, self.threads)
        else:
            load()
        self.limits = AudioLimits(settings.max_audio_seconds, settings.max_audio_bytes)
        seconds = time.perf_counter() - started
        logger.info(
            "models ready on %s in %s after %.1f s",
            device.type,
            str(dtype).removeprefix("torch."),
            seconds,
        )

    def _load_models(
        self, settings: ModelSettings, device: torch.device, dtype: torch.dtype
    ) -> None:
        asr, assistant = settings.asr_model, settings.assistant_model
        pipeline = settings.diarization_model
        logger.info("loading %s", ", ".join(model.name for model in settings.models))
        with loading("ASR_MODEL", asr.name):
            models = load_whisper(_checkpoint(asr, settings), device, dtype)
        if assistant is not None:
            with loading("ASSISTANT_MODEL", assistant.name):
                models = with_assistant(models, _checkpoint(assistant, settings))
        with _start_errors():
            self.transcriber = start(models, settings.cuda_graphs)
        self.diarizer = None
        if pipeline is not None:
            with loading("DIARIZATION_MODEL", pipeline.name):
                self.diarizer = load_diarizer(
                    pipeline.name, pipeline.revision, settings.token, device
                )

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answer one request body with text, timed chunks and speakers.

        Raises ClientError, which the servers answer with 400, or ServerError (500), and nothing
        else.
        """
        started = time.perf_counter()
        with endpoint_errors():
            request = self.parse(data)
            known = self.enrol(request)
            audio = all_at_once(self.decode(request))
            transcript, diarization = self.recognise_and_diarize(audio, request)
            answer = self.answer(request, audio, transcript, diarization, known)
            logger.info(
                "%.1f s of audio answered in %.2f s", audio.duration, time.perf_counter() - started
            )
            return response(answer, request.config)

    def parse(self, data: object, as_text: bool = False) -> TranscriptionRequest:
        """Check a request's body: a dict of `inputs` and `parameters`.

        `as_text` reads parameters as those of a query string or form. Raises InvalidRequest,
        InvalidParameter, or Unsupported.
        """
        inputs, config, ignored = _read_body(data, as_text)
        return TranscriptionRequest(inputs, config, self._options(config), ignored)

    def enrol(
        self, request: TranscriptionRequest, cancelled: threading.Event | None = None
    ) -> KnownVoices:
        """The voices of the request's clips, before its audio is touched; their names alone where
        it is not diarized. Raises InvalidReference, or what `Diarizer.diarize` raises.
        """
        if not (config := request.config).known_speakers:
            return NOBODY
        diarizer = self.diarizer if config.diarize else None
        means = (diarizer, self.transcriber.find_speech, self.limits, config.sampling_rate)
        return Enrolment(*means).enrol(config.known_speakers, cancelled)

    def decode(self, request: TranscriptionRequest) -> DecodingSteps:
        """The audio, in small steps; clips leave fewer bytes. Raises InvalidAudio, AudioTooLong."""
        limits = self.limits.less(request.config.reference_bytes)
        data = decode_base64(request.inputs, limits)
        return (yield from decoding_steps(data, request.config.sampling_rate, limits))

    def answer(
        self,
        request: TranscriptionRequest,
        audio: Audio,
        transcript: Transcript,
        diarization: Diarization | None,
        known: KnownVoices = NOBODY,
    ) -> Answer:
        """What was found, words given to speakers, known ones by name, and every warning."""
        config = request.config
        naming = name_speakers(diarization, known, config.known_speaker_threshold)
        answer = Answer(audio.duration, transcript, known_speakers=naming.known_speakers)
        answer = _attribute_words(answer, naming.diarization, config)
        warnings = (*request.warnings, *self._unused(config), *audio.warnings)
        warnings += transcript.warnings + (diarization.warnings if diarization else ())
        return replace(answer, warnings=warnings + naming.warnings)

    def diarizes(self, config: InferenceConfig) -> bool:
        """Whether a request with these parameters is diarized."""
        return config.diarize and self.diarizer is not None

    def _options(self, config: InferenceConfig) -> TranscriptionOptions:
        """What speech recognition is asked for. Raises InvalidParameter where the model cannot.

        Speakers are given to words and subtitles are made of words, so both need word times even
        where the client does not ask for them. Tables and plain text have a line a segment and need
        timestamps; without them a whole window would be one line.
        """
        by_word = config.return_timestamps == "word" or not BY_WORD.isdisjoint(config.output)
        words = by_word or self.diarizes(config)
        timed = config.return_timestamps is not False or not TIMED.isdisjoint(config.output)
        return self.transcriber.validate(
            TranscriptionOptions(
                task=config.task,
                language=config.language,
                multilingual=config.multilingual,
                batch_size=config.batch_size,
                assisted=config.assisted,
                num_beams=config.num_beams,
                length_penalty=config.length_penalty,
                chunk_length_s=config.chunk_length_s,
                timestamps=timed or words,
                words=words,
                prompt=config.prompt or "",
                hotwords=tuple(config.hotwords),
            )
        )

    def recognise_and_diarize(
        self, audio: Audio, request: TranscriptionRequest
    ) -> tuple[Transcript, Diarization | None]:
        """What is said and, in a thread beside it, who speaks when.

        Diarization begins before speech is detected, and is cancelled where there is none or
        recognition fails. It is None then, and where nobody asks or no model is loaded.
        """
        if self.diarizer is None or not request.config.diarize:
            return self.transcriber.transcribe(audio.samples, request.options), None
        hints = speaker_hints(request.config)
        cancelled = threading.Event()
        diarize = partial(self.diarizer.diarize, audio.samples, hints, cancelled)
        with self.second_thread.running(diarize) as running:
            try:
                transcript = self.transcriber.transcribe(audio.samples, request.options)
            except BaseException:
                cancelled.set()
                raise
            if not transcript.speech:
                cancelled.set()
                return transcript, None
            return transcript, running.result().within(transcript.speech)

    def _unused(self, config: InferenceConfig) -> tuple[str, ...]:
        """Warns of wishes about speakers that nobody will look at."""
        if self.diarizes(config):
            return ()
        reason = "diarize is false" if self.diarizer else "no diarization model is loaded"
        unused = {
            "speaker hints are ignored": speaker_hints(config) != SpeakerHints(),
            "known_speakers are ignored": bool(config.known_speakers),
            "output: rttm is empty": "rttm" in config.output,
        }
        return tuple(f"{what}: {reason}" for what, asked in unused.items() if asked)


def _environment_settings() -> ModelSettings:
    try:
        return ModelSettings.from_environment()
    except ValueError as error:
        raise StartError(str(error)) from error


def _checkpoint(model: ModelReference, settings: ModelSettings) -> Checkpoint:
    return Checkpoint(model.name, model.revision, settings.token)


def speaker_hints(config: InferenceConfig) -> SpeakerHints:
    """What a request says about the number of its speakers."""
    return SpeakerHints(config.num_speakers, config.min_speakers, config.max_speakers)


def _attribute_words(
    answer: Answer, diarization: Diarization | None, config: InferenceConfig
) -> Answer:
    """The answer with its words given to speakers; as it is where nobody asked for any."""
    if diarization is None:
        return answer
    chunks = attribute(answer.transcript.chunks, diarization.turns, diarization.exclusive)
    segments = speaker_segments(chunks) if config.group_by_speaker else segment_per_chunk(chunks)
    transcript = replace(answer.transcript, chunks=chunks)
    return replace(answer, transcript=transcript, segments=segments, turns=diarization.turns)


@contextmanager
def _start_errors() -> Iterator[None]:
    """Say in one line what keeps the loaded models from running."""
    try:
        yield
    except EndpointError as error:
        raise StartError(str(error)) from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise StartError(f"the models do not run: {type(error).__name__}: {reason}") from error


@contextmanager
def endpoint_errors() -> Iterator[None]:
    """Pass our own errors on and turn every other exception into one; the log says its origin.

    A lost device ends the process, so that the platform starts a new one.
    """
    try:
        yield
    except Exception as error:
        if any(is_device_lost(cause) for cause in _causes(error)):
            _end_process(error)
        if isinstance(error, EndpointError):
            raise
        if is_out_of_memory(error):
            raise OutOfMemory(
                "this request does not fit into the memory of this endpoint"
            ) from error
        origin = traceback.extract_tb(error.__traceback__)[-1]
        logger.error(
            "%s in %s, line %s", type(error).__name__, Path(origin.filename).name, origin.lineno
        )
        raise ModelError(
            f"unexpected {type(error).__name__}; the log of the endpoint names its origin"
        ) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _end_process(error: Exception) -> None:
    """End this process a moment from now, after the client has been answered.

    After such an error every call to the device fails. Torch's message holds no user data.
    """
    reasons = [" ".join(str(cause).split()) for cause in _causes(error)]
    logger.critical("the device is lost, the process ends: %s", reasons[-1])
    timer = threading.Timer(SECONDS_TO_ANSWER, os._exit, (EXIT_STATUS,))
    timer.daemon = True
    timer.start()


def _read_body(
    data: object, as_text: bool = False
) -> tuple[str | Base64Text | bytes, InferenceConfig, tuple[str, ...]]:
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
