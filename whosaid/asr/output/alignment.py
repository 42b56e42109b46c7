"""Times the words of a window's segments by attention and loudness.

A token's cross-attention is high over the sound that the token stands for, so words are laid along
the window on the path that collects the most attention (dynamic time warping, as in
openai/whisper's `timing.py`). Attention says little about silence, though: if words alone are on
the path, they also take every pause, and mostly the word after the pause grows.

Therefore pauses are on the path too. Before each word and after the last there is a pause, possibly
of no duration. A pause gains in quiet frames and loses in loud ones, so it takes the silence over
which words would otherwise be stretched. Whisper's own timestamps only bound the words of a
segment. Speech without words, as after a text that ends too early, is loud. A word of more than two
seconds is therefore limited to the speech around the peak of its attention.

Two grids are used: attention has frames of 20 ms, loudness has steps of 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.request import DecodeResult
from whosaid.asr.output.segments import Segment
from whosaid.asr.output.words import WordTokens, split_words
from whosaid.timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from whosaid.transcript import Word

STEPS_PER_SECOND = 2 * TOKENS_PER_SECOND  # of loudness
SLACK = 0.5  # seconds by which a word may leave its segment's timestamps, as in openai/whisper
LONGEST_WORD = 2 * STEPS_PER_SECOND  # a longer word is limited to speech near its peak
WORD_PAUSE = 3 * STEPS_PER_SECOND // 10  # a word ends before a quiet this long
PAUSE_GAIN = 1.0  # standard deviations of attention; a quiet frame gains it, a loud one loses it
FORBIDDEN = -1000.0  # gain of a frame far outside the segment, and of a token without a frame
PAUSE = -1  # the row of the gain that belongs to pauses, after the rows of all tokens
SPEECH_PERCENTILE, FLOOR_PERCENTILE = 98, 10
LAST_TOKENS = 8  # their attention shows how far a text came; a single token may miss
MAX_RANGE = 40.0  # dB below speech; anything lower counts as silence
QUIET_SHARE = 0.25  # of the decibels between the floor and speech


@dataclass(frozen=True, slots=True)
class WordToAlign:
    """A word of segment number `segment`; `rows` are its tokens' rows of the attention.

    The word must lie between the frames `earliest` and `latest`.
    """

    segment: int
    tokens: WordTokens
    rows: NDArray[np.intp]
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word in seconds from the window's beginning; `places` index its tokens in the text."""

    word: Word
    places: tuple[int, ...]


def aligned_words(
    result: DecodeResult,
    segments: Sequence[Segment],
    samples: NDArray[np.float32],
    models: WhisperModels,
    language: str | None,
) -> list[list[AlignedWord]]:
    """Return the words of each segment of a window; none if `result` holds no attention.

    `segments` are the first segments of `result`. `samples` (n,) at 16 kHz are the window's, or
    only its beginning if the rest will be decoded again. `language` is the code of the text's
    language. Joined, the words are the text. No word starts before the previous one ends, and none
    ends after the samples. A word's probability is the mean over its spoken tokens.
    """
    found: list[list[AlignedWord]] = [[] for _ in segments]
    to_align = _words_to_align(result, segments, models, language)
    if result.attention is None or not to_align:
        return found
    quiet = quiet_steps(samples, 2 * result.attention.shape[1])
    gain = np.vstack([result.attention, pause_gain(quiet, segments)])
    seconds, probability = len(samples) / SAMPLE_RATE, np.exp(result.log_probs)
    for word, (first, stop) in zip(to_align, _align(gain, to_align), strict=True):
        spoken = word.rows[word.tokens.spoken : word.tokens.silent]
        first, stop = _trim(first, stop, quiet)
        if stop - first > LONGEST_WORD:
            first, stop = _bound(first, stop, gain[spoken].sum(axis=0), quiet)
        start, end = min(first / STEPS_PER_SECOND, seconds), min(stop / STEPS_PER_SECOND, seconds)
        certainty = float(probability[spoken].mean())
        timed = Word(word.tokens.text, start, end, probability=certainty)
        found[word.segment].append(AlignedWord(timed, tuple(word.rows.tolist())))
    return found


def spoken_until(result: DecodeResult) -> float:
    """Estimate when the last word was spoken, in seconds from the window's beginning.

    The estimate is the median peak of the last tokens' attention, which `result` must hold.
    """
    assert result.attention is not None
    peaks = result.attention[-LAST_TOKENS:].argmax(axis=1)
    return float(np.median(peaks) + 1) / TOKENS_PER_SECOND


def quiet_steps(samples: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Return which of the first `count` steps of 10 ms hold no speech, (count,).

    The measure is the window's own loudness. Speech has the level of the loudest steps. The floor
    has that of the softest steps, at most 40 dB below. The lowest quarter between the two, in
    decibels, is quiet: without background noise, everything 30 dB below speech. Steps beyond the
    samples are quiet.
    """
    size = SAMPLE_RATE // STEPS_PER_SECOND
    whole = samples[: min(len(samples) // size, count) * size].reshape(-1, size)
    quiet = np.ones(count, bool)
    if len(whole):
        level = 10 * np.log10(np.square(whole).mean(axis=1) + 1e-12)
        speech = np.percentile(level, SPEECH_PERCENTILE)
        floor = max(np.percentile(level, FLOOR_PERCENTILE), speech - MAX_RANGE)
        quiet[: len(whole)] = level < floor + QUIET_SHARE * (speech - floor)
    return quiet


def pause_gain(quiet: NDArray[np.bool_], segments: Sequence[Segment]) -> NDArray[np.float32]:
    """Return a pause's gain from each frame, (frames,): positive if quiet, negative if loud.

    Outside all segments loud frames are positive too: they may hold another speaker, whose words
    are not in the text. A word with strong attention there is still placed there. That is often
    correct when two people speak at once, because Whisper's timestamps never go back.
    """
    gain = np.full(len(quiet) // 2, PAUSE_GAIN, np.float32)
    for segment in segments:
        first, stop = _frame(segment.start), _frame(segment.end)
        gain[first:stop] = -PAUSE_GAIN
    gain[quiet.reshape(-1, 2).all(axis=1)] = PAUSE_GAIN
    return gain


def _frame(seconds: float) -> int:
    return round(seconds * TOKENS_PER_SECOND)


def _words_to_align(
    result: DecodeResult, segments: Sequence[Segment], models: WhisperModels, language: str | None
) -> list[WordToAlign]:
    special = models.special_tokens
    # The rows of the remaining text tokens.
    rows = np.flatnonzero(np.array(result.tokens) < special.end_of_text)
    found: list[WordToAlign] = []
    for number, segment in enumerate(segments):
        text = special.text_tokens(segment.tokens)
        earliest, latest = max(0, _frame(segment.start - SLACK)), _frame(segment.end + SLACK)
        for word in split_words(text, models.text_of, language):
            found.append(WordToAlign(number, word, rows[word.first : word.stop], earliest, latest))
        rows = rows[len(text) :]
    return found


def _align(gain: NDArray[np.float32], words: Sequence[WordToAlign]) -> list[tuple[int, int]]:
    """Return the first step and the stop of each word's spoken tokens on the best path.

    `gain` (tokens + 1, frames) is each token's gain from each frame; its last row is for pauses.
    The rows of the path are pause, word, pause, word, ..., pause.
    """
    order = [PAUSE]
    for word in words:
        order += [*word.rows.tolist(), PAUSE]
    path_gain = gain[order]
    first, spoken = 1, list[tuple[int, int]]()
    for word in words:
        rows_of_word = path_gain[first : first + len(word.rows)]
        rows_of_word[:, : word.earliest] += FORBIDDEN
        rows_of_word[:, word.latest :] += FORBIDDEN
        spoken.append((first + word.tokens.spoken, first + word.tokens.silent))
        first += len(word.rows) + 1
    empty = np.where(np.array(order) == PAUSE, 0.0, FORBIDDEN)
    edges = 2 * dtw(path_gain, empty)  # steps are half as long as frames
    return [(int(edges[first]), int(edges[stop])) for first, stop in spoken]


def _bound(
    first: int, stop: int, attention: NDArray[np.float32], quiet: NDArray[np.bool_]
) -> tuple[int, int]:
    """Return the part of a long word that lies in the speech around the peak of its attention.

    The word has steps `first` to `stop`, the part at most LONGEST_WORD; `attention` is (frames,).
    Words of a translation do not follow the speech in order, and the last word of a text that ends
    too early gets the rest of the window: the path then stretches one word over sentences.
    """
    peak = first + int(np.argmax(np.repeat(attention, 2)[first:stop]))
    pauses = first + np.flatnonzero(
        np.convolve(quiet[first:stop], np.ones(WORD_PAUSE), "valid") == WORD_PAUSE
    )
    before, after = pauses[pauses + WORD_PAUSE <= peak], pauses[pauses > peak]
    first = max(first, *(before[-1:] + WORD_PAUSE), peak - LONGEST_WORD // 2)
    stop = min(stop, *after[:1], first + LONGEST_WORD)
    return _trim(int(first), int(stop), quiet)


def _trim(first: int, stop: int, quiet: NDArray[np.bool_]) -> tuple[int, int]:
    """Drop the quiet steps at either end of `first` to `stop`, unless all are quiet."""
    loud = np.flatnonzero(~quiet[first:stop])
    return (first + int(loud[0]), first + int(loud[-1]) + 1) if len(loud) else (first, stop)


def dtw(gain: NDArray[np.float32], empty: NDArray[np.float32]) -> NDArray[np.intp]:
    """Assign the columns of `gain` (rows, columns) to its rows, in order, for the most gain.

    Row r gets columns edges[r] to edges[r + 1] of the answer (rows + 1,) and gains their sum; a row
    without columns gains `empty[r]`. Unlike in openai/whisper's `dtw`, a column counts for one row
    only: shared columns would move the start of every row forward.

    Each iteration handles a whole row. If row r ends before column j and began at k < j, it gained
    sums[r, j] - sums[r, k]; the best k for every j is therefore a running maximum.
    """
    rows, columns = gain.shape
    sums = np.zeros((rows, columns + 1))
    np.cumsum(gain, axis=1, out=sums[:, 1:])
    total = np.full((rows + 1, columns + 1), -np.inf)  # the most the first rows gain up to a column
    total[0, 0] = 0.0
    for row in range(rows):
        best = np.maximum.accumulate(total[row] - sums[row])
        total[row + 1] = total[row] + empty[row]
        np.maximum(total[row + 1, 1:], sums[row, 1:] + best[:-1], out=total[row + 1, 1:])
    edges = np.full(rows + 1, columns)
    for row in reversed(range(rows)):
        end = edges[row + 1]
        before = total[row, :end] - sums[row, :end]
        begin = int(np.argmax(before)) if end else 0
        has_columns = end and sums[row, end] + before[begin] == total[row + 1, end]
        edges[row] = begin if has_columns else end
    return edges
