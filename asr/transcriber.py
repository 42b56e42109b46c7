"""From samples to a transcript: windows, language, decoding, and the chunks back on the clock of the audio.

The one decision: this module holds the order of the steps and OpenAI's rules about what to keep; which windows exist
is `schedule`'s matter and how they are decoded is `engine`'s, and either can change without the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.batching import Decoded, Passage
from asr.engine import DecodeEngine, Manner
from asr.fallback import OPENAI, Fallback
from asr.languages import ENGLISH, language_code, language_name
from asr.loading import WhisperModels
from asr.schedule import Schedule, Window
from asr.segments import Segment, Segments, read_segments
from asr.windows import SAMPLE_RATE
from errors import InvalidParameter
from transcript import Chunk, Transcript

logger = logging.getLogger("endpoint")

NO_SPEECH = 0.6  # OpenAI's thresholds: a window this likely to hold no speech,
UNSURE = -1.0  # whose tokens are this unlikely on average, is dropped


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """What a request asks of speech recognition; `language` is a code or a name, None to detect it."""

    task: str = "transcribe"
    language: str | None = None
    batch_size: int = 24
    assisted: bool = False
    chunk_length_s: int = 30
    timestamps: bool = True


class Transcriber:
    """Speech recognition with one set of models; safe to call from several threads."""

    def __init__(self, models: WhisperModels, fallback: Fallback | None = OPENAI) -> None:
        self.models = models
        self.fallback = fallback
        self.decoder = DecodeEngine(models)

    def validate(self, options: TranscriptionOptions) -> None:
        """Refuse, before any audio is decoded, what this checkpoint cannot do. Raises InvalidParameter."""
        code = None if options.language is None else language_code(options.language)
        if options.language is not None and code is None:
            raise InvalidParameter(f"language: {options.language[:40]!r} is not a language Whisper knows")
        vocabulary = self.models.vocabulary
        if not vocabulary.multilingual:
            if code not in (None, ENGLISH):
                raise InvalidParameter("language: the model is English-only")
            if options.task != "transcribe":
                raise InvalidParameter("task: the model is English-only and cannot translate")
        elif code is not None and code not in vocabulary.languages:
            raise InvalidParameter(f"language: the model does not know {language_name(code)}")
        elif options.task not in vocabulary.tasks:
            raise InvalidParameter(f"task: the model cannot {options.task}")

    def transcribe(self, samples: NDArray[np.float32], options: TranscriptionOptions) -> Transcript:
        """Transcribe `samples` (n,), mono at 16 kHz; chunk times in seconds from their start.

        Raises what `validate` raises, and OutOfMemory where the device cannot hold a batch of one window.
        """
        self.validate(options)
        seconds = min(options.chunk_length_s, self.models.window_seconds)
        schedule = Schedule(samples, int(seconds * SAMPLE_RATE))
        language = self._language(samples, schedule, options)
        assisted, warnings = self._assistance(language, options)
        prompt = self.models.vocabulary.prompt(language, options.task, options.timestamps)
        manner = Manner(options.timestamps, assisted, options.batch_size, self.fallback)
        return Transcript(self._decode_all(samples, schedule, prompt, manner), language, warnings)

    def _language(self, samples: NDArray[np.float32], schedule: Schedule, options: TranscriptionOptions) -> str | None:
        """The language asked for; else that of the first window with speech; None where all is silent."""
        if not self.models.vocabulary.multilingual:
            return ENGLISH
        if options.language is not None:
            return language_code(options.language)
        first: str | None = None
        for window in schedule.upcoming():
            language, no_speech = self.decoder.detect_language(samples[window.start : window.stop])
            if no_speech <= NO_SPEECH:
                return language
            first = first or language
        return first

    def _assistance(self, language: str | None, options: TranscriptionOptions) -> tuple[bool, tuple[str, ...]]:
        """Whether an assistant drafts, and what to tell the client where one was asked for and does not."""
        if not options.assisted:
            return False, ()
        assistant = self.models.assistant
        if assistant is None:
            return False, ("assisted: no assistant model is loaded; decoded without one",)
        if assistant.only_language is not None and language not in (None, assistant.only_language):
            spoken = language_name(assistant.only_language)
            return False, (f"assisted: the assistant model knows {spoken} alone; decoded without it",)
        return True, ()

    def _decode_all(
        self, samples: NDArray[np.float32], schedule: Schedule, prompt: tuple[int, ...], manner: Manner
    ) -> tuple[Chunk, ...]:
        """Decode the schedule's windows as they become ready; each may leave a part to the next of its stretch."""

        def take(count: int) -> list[Passage]:
            windows = schedule.take(count)
            return [Passage(window, samples[window.start : window.stop], prompt) for window in windows]

        chunks: list[Chunk] = []
        for passage, answer in self.decoder.decode(take, manner):
            chunks += self._chunks(schedule, passage.key, answer, manner.timestamps)
            done, total = schedule.done, schedule.total
            logger.info("window %d of %d", done, total, extra={"done": done, "total": total})
        return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))

    def _chunks(self, schedule: Schedule, window: Window, answer: Decoded, timestamps: bool) -> list[Chunk]:
        """One window's chunks, after telling the schedule how far it was understood."""
        if answer.no_speech > NO_SPEECH and answer.mean_log_probability < UNSURE:
            schedule.finish(window)
            return []
        if not timestamps:
            schedule.finish(window)
            return self._texts(window, [Segment(answer.tokens, 0.0, window.seconds)])
        heard = read_segments(answer.tokens, self.models.vocabulary.timestamp_begin, window.seconds)
        return self._texts(window, self._kept(schedule, window, heard))

    def _kept(self, schedule: Schedule, window: Window, heard: Segments) -> list[Segment]:
        if heard.unfinished is None:
            schedule.finish(window)
            return list(heard.closed)
        again = schedule.finish(window, window.start + round(heard.unfinished.start * SAMPLE_RATE))
        return list(heard.closed) if again else [*heard.closed, heard.unfinished]

    def _texts(self, window: Window, segments: Sequence[Segment]) -> list[Chunk]:
        """Segments as chunks; an instantaneous one was not heard but made up, and is left out as OpenAI does."""
        offset = window.start / SAMPLE_RATE
        texts = [self._text(segment) for segment in segments]
        return [
            Chunk(text, offset + segment.start, offset + segment.end)
            for text, segment in zip(texts, segments, strict=True)
            if text.strip() and segment.end > segment.start
        ]

    def _text(self, segment: Segment) -> str:
        end_of_text = self.models.vocabulary.end_of_text
        return str(self.models.tokenizer.decode([token for token in segment.tokens if token < end_of_text]))
