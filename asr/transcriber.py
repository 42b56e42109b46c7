"""From samples to a transcript: speech, windows, language, decoding, chunks in the audio's time.

The one decision: this module holds the order of the steps and the loop. Which windows exist is
the schedule's matter, how they are decoded the engine's, what is kept of them the reader's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.languages import ENGLISH, language_code, language_name
from asr.checkpoint.loading import WhisperModels
from asr.engine.engine import DecodeEngine
from asr.engine.fallback import DEFAULT_FALLBACK, Fallback
from asr.engine.prefill import DetectedLanguage
from asr.engine.request import DecodeOptions, Request
from asr.engine.self_test import run_self_test
from asr.engine.session import Session
from asr.frontend.schedule import Schedule
from asr.frontend.vad import DetectSpeech, SpeechDetector
from asr.frontend.windows import Span, Window
from asr.output.chunks import ChunkReader
from errors import InvalidParameter, Unsupported
from timebase import SAMPLE_RATE
from transcript import Chunk, Transcript

logger = logging.getLogger("endpoint")

# Encoder outputs kept from language detection; large-v3's for one window is 4 MB in float16.
MAX_KEPT_ENCODINGS = 16


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """What a request asks of speech recognition.

    `language` is a code or a name, None to detect it. `prompt` and `hotwords` are prepended to
    every window as previous text (Whisper's `initial_prompt`), for style and spelling. `num_beams`
    and `length_penalty` are those of `asr.engine.request.DecodeOptions`.
    """

    task: str = "transcribe"
    language: str | None = None
    batch_size: int = 24
    assisted: bool = False
    chunk_length_s: int = 30
    timestamps: bool = True
    words: bool = False
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    num_beams: int = 1
    length_penalty: float | None = None


class Transcriber:
    """Speech recognition with one set of models; safe to call from several threads."""

    def __init__(
        self,
        models: WhisperModels,
        fallback: Fallback | None = DEFAULT_FALLBACK,
        detect_speech: DetectSpeech | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        self.models = models
        self.fallback = fallback
        self.detect_speech = detect_speech or SpeechDetector()
        self.engine = DecodeEngine(models, cuda_graphs)

    def warm_up(self) -> None:
        """On CUDA, run everything once on noise and compare graphs with eager steps."""
        run_self_test(self.engine)

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        """Refuse, before any audio is decoded, what this checkpoint cannot do.

        Returns the options with the language as Whisper's code. Raises InvalidParameter, or
        Unsupported for a prompt where the vocabulary has no token that announces one.
        """
        code = None if options.language is None else language_code(options.language)
        if options.language is not None and code is None:
            raise InvalidParameter(
                f"language: {options.language[:40]!r} is not a language Whisper knows"
            )
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
        speech = self.detect_speech(samples)
        window_seconds = min(options.chunk_length_s, self.models.window_seconds)
        schedule = Schedule(samples, speech, int(window_seconds * SAMPLE_RATE))
        detected, encodings = self._detect_language(schedule, options)
        language = options.language or (detected.language if detected else None)
        assisted, warnings = self._use_assistant(language, options)
        previous, cut = self._previous_text(options)
        prompt = self.models.special_tokens.prompt(
            language, options.task, _decodes_timestamps(options), previous
        )
        written = ENGLISH if options.task == "translate" else language
        reader = ChunkReader(self.models, written, options.timestamps, options.words)
        with self.engine.session(self._decode_options(options, assisted)) as session:
            chunks = self._decode_windows(session, schedule, reader, prompt, encodings)
        return Transcript(
            chunks,
            language,
            warnings + cut,
            detected.probability if detected else None,
            _seconds(speech),
            session.stats,
        )

    def _decode_windows(
        self,
        session: Session,
        schedule: Schedule,
        reader: ChunkReader,
        prompt: tuple[int, ...],
        encodings: dict[Window, DetectedLanguage],
    ) -> tuple[Chunk, ...]:
        """Decode the schedule's windows as they become ready.

        A window's unfinished end may make the next window of its region begin earlier.
        """
        chunks: list[Chunk] = []
        while True:
            requests = []
            for window in schedule.pop_ready(session.free_rows):
                known = encodings.pop(window, None)
                encoded = known.encoded if known else None
                requests.append(Request(window, schedule.samples(window), prompt, encoded=encoded))
            session.add(requests)
            if session.done:
                return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))
            for request, result in session.step():
                window = request.key
                read = reader.read(window, result, request.samples)
                decoded_again = schedule.complete(
                    window, read.seek, bool(read.unfinished), read.looped
                )
                chunks += reader.chunks(window, read.kept(decoded_again), request.samples, result)
                done, total = schedule.done, schedule.total
                logger.info("window %d of %d", done, total, extra={"done": done, "total": total})

    def _detect_language(
        self, schedule: Schedule, options: TranscriptionOptions
    ) -> tuple[DetectedLanguage | None, dict[Window, DetectedLanguage]]:
        """The language of the first window with speech, where none was given.

        Also returns what each window that was looked at gave, with the encoder's output.
        """
        looked_at: dict[Window, DetectedLanguage] = {}
        if options.language is not None:
            return None, looked_at
        first: DetectedLanguage | None = None
        for window in schedule.ready():
            detected = self.engine.detect_language(schedule.samples(window))
            if len(looked_at) < MAX_KEPT_ENCODINGS:
                looked_at[window] = detected
            if detected.no_speech_prob <= DEFAULT_FALLBACK.no_speech_threshold:
                return detected, looked_at
            first = first or detected
        return first, looked_at

    def _decode_options(self, options: TranscriptionOptions, assisted: bool) -> DecodeOptions:
        timed_by_attention = options.timestamps and not _decodes_timestamps(options)
        return DecodeOptions(
            timestamps=_decodes_timestamps(options),
            assisted=assisted,
            batch_size=options.batch_size,
            fallback=self.fallback,
            words=options.words or timed_by_attention,
            num_beams=options.num_beams,
            length_penalty=options.length_penalty,
        )

    def _use_assistant(
        self, language: str | None, options: TranscriptionOptions
    ) -> tuple[bool, tuple[str, ...]]:
        """Whether an assistant drafts, and a warning where one was asked for and does not."""
        if not options.assisted:
            return False, ()
        assistant = self.models.assistant
        if assistant is None:
            return False, ("assisted: no assistant model is loaded; decoded without one",)
        if options.num_beams > 1:
            return False, ("assisted: beam search does not draft; decoded without the assistant",)
        only = assistant.only_language
        if only is not None and language not in (None, only):
            known = language_name(only)
            warning = f"assisted: the assistant model knows {known} alone; decoded without it"
            return False, (warning,)
        return True, ()

    def _previous_text(
        self, options: TranscriptionOptions
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Hot words and prompt as tokens, at most half of what a text may hold; a warning if cut.

        As in openai/whisper the prompt keeps its end. Hot words come first and are cut last.
        """
        longest = self.models.special_tokens.longest_previous
        hotwords = self._tokens(", ".join(options.hotwords))
        prompt = self._tokens(options.prompt)
        kept = hotwords[:longest]
        kept += prompt[max(0, len(prompt) - (longest - len(kept))) :]
        if len(kept) == len(hotwords) + len(prompt):
            return tuple(kept), ()
        return tuple(kept), (
            f"prompt, hotwords: {len(kept)} tokens fit beside the transcript; the rest is ignored",
        )

    def _tokens(self, text: str) -> list[int]:
        """Tokens of a client's text: names of special tokens in it are text like any other."""
        text = text.strip()
        if not text:
            return []
        tokens = self.models.tokenizer.encode(
            f" {text}", add_special_tokens=False, split_special_tokens=True
        )
        return [token for token in tokens if token < self.models.special_tokens.end_of_text]


def _decodes_timestamps(options: TranscriptionOptions) -> bool:
    """Whether Whisper writes timestamps into its text.

    Beams that must place timestamps too find worse texts: there sentences are timed by attention.
    """
    return options.timestamps and options.num_beams == 1


def _seconds(speech: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    return tuple((span.start / SAMPLE_RATE, span.stop / SAMPLE_RATE) for span in speech)
