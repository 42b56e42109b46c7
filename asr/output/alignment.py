"""When each word was said: the words of a window's segments, timed by where the decoder listened
and what is heard.

The attention of a token rises over the sound it stands for, so words are laid along the window on
the path that collects most of it (dynamic time warping, as in openai/whisper's `timing.py`).
Attention says little about silence, though: laid out alone, words take every pause as well, and
most often it is the word after it that grows.

The one decision: pauses are part of the path. Before each word and after the last stands a pause
that may be passed in no time; it gains in quiet frames and loses in loud ones, and so it takes the
silence that words would be stretched over. No rule about words that are too long is needed.
Whisper's own timestamps only bound where its words may lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.request import DecodeResult
from asr.output.dtw import dtw
from asr.output.segments import Segment
from asr.output.words import WordTokens, split_words
from timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from transcript import Word

MOMENTS = 100  # a second; loudness is measured finer than attention
SLACK = 0.5  # seconds by which words may leave their segment's timestamps; openai/whisper's limit
PAUSE_GAIN = 1.0  # of a quiet frame, in deviations of the attention; a loud one costs as much
FORBIDDEN = -1000.0  # for a frame outside the segment, and for a token without a frame
PAUSE = -1  # the row of the pause, behind all tokens'
SPEECH_PERCENTILE, FLOOR_PERCENTILE = 98, 10
MOST_RANGE = 40.0  # dB below speech; what lies deeper is as silent as can be
QUIET_SHARE = 0.25  # of the decibels between the floor and speech


class Placed(NamedTuple):
    """A word of a segment, the rows of the attention that its tokens have, and the frames it must
    lie in.
    """

    segment: int
    word: WordTokens
    rows: NDArray[np.intp]
    earliest: int
    latest: int


def timed_words(
    result: DecodeResult,
    segments: Sequence[Segment],
    samples: NDArray[np.float32],
    models: WhisperModels,
    language: str | None,
) -> list[tuple[Word, ...]]:
    """The words of each segment of a window, in seconds from the window's beginning; joined, they
    are its text.

    `result` was decoded with `DecodeOptions(words=True)`, `segments` are the first of those read
    from it, `samples` (n,) at 16 kHz those it was decoded from, or fewer where the rest will be
    heard again; `language` is the code of what it is written in. Starts never fall, no word ends
    before it starts or after the next begins, and all lie within the samples. A word's probability
    is the mean over its spoken tokens.
    """
    placed = _place(result, segments, models, language)
    words: list[list[Word]] = [[] for _ in segments]
    if result.attention is None or not placed:
        return [() for _ in segments]
    quiet = quiet_moments(samples, 2 * result.attention.shape[1])
    seconds, probability = len(samples) / SAMPLE_RATE, np.exp(result.log_probs)
    lines = np.vstack([result.attention, pause_gain(quiet, segments)])
    for each, span in zip(placed, _spans(lines, placed), strict=True):
        start, end = (min(moment / MOMENTS, seconds) for moment in _heard(span, quiet))
        spoken = each.rows[each.word.spoken : each.word.silent]
        words[each.segment].append(
            Word(each.word.text, start, end, probability=float(probability[spoken].mean()))
        )
    return [tuple(each) for each in words]


def quiet_moments(samples: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Which of the first `count` stretches of 10 ms hold no speech, (count,), judged by the
    window's own loudness.

    What is loud is the window's speech, what is softest its background; quiet is the lowest
    quarter, in decibels, between the two; in a window without background that is 30 dB below its
    speech. Beyond the samples all is quiet.
    """
    size = SAMPLE_RATE // MOMENTS
    whole = samples[: min(len(samples) // size, count) * size].reshape(-1, size)
    quiet = np.ones(count, bool)
    if len(whole):
        level = 10 * np.log10(np.square(whole).mean(axis=1) + 1e-12)
        speech = np.percentile(level, SPEECH_PERCENTILE)
        floor = max(np.percentile(level, FLOOR_PERCENTILE), speech - MOST_RANGE)
        quiet[: len(whole)] = level < floor + QUIET_SHARE * (speech - floor)
    return quiet


def pause_gain(quiet: NDArray[np.bool_], segments: Sequence[Segment]) -> NDArray[np.float32]:
    """What each frame is worth to a pause, (frames,): quiet ones gain, loud ones lose.

    Outside all segments loud ones gain as well: somebody may speak there whose words are not among
    these. A word that is clearly attended to goes there all the same; over another voice that is
    often where it was said, for Whisper's timestamps cannot step back.
    """
    gain = np.full(len(quiet) // 2, PAUSE_GAIN, np.float32)
    for segment in segments:
        gain[
            round(segment.start * TOKENS_PER_SECOND) : round(segment.end * TOKENS_PER_SECOND)
        ] = -PAUSE_GAIN
    gain[quiet.reshape(-1, 2).all(axis=1)] = PAUSE_GAIN
    return gain


def _place(
    result: DecodeResult, segments: Sequence[Segment], models: WhisperModels, language: str | None
) -> list[Placed]:
    """Every word of the window, in order."""
    end_of_text, decode = models.special_tokens.end_of_text, models.tokenizer.decode
    rows = np.flatnonzero(np.array(result.tokens) < end_of_text)
    placed: list[Placed] = []
    for number, segment in enumerate(segments):
        text = [token for token in segment.tokens if token < end_of_text]
        earliest = max(0, round((segment.start - SLACK) * TOKENS_PER_SECOND))
        latest = round((segment.end + SLACK) * TOKENS_PER_SECOND)
        for word in split_words(text, lambda tokens: str(decode(tokens)), language):
            placed.append(Placed(number, word, rows[word.first : word.stop], earliest, latest))
        rows = rows[len(text) :]
    return placed


def _spans(lines: NDArray[np.float32], placed: Sequence[Placed]) -> list[tuple[int, int]]:
    """The moments from which to which the spoken tokens of each word lie on the best path.

    `lines` (tokens + 1, frames) are what tokens gain from each frame, and last what a pause gains.
    """
    order = np.concatenate([*([PAUSE, *each.rows] for each in placed), [PAUSE]])
    gain = lines[order]
    first, spoken = 1, list[tuple[int, int]]()
    for each in placed:
        lines_of_word = gain[first : first + len(each.rows)]
        lines_of_word[:, : each.earliest] += FORBIDDEN
        lines_of_word[:, each.latest :] += FORBIDDEN
        spoken.append((first + each.word.spoken, first + each.word.silent))
        first += len(each.rows) + 1
    edges = 2 * dtw(gain, np.where(order == PAUSE, 0.0, FORBIDDEN))
    return [(int(edges[first]), int(edges[stop])) for first, stop in spoken]


def _heard(span: tuple[int, int], quiet: NDArray[np.bool_]) -> tuple[int, int]:
    """`span` from its first loud moment to its last; as it is where none is."""
    loud = np.flatnonzero(~quiet[slice(*span)])
    return (span[0] + int(loud[0]), span[0] + int(loud[-1]) + 1) if len(loud) else span
