"""From samples to a transcript: speech, windows, language, decoding, chunks in the audio's time.

The one decision: this module holds the order of the steps and the loop. Which windows exist is
the schedule's matter, how they are decoded the engine's, what is kept of them the reader's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from asr.checkpoint.languages import ENGLISH, language_code, language_name
from asr.checkpoint.loading import WhisperModels
from asr.engine.engine import DecodeEngine
from asr.engine.fallback import DEFAULT_FALLBACK, Fallback
from asr.engine.prefill import DetectedLanguage, LanguagePosterior
from asr.engine.request import DecodeOptions, Request
from asr.engine.self_test import run_self_test
from asr.engine.session import Session
from asr.frontend.schedule import Schedule
from asr.frontend.vad import DetectSpeech, SpeechDetector
from asr.frontend.windows import Span, Window
from asr.language_timeline import (
    HeardWindow,
    LanguageTimeline,
    find_languages,
    other_language_warning,
)
from asr.output.chunks import ChunkReader
from errors import InvalidParameter, Unsupported
from timebase import SAMPLE_RATE
from transcript import Chunk, Transcript

logger = logging.getLogger("endpoint")

# Encoder outputs kept from language detection; large-v3's for one window is 4 MB in float16.
MAX_KEPT_ENCODINGS = 16

# Windows by what language detection encoded of them: (1, frames, d_model) each.
Encodings = dict[Window, Tensor]


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """What a request asks of speech recognition.

    `language` is a code or a name, None to detect it: once, or with `multilingual` for each part of
    the recording. `prompt` and `hotwords` are prepended to
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
    multilingual: bool = False


@dataclass(frozen=True, slots=True)
class _InLanguage:
    """How windows of one language are decoded and read."""

    prompt: tuple[int, ...]
    reader: ChunkReader


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
        limit = int(window_seconds * SAMPLE_RATE)
        schedule = Schedule(samples, speech, limit)
        timeline, encodings = self._find_languages(schedule, options)
        if timeline.cuts:
            schedule = Schedule(samples, speech, limit, timeline.cuts)
        assisted, warnings = self._use_assistant(timeline.languages, options)
        previous, cut = self._previous_text(options)
        ways = {each: self._in_language(each, options, previous) for each in timeline.languages}
        with self.engine.session(self._decode_options(options, assisted)) as session:
            chunks, heard = self._decode_windows(session, schedule, timeline, ways, encodings)
        if options.multilingual:
            chunks = _with_languages(chunks, timeline)
            warnings += self._unused_detection(options)
        elif options.language is None and not previous:
            warnings += other_language_warning(timeline.language, heard)
        return Transcript(
            chunks,
            timeline.language,
            warnings + cut,
            timeline.probability,
            _seconds(speech),
            session.stats,
        )

    def _decode_windows(
        self,
        session: Session,
        schedule: Schedule,
        timeline: LanguageTimeline,
        ways: Mapping[str | None, _InLanguage],
        encodings: Encodings,
    ) -> tuple[tuple[Chunk, ...], list[HeardWindow]]:
        """Decode the schedule's windows as they become ready.

        A window's unfinished end may make the next window of its region begin earlier. Also returns
        which languages the windows seemed to be in.
        """
        chunks: list[Chunk] = []
        heard: list[HeardWindow] = []
        while True:
            requests = []
            for window in schedule.pop_ready(session.free_rows):
                prompt = ways[timeline.language_at(window.start)].prompt
                encoded = encodings.pop(window, None)
                requests.append(Request(window, schedule.samples(window), prompt, encoded=encoded))
            session.add(requests)
            if session.done:
                return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end))), heard
            for request, result in session.step():
                window = request.key
                heard.append(HeardWindow.of(window, result, schedule.speech_seconds(window)))
                reader = ways[timeline.language_at(window.start)].reader
                read = reader.read(window, result, request.samples)
                decoded_again = schedule.complete(
                    window, read.seek, bool(read.unfinished), read.looped
                )
                chunks += reader.chunks(window, read.kept(decoded_again), request.samples, result)
                done, total = schedule.done, schedule.total
                logger.info("window %d of %d", done, total, extra={"done": done, "total": total})

    def _find_languages(
        self, schedule: Schedule, options: TranscriptionOptions
    ) -> tuple[LanguageTimeline, Encodings]:
        """The languages of the recording, where none was given: that of the first window with
        speech, or with `multilingual` those of its parts.

        Also returns the encoder's output for windows that were looked at.
        """
        encodings: Encodings = {}
        if options.language is not None:
            return LanguageTimeline.single(options.language), encodings

        def keep(window: Window, encoded: Tensor | None) -> None:
            if encoded is not None and len(encodings) < MAX_KEPT_ENCODINGS:
                encodings[window] = encoded

        if options.multilingual:

            def listen(window: Window) -> LanguagePosterior:
                found = self.engine.language_posterior(schedule.samples(window))
                keep(window, found.encoded)
                return found._replace(encoded=None)

            return find_languages(schedule, listen), encodings
        first: DetectedLanguage | None = None
        for window in schedule.ready():
            detected = self.engine.detect_language(schedule.samples(window))
            keep(window, detected.encoded)
            if detected.no_speech_prob <= DEFAULT_FALLBACK.no_speech_threshold:
                return LanguageTimeline.single(detected.language, detected.probability), encodings
            first = first or detected
        if first is None:
            return LanguageTimeline(), encodings
        return LanguageTimeline.single(first.language, first.probability), encodings

    def _in_language(
        self, language: str | None, options: TranscriptionOptions, previous: tuple[int, ...]
    ) -> _InLanguage:
        """How windows of a language are decoded: `previous` text is the same for all."""
        prompt = self.models.special_tokens.prompt(
            language, options.task, _decodes_timestamps(options), previous
        )
        written = ENGLISH if options.task == "translate" else language
        reader = ChunkReader(self.models, written, options.timestamps, options.words)
        return _InLanguage(prompt, reader)

    def _unused_detection(self, options: TranscriptionOptions) -> tuple[str, ...]:
        """A warning where `multilingual` was asked for and the language was known before."""
        if options.language is None:
            return ()
        english_only = not self.models.special_tokens.multilingual
        reason = "the model is English-only" if english_only else "the language was given"
        return (f"multilingual: {reason}; no other was looked for",)

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
        self, languages: Sequence[str | None], options: TranscriptionOptions
    ) -> tuple[bool, tuple[str, ...]]:
        """Whether anything drafts, and a warning where that was asked for and does not."""
        if not options.assisted:
            return False, ()
        assistant = self.models.assistant
        if assistant is None and self.models.medusa is None:
            return False, ("assisted: no assistant model is loaded; decoded without one",)
        if options.num_beams > 1:
            return False, ("assisted: beam search does not draft; decoded without the assistant",)
        only = None if assistant is None else assistant.only_language
        if only is not None and not {None, only}.issuperset(languages):
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


def _with_languages(chunks: Sequence[Chunk], timeline: LanguageTimeline) -> tuple[Chunk, ...]:
    """The chunks, and their words, with the language that each was decoded in."""
    labelled = []
    for chunk in chunks:
        code = timeline.language_at(round(chunk.start * SAMPLE_RATE))
        words = tuple(replace(word, language=code) for word in chunk.words)
        labelled.append(replace(chunk, words=words, language=code))
    return tuple(labelled)
