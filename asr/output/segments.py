"""Splits one window's tokens into segments at Whisper's timestamps.

    <|0.00|> good morning <|1.20|><|1.80|> how are you <|2.90|><|2.90|> i wo
    two closed segments, then an unfinished one

An unfinished segment is returned apart from the closed ones. The schedule of windows decides
whether it is decoded again with the next window or stays as it is. The rules are those of
openai/whisper's `transcribe.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timebase import TIME_PRECISION


@dataclass(frozen=True, slots=True)
class Segment:
    """Text tokens spoken from `start` to `end`, in seconds from the window's beginning."""

    tokens: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Segments:
    """The closed segments of a window, and the unfinished one, if any: it starts where the last
    closed one ends, and ends with the window.
    """

    closed: tuple[Segment, ...]
    unfinished: Segment | None = None


def read_segments(tokens: Sequence[int], timestamp_begin: int, seconds: float) -> Segments:
    """Split the tokens of a window `seconds` long at its timestamps; later times are clipped to its
    end.

    Tokens from `timestamp_begin` on are timestamps. Text without any closed segment before it is
    closed by the end of the window: there is no point to decode again from.
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
        return Segments((Segment(tuple(text), start, seconds),))
    is_open = bool(text) or (len(tokens) >= 2 and min(tokens[-2:]) >= timestamp_begin)
    if closed and is_open and closed[-1].end < seconds:
        return Segments(tuple(closed), Segment(tuple(text), closed[-1].end, seconds))
    return Segments(tuple(closed))
