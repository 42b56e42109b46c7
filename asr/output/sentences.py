"""Splits text that was decoded without timestamps into sentences, timed by attention.

Not every model writes punctuation, so a long pause ends a sentence too.

A sentence becomes a segment like those that Whisper's timestamps make, so that nothing after this
module knows which of the two gave the times. Each begins with its first word and ends with its
last. A loop's first part, which is all that is kept of one, ends the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.request import DecodeResult
from asr.output.alignment import timed_words
from asr.output.segments import Segment
from asr.output.words import split_words
from timebase import TIME_PRECISION
from transcript import Word, sentence_ends_between

PAUSE = 1.0  # seconds; a speaker who draws breath takes less


def split_sentences(
    result: DecodeResult,
    segments: Sequence[Segment],
    samples: NDArray[np.float32],
    models: WhisperModels,
    language: str | None,
) -> list[Segment]:
    """The segments of a window, cut after every sentence and in long pauses, no longer than their
    words.

    `result` holds attention; `samples` (n,) at 16 kHz are the window's; times are in seconds from
    its beginning. A segment without words stays as it is.
    """
    end_of_text = models.special_tokens.end_of_text

    found: list[Segment] = []
    timed = timed_words(result, segments, samples, models, language)
    for segment, words in zip(segments, timed, strict=True):
        tokens = tuple(token for token in segment.tokens if token < end_of_text)
        if not words:
            found.append(segment)
            continue
        parts = split_words(tokens, models.text_of, language)
        first = 0
        for number, (word, part) in enumerate(zip(words, parts, strict=True)):
            if _ends(word, words[number + 1] if number + 1 < len(words) else None):
                begin, start = parts[first].first, words[first].start
                end = max(word.end, start + TIME_PRECISION)
                found.append(Segment(tokens[begin : part.stop], start, end))
                first = number + 1
    return found


def _ends(word: Word, following: Word | None) -> bool:
    """Whether a sentence ends with `word`; None follows the last."""
    if following is None or following.start - word.end >= PAUSE:
        return True
    return sentence_ends_between(word, following)
