"""Speech recognition with a Whisper: validates options, starts recordings and live passes.

Options are validated before any audio is decoded. `asr.transcription` has the order of the steps.
Other packages know the models by a `Transcriber` alone, without its `models` and its `engine`. The
recogniser drives the engine: `step`, `threads`, and a `scheduler` that it asks for turns and
charges.
"""

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.decoding_plan import Planner, TranscriptionOptions
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK, Fallback
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS, Limits
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.target_speaker import Enrolment, Mask, TargetSpeaker
from whosaid.asr.frontend.vad import DetectSpeech, SpeechDetector
from whosaid.asr.listening import LONG_SECONDS, EarlyStart, Listener
from whosaid.asr.live_pass import LivePass
from whosaid.asr.output.chunks import ChunkReader
from whosaid.asr.transcription import NO_PRIOR, Prior, Transcription, seconds_of
from whosaid.errors import InvalidParameter, ModelError, Unsupported
from whosaid.payload.languages import ENGLISH, language_code, language_name
from whosaid.runtime.errors import is_device_lost
from whosaid.runtime.servers import ADVICE
from whosaid.scheduling.steps import run_steps
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Chunk, Transcript

logger = logging.getLogger("endpoint")


@dataclass(frozen=True, slots=True)
class RecognitionCapabilities:
    """The properties and optional features of recognition models, constant after loading.

    `name` is a Hub id or a path. `languages` are codes; models that are not `multilingual` know
    English alone. `prompts`: `prompt` and `hotwords` are accepted. `drafts`: the source of drafts.
    A recording is cut into windows of at most `window_seconds`. `conditioned`: `start` takes a
    speaker's mask. `enrols`: the encoder attends to an enrolment of the speaker (SE-DiCoW).
    """

    name: str
    window_seconds: float
    multilingual: bool
    languages: tuple[str, ...]
    tasks: tuple[str, ...]
    prompts: bool
    drafts: Literal["assistant", "medusa"] | None = None
    conditioned: bool = False
    enrols: bool = False


class Transcriber:
    """Speech recognition with one set of models.

    `detect_speech` finds speech in samples (n,) at 16 kHz, in samples. `warm_up` and `transcribe`
    are for the thread that made the transcriber, all other methods for any. `asr.recogniser` takes
    the steps of what the `start` methods and `live_pass` return.
    """

    def __init__(
        self,
        models: WhisperModels,
        fallback: Fallback | None = DEFAULT_FALLBACK,
        detect_speech: DetectSpeech | None = None,
        cuda_graphs: bool = True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.models, self.capabilities = models, _capabilities(models)
        self.fallback = fallback
        self.detect_speech = detect_speech or SpeechDetector()
        self.engine = DecodeEngine(models, cuda_graphs, limits)

    def enrolment(self, samples: NDArray[np.float32], mask: Mask) -> Enrolment:
        """Return an enrolment for `start`: samples (n,), at most a window's, and their mask."""
        return Enrolment(samples, mask)

    @property
    def windows(self) -> tuple[int, int, int]:
        """The numbers of windows being decoded, of windows that wait for a row, and of rows."""
        scheduler = self.engine.scheduler
        return scheduler.running, scheduler.waiting, scheduler.capacity

    def warm_up(self) -> None:
        """On CUDA, transcribe a second of noise, so that a broken device fails at load."""
        if self.models.device.type != "cuda":
            return
        noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE).astype(np.float32)
        try:
            self.transcribe(noise, self.validate(TranscriptionOptions(vad=None)))
        except ModelError as error:
            logger.error("the model failed on a second of noise: %s", error)

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        """Return the options with Whisper's language code. Raises InvalidParameter if the models
        cannot follow them, and Unsupported for a prompt to models that take none.
        """
        if options.decode.temperature and options.decode.num_beams > 1:
            raise InvalidParameter("cannot be combined with num_beams above 1", "temperature")
        vad = options.vad
        if vad and vad.neg_threshold is not None and vad.neg_threshold > vad.peak:
            raise InvalidParameter("neg_threshold should not exceed threshold", "vad_parameters")
        code = None if options.language is None else language_code(options.language)
        if options.language is not None and code is None:
            raise InvalidParameter("should be a language that Whisper knows", "language")
        can = self.capabilities
        if not can.prompts and options.prompt:
            raise Unsupported("the model's vocabulary has no token that announces one", "prompt")
        if not can.multilingual:
            if code not in (None, ENGLISH):
                raise InvalidParameter("the model is English-only", "language")
            if options.task != "transcribe":
                raise InvalidParameter("the model is English-only and cannot translate", "task")
            return replace(options, language=ENGLISH)
        if code is not None and code not in can.languages:
            raise InvalidParameter(f"the model does not know {language_name(code)}", "language")
        if options.task not in can.tasks:
            raise InvalidParameter(f"the model cannot {options.task}", "task")
        return replace(options, language=code)

    def part(self, chunk: Chunk, first: int, stop: int) -> list[Chunk]:
        """Return words `first` to `stop` of the chunk as a chunk; an empty list without words."""
        return ChunkReader(self.models, None, timestamps=True).part(chunk, first, stop)

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the UTF-8 of each text token, which may be a part of a character's."""
        return self.models.bytes_of(tokens)

    def find_speech(self, samples: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
        """Return the spans of speech in `samples` (n,) at 16 kHz, in seconds."""
        return seconds_of(self.detect_speech(samples))

    def transcribe(self, samples: NDArray[np.float32], options: TranscriptionOptions) -> Transcript:
        """Transcribe `samples` (n,), mono at 16 kHz, with validated options; times are in seconds.
        Raises OutOfMemory if one window does not fit into the device's memory.
        """
        with closing(run_steps(self.start(samples, options))) as transcription:
            return transcription.run()

    async def start(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        speaker_mask: Mask | None = None,
        enrolment: Enrolment | None = None,
        prior: Prior = NO_PRIOR,
    ) -> Transcription:
        """Find speech and plan windows in small steps. The device is not used before the
        transcription's first step.

        With a `speaker_mask` (`asr.frontend.target_speaker`) only that speaker is written, and the
        mask says where speech is. Raises ValueError for a mask if the models are not `conditioned`.
        If the encoder `enrols`, it attends to the speaker's `enrolment`.
        """
        target = None
        if speaker_mask is not None:
            if not self.capabilities.conditioned:
                raise ValueError("the models cannot follow a speaker")
            target = TargetSpeaker(samples, speaker_mask, enrolment)
        planned = await self._listener(options, target).plan(samples)
        speech = seconds_of(planned.speech)
        return Transcription(self.engine, planned.schedule, speech, self._planner(options), prior)

    def start_early(
        self,
        options: TranscriptionOptions,
        seconds: float,
        wake: Callable[[], None],
        prior: Prior = NO_PRIOR,
    ) -> EarlyStart | None:
        """Start a recording of about `seconds` while it is decoded; None if recognition needs the
        whole recording, to detect its languages or to place a client's text.
        """
        whole = options.multilingual or options.text or options.vad is None
        if whole or seconds < LONG_SECONDS or not isinstance(self.detect_speech, SpeechDetector):
            return None
        listener = self._listener(options)
        schedule = Schedule(np.zeros(0, np.float32), (), listener.limit)
        schedule.await_more(round(seconds * SAMPLE_RATE))
        transcription = Transcription(self.engine, schedule, (), self._planner(options), prior)
        return EarlyStart(transcription, listener, wake, self.models.device.type == "cpu")

    def live_pass(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        prefix: tuple[int, ...] = (),
        draft: tuple[int, ...] = (),
    ) -> LivePass:
        """Start one decoding of a live buffer, `samples` (n,), mono at 16 kHz, as one window.

        The text begins with `prefix`, and `draft` guesses the rest, as in `Request`. Raises
        ValueError for samples that are empty or longer than a window. For options that sample or
        ask for beams, the first step raises ValueError.
        """
        if not 0 < len(samples) <= self.models.window_seconds * SAMPLE_RATE:
            raise ValueError("a live pass decodes one window")
        decode = replace(options.decode, live=True)
        planner = self._planner(replace(options, decode=decode))
        return LivePass(self.engine, planner, samples, prefix, draft)

    def _listener(
        self, options: TranscriptionOptions, target: TargetSpeaker | None = None
    ) -> Listener:
        window_seconds = min(options.chunk_length_s, self.models.window_seconds)
        limit = int(window_seconds * SAMPLE_RATE)
        return Listener(self.detect_speech, options.vad, limit, target)

    def _planner(self, options: TranscriptionOptions) -> Planner:
        decode = replace(options.decode, fallback=options.decode.fallback or self.fallback)
        return Planner(self.models, replace(options, decode=decode))


def _capabilities(models: WhisperModels) -> RecognitionCapabilities:
    tokens, conditioning = models.special_tokens, models.conditioning
    return RecognitionCapabilities(
        models.name,
        models.window_seconds,
        tokens.multilingual,
        languages=tuple(tokens.languages) or (ENGLISH,),
        tasks=tuple(sorted(tokens.tasks)) if tokens.multilingual else ("transcribe",),
        prompts=tokens.start_of_previous is not None,
        drafts="assistant" if models.assistant else "medusa" if models.medusa else None,
        conditioned=conditioning is not None,
        enrols=conditioning is not None and bool(conditioning.blocks),
    )


def start_transcriber(
    models: WhisperModels, cuda_graphs: bool, limits: Limits = DEFAULT_LIMITS
) -> Transcriber:
    """Return a transcriber; without CUDA graphs if the start fails with them. Most failures leave
    the device usable. The error of a lost device is raised, because only a new process can try
    again (`runtime.servers`).
    """
    if cuda_graphs and models.device.type == "cuda":
        try:
            return _warmed(models, limits, cuda_graphs=True)
        except Exception as error:
            if is_device_lost(error):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        # Outside the except block, in which the exception holds the device's memory.
        logger.critical("the start failed (%s): trying again %s", reason, ADVICE)
        gc.collect()
        torch.cuda.empty_cache()
    return _warmed(models, limits, cuda_graphs=False)


def _warmed(models: WhisperModels, limits: Limits, cuda_graphs: bool) -> Transcriber:
    transcriber = Transcriber(models, cuda_graphs=cuda_graphs, limits=limits)
    transcriber.warm_up()
    return transcriber
