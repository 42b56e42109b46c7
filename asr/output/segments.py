"""Reads one window's tokens as Whisper's own segments: what was said from when to when, and what
was left open.

    <|0.00|> good morning <|1.20|><|1.80|> how are you <|2.90|><|2.90|> i wo        two segments, then an open one

The one decision: an open segment is handed on apart, and whoever schedules windows decides whether
it is heard again with the next window or stays as it is. The rules are those of openai/whisper's
`transcribe.py`.
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
    """The segments that were closed; then the open one, whose `start` is where the last closed one
    ended.
    """

    closed: tuple[Segment, ...]
    unfinished: Segment | None = None


def read_segments(tokens: Sequence[int], timestamp_begin: int, seconds: float) -> Segments:
    """Split the tokens of a window `seconds` long at its timestamps; no time lies beyond the
    window's end.

    Text that follows no closed segment has nothing to resume from: the window's end closes it.
    """
    closed: list[Segment] = []
    opened, text = 0.0, list[int]()
    for token in tokens:
        if token < timestamp_begin:
            text.append(token)
            continue
        moment = min((token - timestamp_begin) * TIME_PRECISION, seconds)
        if text:
            closed.append(Segment(tuple(text), opened, max(opened, moment)))
        opened, text = moment, []
    if text and not closed:
        return Segments((Segment(tuple(text), opened, seconds),))
    ends_open = bool(text) or (len(tokens) >= 2 and min(tokens[-2:]) >= timestamp_begin)
    if closed and ends_open and closed[-1].end < seconds:
        return Segments(tuple(closed), Segment(tuple(text), closed[-1].end, seconds))
    return Segments(tuple(closed))
