"""Tells what is said again and again from the loops that Whisper falls into and never leaves.

    I am going to play it again, until the or, or, or, or, or, or, or, or, or, or
                                          ^ kept ^ the first of equal parts
    not now, not now, not now, not now, not now, not now, not now, not now, not now
    ^ attention goes on through the audio with every part            ^ and stands still

openai/whisper notices a loop once a row has run to its limit, by how well the text compresses. Here
tokens are compared, so that a row can be stopped while it runs, and then attention decides: as long
as somebody speaks it goes on through the audio with the text, and in a loop it stands still or
jumps about. A repetition is judged in stretches, each by the attention up to its own end, so that
what is kept depends on the row alone, not on when anybody looked.

The constants were chosen on words and sentences of one recording, spliced 20 to 100 times, and
shown on others. In a stretch of real repetition attention went forward with 84% of the tokens or
more and back with 16% or fewer; in loops over noise, reversed speech, speech under noise, and a
stutter in a resonant room, with 72% and 21% at best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_PERIOD = 40  # tokens; a sentence or two
# A loop is at least so many equal parts, and so many tokens: "no, no, no, no, no!" is none.
LEAST_REPEATS, LEAST_TOKENS = 4, 20
# Of a repetition's first stretch: tokens that go on in the audio, less those that go back. Between
# the 0.68 or more of real repetition and the 0.51 or less of loops.
LEAST_PROGRESS = 0.6
ADVANCE = 5  # frames, 0.1 s: no part of a text is spoken faster

# What sets the attention of the first so many text tokens apart: (tokens, frames of 20 ms).
Attend = Callable[[int], NDArray[np.float32]]


class Repetition(NamedTuple):
    """Tokens `start` to `stop` of a text are equal parts of `period` tokens, the last maybe cut."""

    start: int
    stop: int
    period: int


class Loop(NamedTuple):
    """A text's first loop: `kept` tokens are to stay.

    They end with the first of its equal parts, or if it is `heard` with the last of those that
    somebody said.
    """

    kept: int
    heard: bool


class Reading(NamedTuple):
    """What a text repeats: its `loop`, if any, and the text with what is said again and again told
    `once`, up to the loop.
    """

    loop: Loop | None
    once: list[int]


def parts_of_stretch(period: int) -> int:
    """How many equal parts of `period` tokens are judged together, and are the fewest of a loop."""
    return max(LEAST_REPEATS, -(-LEAST_TOKENS // period))


def ends_in_repetition(tokens: Sequence[int]) -> bool:
    """Whether text `tokens` end in a repetition, which may be a loop; for rows that still run."""
    for period in range(1, LONGEST_PERIOD + 1):
        length = period * parts_of_stretch(period)
        if len(tokens) >= length and tokens[-1] == tokens[-1 - period]:
            newest = tokens[-length:]
            if newest[period:] == newest[:-period]:
                return True
    return False


def find_repetition(tokens: Sequence[int]) -> Repetition | None:
    """The first repetition in text `tokens`, up to its end; None where there is none.

    The shortest period counts where several fit.
    """
    equal = [0] * (LONGEST_PERIOD + 1)  # how many of the newest tokens stand one period back too
    for place, token in enumerate(tokens):
        for period in range(1, min(place, LONGEST_PERIOD) + 1):
            if tokens[place - period] != token:
                equal[period] = 0
                continue
            equal[period] += 1
            length = equal[period] + period
            if length >= period * parts_of_stretch(period):
                stop = place + 1
                while stop < len(tokens) and tokens[stop] == tokens[stop - period]:
                    stop += 1
                return Repetition(place + 1 - length, stop, period)
    return None


def read_repetitions(tokens: Sequence[int], attend: Attend) -> Reading:
    """Where text `tokens` loop, by their attention."""
    once: list[int] = []
    begin = 0
    while found := find_repetition(tokens[begin:]):
        start, period = begin + found.start, found.period
        once += tokens[begin : start + period]
        heard = _parts_heard(Repetition(start, begin + found.stop, period), attend)
        if heard is not None:
            return Reading(Loop(start + max(1, heard) * period, heard > 0), once)
        begin += found.stop
    return Reading(None, [*once, *tokens[begin:]])


def _parts_heard(repetition: Repetition, attend: Attend) -> int | None:
    """How many parts were spoken before the rest loops; None where all were.

    In the first stretch attention must go on with the tokens, and in each more than half of the
    parts must lie further on than all parts before them.
    """
    start, stop, period = repetition
    count = parts_of_stretch(period)
    heard = 0
    for first in range(0, (stop - start) // period - count + 1, count):
        end = first + count
        attention = attend(start + end * period)[start:]
        if first == 0 and _progress(attention.argmax(axis=1)) < LEAST_PROGRESS:
            return 0
        places = attention.reshape(end, period, -1).sum(axis=1).argmax(axis=1)  # of each part
        reached = [-ADVANCE, *accumulate(places.tolist(), max)]
        advances = [place >= reached[part] + ADVANCE for part, place in enumerate(places)][first:]
        if any(advances):
            heard = first + max(part + 1 for part, goes_on in enumerate(advances) if goes_on)
        if 2 * sum(advances) <= count:
            return heard if first else 0
    return None


def _progress(places: NDArray[np.intp]) -> float:
    """Of the steps between `places` in the audio, how many go forward less how many go back, as a
    share.
    """
    steps = np.sign(np.diff(places))
    return float(steps.mean()) if len(steps) else 0.0
