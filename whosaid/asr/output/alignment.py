"""Times the words of a window's segments by attention and loudness.

Words are laid along the window on the path that collects the most cross-attention of their tokens
(dynamic time warping, as in openai/whisper's `timing.py`). Attention says little about silence, so
pauses are on the path too, before each word and after the last, perhaps of no duration. A pause
gains in quiet frames and loses in loud ones. Whisper's own timestamps only bound the words.

Not every loud frame is a word: there is breath, "uh", a lengthened vowel, or speech without words.
A word therefore begins with the rise of its first token's attention, and ends soon after the fall
of its last token's, or goes on while it is loud before a gap, because attention falls before the
sound does. docs/benchmarks/word-times.md has the errors.

Attention has frames of 20 ms, loudness has steps of 10 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.output.segments import AlignedWord, Segment
from whosaid.asr.output.words import WordTokens, split_words
from whosaid.timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from whosaid.transcript import Word

STEPS_PER_SECOND = 2 * TOKENS_PER_SECOND  # of loudness
SLACK = 0.5  # seconds by which a word may leave its segment's timestamps, as in openai/whisper
# Attention has risen, and has not fallen, where it has these shares of its highest value in a word.
# The word begins at most EARLIER steps before the rise, and ends at most LATER after the fall.
RISEN, FALLEN, EARLIER, LATER = 0.7, 0.5, 3, 30
# Before a gap a word grows by at most GROWTH loud steps, and by FADING. A longer quiet than HOLE,
# which is a plosive's, ends a word.
GROWTH, HOLE, FADING = 20, 12, 2
LAG = 1  # step by which attention changes too early between words that touch
SHORTEST_WORD = 2  # steps, which these rules leave to a word
PAUSE_GAIN = 1.0  # standard deviations of attention; a quiet frame gains it, a loud one loses it
FORBIDDEN = -1000.0  # gain of a frame far outside the segment, and of a token without a frame
PAUSE = -1  # the row of the gain that belongs to pauses, after the rows of all tokens
SPEECH_PERCENTILE, FLOOR_PERCENTILE = 98, 10
LAST_TOKENS = 8  # their attention shows how far a text came; a single token may miss
MAX_RANGE = 40.0  # dB below speech; anything lower counts as silence
QUIET_SHARE = 0.1  # of the decibels between the floor and speech


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

    @property
    def spoken(self) -> NDArray[np.intp]:
        return self.rows[self.tokens.spoken : self.tokens.silent]


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
    gain = np.vstack([result.attention, pause_gain(quiet)])
    seconds, probability = len(samples) / SAMPLE_RATE, np.exp(result.log_probs)
    spans = _align(gain, to_align)
    for number, word in enumerate(to_align):
        span = _trim(*spans[number], quiet)
        spans[number] = _near_attention(*span, result.attention[word.spoken], quiet)
    for word, (first, stop) in zip(to_align, _grow(spans, quiet), strict=True):
        start, end = min(first / STEPS_PER_SECOND, seconds), min(stop / STEPS_PER_SECOND, seconds)
        certainty = float(probability[word.spoken].mean())
        heard = _decoded(result, word.rows, models)
        timed = Word(word.tokens.text, start, end, probability=certainty, heard=heard)
        found[word.segment].append(AlignedWord(timed, tuple(word.rows.tolist())))
    return found


def _decoded(result: DecodeResult, places: NDArray[np.intp], models: WhisperModels) -> str | None:
    """Return the text that was decoded in place of the tokens `places`; None if it stayed."""
    for start, stop, decoded in result.replaced:
        if start <= places[-1] and places[0] < stop:
            return models.text_of(decoded).strip()
    return None


def spoken_until(result: DecodeResult) -> float:
    """Return about when the last word was spoken, in seconds: the last tokens' median peak."""
    assert result.attention is not None
    peaks = result.attention[-LAST_TOKENS:].argmax(axis=1)
    return float(np.median(peaks) + 1) / TOKENS_PER_SECOND


def quiet_steps(samples: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Return which of the first `count` steps of 10 ms hold no speech, (count,).

    The measure is the window's own loudness. Speech has the level of the loudest steps. The floor
    has that of the softest steps, at most 40 dB below. The lowest tenth between the two, in
    decibels, is quiet: without background noise, everything 36 dB below speech. Steps beyond the
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


def pause_gain(quiet: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return a pause's gain from each frame, (frames,): positive if quiet, negative if loud."""
    return np.where(quiet.reshape(-1, 2).all(axis=1), PAUSE_GAIN, -PAUSE_GAIN).astype(np.float32)


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
    """Return the first step and the stop of each word's spoken tokens on the best path of pause,
    word, ..., pause. `gain` (tokens + 1, frames) is each token's gain, its last row for pauses.
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


def _near_attention(
    first: int, stop: int, attention: NDArray[np.float32], quiet: NDArray[np.bool_]
) -> tuple[int, int]:
    """Return the part of a word's steps that is near its `attention` (tokens, frames)."""
    if stop - first <= SHORTEST_WORD:
        return first, stop
    frame = first // 2
    part = attention[[0, -1], frame : -(-stop // 2)]
    peak = part.max(axis=1)
    rise = 2 * (frame + int(np.argmax(part[0] >= min(RISEN * peak[0], peak[0]))))
    fallen = np.flatnonzero(part[1] >= min(FALLEN * peak[1], peak[1]))[-1] + 1
    fall = min(2 * (frame + int(fallen)), stop)
    first = max(first, min(rise - EARLIER, stop - SHORTEST_WORD))
    return first, max(first + SHORTEST_WORD, _loud_until(fall, min(stop, fall + LATER), quiet))


def _grow(spans: Sequence[tuple[int, int]], quiet: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Let each word before a gap go on while it is loud; move boundaries of words that touch."""
    starts, stops = np.array(spans).T
    for number, following in enumerate([*starts[1:], len(quiet)]):
        stop = stops[number]
        last = _loud_until(stop, min(following, stop + GROWTH), quiet)
        stops[number] = max(stop, min(following, last + FADING))
    touching = starts[1:] == stops[:-1]
    boundaries = np.maximum(starts, np.minimum(starts + LAG, stops - SHORTEST_WORD))[1:]
    starts[1:] = np.where(touching, boundaries, starts[1:])
    stops[:-1] = np.where(touching, boundaries, stops[:-1])
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _loud_until(step: int, stop: int, quiet: NDArray[np.bool_]) -> int:
    """Return the end of the loud steps between `step` and `stop`; `step` if it begins a pause."""
    loud = np.flatnonzero(~quiet[step:stop])
    joined = loud[np.cumsum(np.diff(loud, prepend=-1) > HOLE) == 0]
    return step + int(joined[-1]) + 1 if len(joined) else step


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
