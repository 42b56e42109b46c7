"""One decoding of what a speaker has said so far, while they go on speaking.

A live transcript is made of passes over a growing buffer. Each pass decodes the whole buffer, as a
window of a file is decoded. Its text begins with the words that are final, and the previous pass's
guess of the rest is its draft. Word times come from the attention over the whole text, so the times
of final words may still move.

A pass has no fallback, because the next pass follows anyway, with more audio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asr.decoding_plan import Planner
from asr.engine.engine import DecodeEngine
from asr.engine.fallback import letter_compression_ratio
from asr.engine.prefill import LanguagePosterior
from asr.engine.request import DecodeResult, Request
from asr.language_timeline import LanguageTimeline
from asr.output.alignment import aligned_words
from asr.output.chunks import ChunkReader, holds_no_speech
from asr.output.segments import Segment, read_segments
from asr.recognition import Recognition, finished
from runtime.steps import give_way
from timebase import SAMPLE_RATE

# The most tokens a second, and a few more for timestamps: the fastest speech of real recordings has
# well below ten, so a longer text is a loop, which should not fill the KV cache.
MOST_TOKENS_A_SECOND, SPARE_TOKENS = 10, 16
# In some scripts a token is a part of a letter (173 letters of Georgian are 425 tokens): a second
# of speech always fits after the final words.
FEWEST_NEW = 48


@dataclass(frozen=True, slots=True)
class HypothesisWord:
    """A word as it is written, with the space before it and the punctuation around it.

    `start` and `end` are seconds from the buffer's start. `stop` counts the hypothesis' tokens up
    to the word's last one, timestamps included. `log_probs` are the natural logarithms of its own
    `tokens`, and `probability` is the mean over the spoken ones.
    """

    text: str
    start: float
    end: float
    probability: float
    stop: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The text of a pass; without words if there is probably no speech.

    `tokens` hold the text with its prefix and timestamps. `no_speech_prob` and `avg_logprob` are
    OpenAI's, `compression_ratio` is that of the letters. `language_probability` is None if the
    language was given.
    """

    tokens: tuple[int, ...]
    words: tuple[HypothesisWord, ...]
    no_speech_prob: float
    avg_logprob: float
    compression_ratio: float
    language: str | None
    language_probability: float | None


@dataclass(frozen=True, slots=True)
class Passage:
    """The input of a pass: `samples` (n,) at 16 kHz, one window. A `language` of None is detected.
    For `prefix` and `draft` see `asr.engine.request.Request`.
    """

    samples: NDArray[np.float32]
    language: str | None
    prefix: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def max_tokens(self) -> int:
        """Return the most tokens that its text may have."""
        spoken = math.ceil(self.seconds * MOST_TOKENS_A_SECOND) + SPARE_TOKENS
        return max(spoken, len(self.prefix) + FEWEST_NEW if self.prefix else 0)


class LivePass(Recognition[Hypothesis]):
    """A passage that is being decoded. A step raises ValueError for options that sample or ask for
    beams. The pass has no chunks, because its words are not final.
    """

    def __init__(self, engine: DecodeEngine, passage: Passage, planner: Planner) -> None:
        super().__init__(engine, planner)
        self._passage = passage

    @property
    def seconds(self) -> tuple[float, float]:
        return self._passage.seconds * self.windows_read, self._passage.seconds

    @property
    def windows_read(self) -> int:
        return int(self.result is not None)

    @property
    def windows_left(self) -> int:
        return 1 - self.windows_read

    async def _recognise(self) -> Hypothesis:
        passage, language = self._passage, self._passage.language
        frames = self._engine.context.encoder.part_of_window(passage.seconds)
        detected: LanguagePosterior | None = None
        if language is None:
            detected = self._engine.detect_language(passage.samples, frames)
            language = detected.language
            await give_way()
        plan = self._planner.plan(LanguageTimeline.single(language))
        options, own = replace(plan.options, fallback=None), plan.languages[language]
        if options.num_beams > 1 or options.temperature:
            raise ValueError("a live pass is decoded greedily")
        request = Request(
            passage,
            passage.samples,
            own.prompt,
            passage.max_tokens,
            detected and detected.encoded,
            once=True,
            prefix=passage.prefix,
            draft=passage.draft,
            frames=frames,
        )
        with self._engine.session(options) as self.session:
            self.session.add([request])
            ((_, result),) = await finished(self.session)
        return _read(result, passage, own.reader, language, detected)


def _read(
    result: DecodeResult,
    passage: Passage,
    reader: ChunkReader,
    language: str,
    detected: LanguagePosterior | None,
) -> Hypothesis:
    end_of_text = reader.models.special_tokens.end_of_text
    text = [token for token in result.tokens if token < end_of_text]
    return Hypothesis(
        result.tokens,
        () if holds_no_speech(result) else _words(result, passage, reader),
        result.no_speech_prob,
        result.avg_logprob,
        letter_compression_ratio(reader.models.text_of(text)),
        language,
        detected and detected.probability,
    )


def _words(
    result: DecodeResult, passage: Passage, reader: ChunkReader
) -> tuple[HypothesisWord, ...]:
    """Return the words of all segments, also of an unfinished one."""
    segments = [Segment(result.tokens, 0.0, passage.seconds)]
    if result.timestamps:
        begin = reader.models.special_tokens.timestamp_begin
        found = read_segments(result.tokens, begin, passage.seconds)
        segments = [*found.closed, *([found.unfinished] if found.unfinished else [])]
    aligned = aligned_words(result, segments, passage.samples, reader.models, reader.language)
    return tuple(
        HypothesisWord(
            each.word.text,
            each.word.start,
            each.word.end,
            each.word.probability or 0.0,
            each.places[-1] + 1,
            tuple(result.tokens[place] for place in each.places),
            tuple(result.log_probs[place] for place in each.places),
        )
        for each in aligned
    )
