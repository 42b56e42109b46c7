"""Finds where a text repeats itself: the loops that Whisper falls into and never leaves.

    I am going to play it again, until the or, or, or, or, or, or, or, or, or, or
                                          ^ kept ^ the first of equal parts

openai/whisper notices a loop once a row has run to its limit, by how well the text compresses. The
one decision: tokens are compared instead, so that a row can be stopped while it runs, and what is
kept depends on the row's tokens alone, not on when anybody looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LONGEST_PERIOD = 40  # tokens; a sentence or two
# A loop is at least so many equal parts, and so many tokens: "no, no, no, no, no!" is none.
LEAST_REPEATS, LEAST_TOKENS = 4, 20


class Repetition(NamedTuple):
    """Tokens `start` to `stop` of a text are equal parts of `period` tokens, the last maybe cut.

    `stop` is the first place at which that is certain.
    """

    start: int
    stop: int
    period: int

    @property
    def kept(self) -> int:
        """How many tokens to keep: up to the end of the first part."""
        return self.start + self.period


def ends_in_repetition(tokens: Sequence[int]) -> bool:
    """Whether text `tokens` loop at their end, so that `find_repetition` finds a loop.

    It is cheaper, for rows that still run.
    """
    for period in range(1, LONGEST_PERIOD + 1):
        length = max(LEAST_TOKENS, LEAST_REPEATS * period)
        if len(tokens) >= length and tokens[-1] == tokens[-1 - period]:
            newest = tokens[-length:]
            if newest[period:] == newest[:-period]:
                return True
    return False


def find_repetition(tokens: Sequence[int]) -> Repetition | None:
    """The first loop in text `tokens`, None where there is none.

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
            if length >= max(LEAST_TOKENS, LEAST_REPEATS * period):
                return Repetition(place + 1 - length, place + 1, period)
    return None
