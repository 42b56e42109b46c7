"""From samples to a transcript: windows, language, decoding, and the chunks back on the clock of
the audio.

The one decision: this module holds the order of the steps; which windows exist is `schedule`'s
matter, how they are decoded is `engine`'s and what is kept of them is that of `chunks`, and each
can change without the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.languages import ENGLISH, language_code, language_name
from asr.checkpoint.loading import WhisperModels
from asr.engine.engine import DecodeEngine, DecodeOptions
from asr.engine.fallback import OPENAI, Fallback
from asr.engine.scheduler import Request
from asr.frontend.schedule import Schedule
from asr.frontend.vad import DetectSpeech, SpeechDetector
from asr.frontend.windows import Span
from asr.output.chunks import ChunkReader
from errors import InvalidParameter, Unsupported
from timebase import SAMPLE_RATE
from transcript import Chunk, Transcript

logger = logging.getLogger("endpoint")


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """What a request asks of speech recognition; `language` is a code or a name, None to detect it.

    `prompt` and `hotwords` are text that every window is told to have been said before it: for
    style and spelling.
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


@dataclass(frozen=True, slots=True)
class Language:
    """Whisper's code, and how sure detection was of it; None where it was given or there was
    nothing to hear.
    """

    code: str | None
    probability: float | None = None


class Transcriber:
    """Speech recognition with one set of models; safe to call from several threads."""

    def __init__(
        self,
        models: WhisperModels,
        fallback: Fallback | None = OPENAI,
        detect: DetectSpeech | None = None,
    ) -> None:
        self.models = models
        self.fallback = fallback
        self.detect = detect or SpeechDetector()
        self.decoder = DecodeEngine(models)

    def validate(self, options: TranscriptionOptions) -> None:
        """Refuse, before any audio is decoded, what this checkpoint cannot do.

        Raises InvalidParameter, or Unsupported for a prompt where the vocabulary has no place for
        one.
        """
        code = None if options.language is None else language_code(options.language)
        if options.language is not None and code is None:
            raise InvalidParameter(
                f"language: {options.language[:40]!r} is not a language Whisper knows"
            )
        vocabulary = self.models.special_tokens
        if vocabulary.start_of_previous is None and (options.prompt or options.hotwords):
            raise Unsupported(
                "prompt, hotwords: the model's vocabulary has no token that announces them"
            )
        if not vocabulary.multilingual:
            if code not in (None, ENGLISH):
                raise InvalidParameter("language: the model is English-only")
            if options.task != "transcribe":
                raise InvalidParameter("task: the model is English-only and cannot translate")
        elif code is not None and code not in vocabulary.languages:
            raise InvalidParameter(f"language: the model does not know {language_name(code)}")
        elif options.task not in vocabulary.tasks:
            raise InvalidParameter(f"task: the model cannot {options.task}")

    def transcribe(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        speech: Sequence[Span] | None = None,
    ) -> Transcript:
        """Transcribe `samples` (n,), mono at 16 kHz; chunk times in seconds from their start.

        `speech` are the spans in which somebody speaks, as `detect` finds them; found here where
        they are not given. Raises what `validate` raises, and OutOfMemory where the device cannot
        hold a batch of one window.
        """
        self.validate(options)
        seconds = min(options.chunk_length_s, self.models.window_seconds)
        schedule = Schedule(
            samples, self.detect(samples) if speech is None else speech, int(seconds * SAMPLE_RATE)
        )
        language = self._language(schedule, options)
        assisted, warnings = self._assistance(language.code, options)
        before, too_long = self._spoken_before(options)
        prompt = self.models.special_tokens.prompt(
            language.code, options.task, options.timestamps, before
        )
        decoding = DecodeOptions(
            options.timestamps, assisted, options.batch_size, self.fallback, words=options.words
        )
        written = ENGLISH if options.task == "translate" else language.code
        reader = ChunkReader(self.models, schedule, written, options.timestamps, options.words)
        chunks = self._decode_all(reader, prompt, decoding)
        return Transcript(chunks, language.code, warnings + too_long, language.probability)

    def _language(self, schedule: Schedule, options: TranscriptionOptions) -> Language:
        """The language asked for; else that of the first window with speech; None where all is
        silent.
        """
        if not self.models.special_tokens.multilingual:
            return Language(ENGLISH)
        if options.language is not None:
            return Language(language_code(options.language))
        first: Language | None = None
        for window in schedule.upcoming():
            heard = self.decoder.detect_language(schedule.hear(window))
            if heard.no_speech <= OPENAI.no_speech:
                return Language(heard.language, heard.probability)
            first = first or Language(heard.language, heard.probability)
        return first or Language(None)

    def _assistance(
        self, language: str | None, options: TranscriptionOptions
    ) -> tuple[bool, tuple[str, ...]]:
        """Whether an assistant drafts, and what to tell the client where one was asked for and does
        not.
        """
        if not options.assisted:
            return False, ()
        assistant = self.models.assistant
        if assistant is None:
            return False, ("assisted: no assistant model is loaded; decoded without one",)
        if assistant.only_language is not None and language not in (None, assistant.only_language):
            spoken = language_name(assistant.only_language)
            return False, (
                f"assisted: the assistant model knows {spoken} alone; decoded without it",
            )
        return True, ()

    def _spoken_before(
        self, options: TranscriptionOptions
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The hot words and the prompt as tokens, at most half of what a window may hold, and a
        warning if cut.

        As openai/whisper the prompt keeps its end; the words that are to be recognised come first
        and are cut last.
        """
        most = self.models.special_tokens.longest_previous
        hotwords = self._tokens(", ".join(options.hotwords))
        prompt = self._tokens(options.prompt)
        kept = hotwords[:most]
        kept += prompt[max(0, len(prompt) - (most - len(kept))) :]
        if len(kept) == len(hotwords) + len(prompt):
            return tuple(kept), ()
        return tuple(kept), (
            f"prompt, hotwords: {len(kept)} tokens fit beside the transcript; the rest is ignored",
        )

    def _tokens(self, text: str) -> list[int]:
        """Tokens of what a client wrote: names of special tokens in it are text like any other."""
        spoken = text.strip()
        if not spoken:
            return []
        tokens = self.models.tokenizer.encode(
            f" {spoken}", add_special_tokens=False, split_special_tokens=True
        )
        return [token for token in tokens if token < self.models.special_tokens.end_of_text]

    def _decode_all(
        self, reader: ChunkReader, prompt: tuple[int, ...], decoding: DecodeOptions
    ) -> tuple[Chunk, ...]:
        """Decode the schedule's windows as they become ready; each may leave a part to the next of
        its stretch.
        """

        def take(count: int) -> list[Request]:
            windows = reader.schedule.take(count)
            return [Request(window, reader.schedule.hear(window), prompt) for window in windows]

        chunks: list[Chunk] = []
        for passage, answer in self.decoder.decode(take, decoding):
            chunks += reader.read(passage.key, answer)
            done, total = reader.schedule.done, reader.schedule.total
            logger.info("window %d of %d", done, total, extra={"done": done, "total": total})
        return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))
