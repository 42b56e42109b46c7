"""One decoding of a live buffer, while its speaker is still speaking.

Each pass decodes the whole growing buffer, as a window of a file is decoded. Its text begins with
the words that are final, and the previous pass's guess of the rest is its draft. A pass has no
fallback, and no hot words, because the next pass follows anyway, with more audio.
"""

import math
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.decoding_plan import Planner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import letter_compression_ratio
from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.engine.request import Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.language_timeline import LanguageTimeline
from whosaid.asr.output.alignment import aligned_words
from whosaid.asr.output.chunks import ChunkReader, holds_no_speech
from whosaid.asr.output.segments import Segment, read_segments
from whosaid.asr.recognition import Recognition, finished
from whosaid.scheduling.steps import give_way
from whosaid.timebase import SAMPLE_RATE

# The most tokens a second, and a few more for timestamps: the fastest speech of real recordings has
# well below ten, so a longer text is a loop, which should not fill the KV cache.
MOST_TOKENS_A_SECOND, SPARE_TOKENS = 10, 16
# A second of speech always fits after the final words, also if a token is a part of a letter, as in
# some scripts (173 letters of Georgian are 425 tokens).
FEWEST_NEW = 48


@dataclass(frozen=True, slots=True)
class HypothesisWord:
    """A word as it is written, with the space before it and the punctuation around it.

    `start` and `end` are seconds from the buffer's start. `stop` counts the hypothesis' tokens up
    to the word's end, timestamps included. `log_probs` are the natural log-probabilities of the
    word's `tokens`, and `probability` is the mean over the spoken tokens.
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

    `tokens` hold the text with its prefix and timestamps. `compression_ratio` is that of the
    letters (`letter_compression_ratio`).
    """

    tokens: tuple[int, ...]
    words: tuple[HypothesisWord, ...]
    compression_ratio: float
    language: str | None


class LivePass(Recognition[Hypothesis]):
    """Decodes one window, `samples` (n,) at 16 kHz, in the planner's language, else the likeliest.

    `prefix` and `draft` are those of `asr.engine.request.Request`. A step raises ValueError for
    options that sample or ask for beams. The pass has no chunks, because its words are not final.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        planner: Planner,
        samples: NDArray[np.float32],
        prefix: tuple[int, ...] = (),
        draft: tuple[int, ...] = (),
    ) -> None:
        super().__init__(engine, planner)
        self._samples, self._prefix, self._draft = samples, prefix, draft
        self._length = len(samples) / SAMPLE_RATE

    @property
    def seconds(self) -> tuple[float, float]:
        return self._length * self.windows_read, self._length

    @property
    def windows_read(self) -> int:
        return int(self.result is not None)

    @property
    def windows_left(self) -> int:
        return 1 - self.windows_read

    async def _recognise(self) -> Hypothesis:
        samples, language = self._samples, self._planner.options.language
        frames = self._engine.context.encoder.part_of_window(self._length)
        detected: LanguagePosterior | None = None
        if language is None:
            detected = self._engine.detect_language(samples, frames)
            language = detected.language
            await give_way()
        plan = self._planner.plan(LanguageTimeline.single(language))
        options = replace(plan.options, fallback=None, proposer=None)
        own = plan.languages[language]
        if options.num_beams > 1 or options.temperature:
            raise ValueError("a live pass is decoded greedily")
        request = Request(
            None,
            samples,
            own.prompt,
            self._max_tokens(),
            detected and detected.encoded,
            once=True,
            prefix=self._prefix,
            draft=self._draft,
            frames=frames,
        )
        with self._engine.session(options) as self.session:
            self.session.add([request])
            ((_, result),) = await finished(self.session)
        return self._read(result, own.reader, language)

    def _max_tokens(self) -> int:
        spoken = math.ceil(self._length * MOST_TOKENS_A_SECOND) + SPARE_TOKENS
        return max(spoken, len(self._prefix) + FEWEST_NEW if self._prefix else 0)

    def _read(self, result: DecodeResult, reader: ChunkReader, language: str) -> Hypothesis:
        end_of_text = reader.models.special_tokens.end_of_text
        text = [token for token in result.tokens if token < end_of_text]
        return Hypothesis(
            result.tokens,
            () if holds_no_speech(result) else _words(result, self._samples, reader),
            letter_compression_ratio(reader.models.text_of(text)),
            language,
        )


def _words(
    result: DecodeResult, samples: NDArray[np.float32], reader: ChunkReader
) -> tuple[HypothesisWord, ...]:
    seconds = len(samples) / SAMPLE_RATE
    segments: tuple[Segment, ...] = (Segment(result.tokens, 0.0, seconds),)
    if result.timestamps:
        begin = reader.models.special_tokens.timestamp_begin
        closed, unfinished = read_segments(result.tokens, begin, seconds)
        segments = closed + unfinished
    aligned = aligned_words(result, segments, samples, reader.models, reader.language)
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
        for each in chain.from_iterable(aligned)
    )
