"""From samples to a transcript: what one set of models can be asked, and how it is decoded.

A request is checked before any audio is decoded, and what depends on the models alone is settled
here: prompt, assistant, language names. `asr.transcription` holds the order of the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.decoding_plan import Planner
from asr.engine.engine import DecodeEngine
from asr.engine.fallback import DEFAULT_FALLBACK, Fallback
from asr.engine.scheduler import DEFAULT_LIMITS, Limits
from asr.frontend.schedule import Schedule
from asr.frontend.vad import DetectSpeech, SpeechDetector
from asr.frontend.windows import MARGIN, Span
from asr.live_pass import LivePass, Passage
from asr.options import TranscriptionOptions
from asr.transcription import Transcription
from asr.window_decoding import NOTHING_HEARD, HeardBefore
from errors import InvalidParameter, ModelError, Unsupported
from payload.languages import ENGLISH, language_code, language_name
from timebase import SAMPLE_RATE
from transcript import Transcript

logger = logging.getLogger("endpoint")


class Transcriber:
    """Speech recognition with one set of models, for one thread; `asr.recogniser` is for many.

    `validate`, `find_speech`, `start`, `starting_steps` and `live_pass` may be called from any
    thread.
    """

    def __init__(
        self,
        models: WhisperModels,
        fallback: Fallback | None = DEFAULT_FALLBACK,
        detect_speech: DetectSpeech | None = None,
        cuda_graphs: bool = True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.models = models
        self.fallback = fallback
        self.detect_speech = detect_speech or SpeechDetector()
        self.engine = DecodeEngine(models, cuda_graphs, limits)

    def warm_up(self) -> None:
        """On CUDA, transcribe a second of noise, so that a device that cannot fails at load."""
        if self.models.device.type != "cuda":
            return
        noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE).astype(np.float32)
        try:
            self.transcribe(noise, self.validate(TranscriptionOptions(vad=None)))
        except ModelError as error:
            logger.error("the model transcribes no noise: %s", error)

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        """Refuse, before any audio is decoded, what this checkpoint cannot do.

        Returns the options with the language as Whisper's code. Raises InvalidParameter, or
        Unsupported for a prompt where the vocabulary has no token that announces one.
        """
        if options.decode.temperature and options.decode.num_beams > 1:
            raise InvalidParameter("temperature: beams are not sampled")
        vad = options.vad
        if vad and vad.neg_threshold is not None and vad.neg_threshold > vad.peak:
            raise InvalidParameter("vad_parameters: neg_threshold is larger than threshold")
        code = None if options.language is None else language_code(options.language)
        if options.language is not None and code is None:
            raise InvalidParameter("language: should be a language that Whisper knows")
        special_tokens = self.models.special_tokens
        if special_tokens.start_of_previous is None and (options.prompt or options.hotwords):
            raise Unsupported(
                "prompt, hotwords: the model's vocabulary has no token that announces them"
            )
        if not special_tokens.multilingual:
            if code not in (None, ENGLISH):
                raise InvalidParameter("language: the model is English-only")
            if options.task != "transcribe":
                raise InvalidParameter("task: the model is English-only and cannot translate")
            return replace(options, language=ENGLISH)
        if code is not None and code not in special_tokens.languages:
            raise InvalidParameter(f"language: the model does not know {language_name(code)}")
        if options.task not in special_tokens.tasks:
            raise InvalidParameter(f"task: the model cannot {options.task}")
        return replace(options, language=code)

    def transcribe(self, samples: NDArray[np.float32], options: TranscriptionOptions) -> Transcript:
        """Transcribe `samples` (n,), mono at 16 kHz, with options that `validate` returned.

        Times are in seconds from the samples' start. Raises OutOfMemory where the device cannot
        hold a batch of one window.
        """
        with closing(self.start(samples, options)) as transcription:
            return transcription.run()

    def find_speech(self, samples: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
        """When somebody speaks in `samples`, (n,) at 16 kHz, in seconds."""
        return _seconds(self.detect_speech(samples))

    def start(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        before: HeardBefore = NOTHING_HEARD,
    ) -> Transcription:
        """The same, to be taken step by step: speech is found and windows are planned here, in
        about 10 ms a minute; nothing uses the device before the first step. `before` is what was
        heard of them already.
        """
        steps = self.starting_steps(samples, options, before)
        try:
            while True:
                next(steps)
        except StopIteration as started:
            transcription: Transcription = started.value
            return transcription

    def starting_steps(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        before: HeardBefore = NOTHING_HEARD,
    ) -> Generator[None, None, Transcription]:
        """What `start` returns, in small steps while speech is looked for."""
        detect = self.detect_speech
        if options.vad is None:
            return self._start(samples, options, (Span(0, len(samples)),), before)
        if not isinstance(detect, SpeechDetector):
            return self._start(samples, options, detect(samples), before)
        speech = yield from detect.steps(samples, options.vad)
        yield
        return self._start(samples, options, speech, before)

    def live_pass(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        prefix: tuple[int, ...] = (),
        draft: tuple[int, ...] = (),
    ) -> LivePass:
        """One decoding of what is heard so far, `samples` (n,), mono at 16 kHz: one window.

        The text begins with `prefix`, and `draft` guesses what follows, as in `Request`. Words are
        found whether the options ask for them or not. Raises ValueError for samples that are no
        window, and for options that sample or ask for beams.
        """
        if not 0 < len(samples) <= self.models.window_seconds * SAMPLE_RATE:
            raise ValueError("a live pass decodes one window")
        decode = replace(options.decode, words=True, live=True)
        return LivePass(
            self.engine,
            Passage(samples, options.language, prefix, draft),
            self._planner(replace(options, decode=decode)),
        )

    def _planner(self, options: TranscriptionOptions) -> Planner:
        """With the fallback that is used where the request asks for none."""
        decode = replace(options.decode, fallback=options.decode.fallback or self.fallback)
        return Planner(self.models, replace(options, decode=decode))

    def _start(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        speech: Sequence[Span],
        before: HeardBefore,
    ) -> Transcription:
        window_seconds = min(options.chunk_length_s, self.models.window_seconds)
        pad = None if options.vad is None else options.vad.speech_pad_ms
        margin = MARGIN if pad is None else pad * SAMPLE_RATE // 1000
        limit = int(window_seconds * SAMPLE_RATE)
        detected = options.vad is not None
        schedule = Schedule(samples, speech, limit, margin, detected)
        return Transcription(
            self.engine,
            schedule,
            _seconds(speech),
            self._planner(options),
            before,
        )


def _seconds(speech: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    return tuple((span.start / SAMPLE_RATE, span.stop / SAMPLE_RATE) for span in speech)
