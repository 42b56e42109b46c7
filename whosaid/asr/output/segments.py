"""Splits one window's tokens into segments: at Whisper's timestamps, or into sentences.

    <|0.00|> good morning <|1.20|><|1.80|> how are you <|2.90|><|2.90|> i wo
    two closed segments, then an unfinished one

An unfinished segment is returned separately; the schedule of windows decides whether it is decoded
again with the next window. The rules are those of openai/whisper's `transcribe.py`.

Text without timestamps is split into sentences, timed by their words. Not every model writes
punctuation, so a long pause ends a sentence too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.timebase import TIME_PRECISION
from whosaid.transcript import Word, sentence_ends_between

SENTENCE_PAUSE = 1.0  # seconds; drawing breath takes less


@dataclass(frozen=True, slots=True)
class Segment:
    """Text tokens spoken from `start` to `end`, in seconds from the window's beginning."""

    tokens: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word in seconds from the window's beginning; `places` index its tokens in the text."""

    word: Word
    places: tuple[int, ...]


def read_segments(
    tokens: Sequence[int], timestamp_begin: int, seconds: float
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Split the tokens of a window `seconds` long at its timestamps, clipped to the window's end.
    Return the closed segments, and at most one unfinished one from their end to the window's end.

    Tokens from `timestamp_begin` on are timestamps. If no segment is closed, the window's end
    closes the text: there is no point from which to decode again.
    """
    closed: list[Segment] = []
    start, text = 0.0, list[int]()
    for token in tokens:
        if token < timestamp_begin:
            text.append(token)
            continue
        time = min((token - timestamp_begin) * TIME_PRECISION, seconds)
        if text:
            closed.append(Segment(tuple(text), start, max(start, time)))
        start, text = time, []
    if text and not closed:
        return (Segment(tuple(text), start, seconds),), ()
    is_open = bool(text) or (len(tokens) >= 2 and min(tokens[-2:]) >= timestamp_begin)
    if closed and is_open and closed[-1].end < seconds:
        return tuple(closed), (Segment(tuple(text), closed[-1].end, seconds),)
    return tuple(closed), ()


def split_sentences(
    segments: Sequence[Segment], words: Sequence[Sequence[AlignedWord]], special: SpecialTokens
) -> list[Segment]:
    """Cut the segments of a window after every sentence and at long pauses.

    `words` are the words of each segment. A sentence begins with its first word and ends with its
    last. A segment without words stays as it is.
    """
    found: list[Segment] = []
    for segment, aligned in zip(segments, words, strict=True):
        if not aligned:
            found.append(segment)
        tokens = tuple(special.text_tokens(segment.tokens))
        first = begin = stop = 0
        for number, each in enumerate(aligned, 1):
            stop += len(each.places)
            if number < len(aligned):
                following = aligned[number].word
                pause = following.start - each.word.end
                if pause < SENTENCE_PAUSE and not sentence_ends_between(each.word, following):
                    continue
            start = aligned[first].word.start
            end = max(each.word.end, start + TIME_PRECISION)
            found.append(Segment(tokens[begin:stop], start, end))
            first, begin = number, stop
    return found
