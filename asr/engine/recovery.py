"""What follows when a step fails: one table, by plain values, and what is remembered of failures.

Too little memory is mended by fewer rows, an error that several sessions shared by running them one
by one, and a lost device by nothing. `asr.engine.executor` says what happened and carries out what
follows.
"""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import NamedTuple

logger = logging.getLogger("endpoint")

MAX_ROWS = 128
# Steps without a failure after which more rows are tried; twice as many after each failure.
SHORTEST_PATIENCE, LONGEST_PATIENCE = 64, 4096


class Kind(Enum):
    """What a device's error means."""

    OUT_OF_MEMORY = auto()
    DEVICE_LOST = auto()
    OTHER = auto()


class Failure(NamedTuple):
    """A step of one batch that failed."""

    kind: Kind
    sessions: int  # whose windows ran, or were on their way into rows
    rows: int = 0  # that were tried, or held
    room_made: bool = False  # memory was given back since so many rows failed
    others_hold: bool = False  # memory: rows of other batches run, or were left idle


class Remedy(Enum):
    """What follows a failure; in all but the first the batch begins again from its queue."""

    GIVE_UP_DEVICE = auto()  # every session fails, and nothing is decoded any more
    TRY_AGAIN = auto()
    FEWER_ROWS = auto()
    WAIT_FOR_OTHERS = auto()  # until the rows of other batches have ended, and then run alone
    FAIL_QUEUE = auto()  # every session that has a window in the batch or its queue fails
    FAIL_SESSION = auto()  # the only one that had a part in it fails
    ONE_BY_ONE = auto()  # the sessions go on apart, to find whose fault it was


def remedy(failure: Failure) -> Remedy:
    """What follows."""
    if failure.kind is Kind.DEVICE_LOST:
        return Remedy.GIVE_UP_DEVICE
    if failure.kind is Kind.OUT_OF_MEMORY:
        if failure.room_made:
            return Remedy.TRY_AGAIN
        if failure.rows > 1:
            return Remedy.FEWER_ROWS
        return Remedy.WAIT_FOR_OTHERS if failure.others_hold else Remedy.FAIL_QUEUE
    if failure.sessions > 1:
        return Remedy.ONE_BY_ONE
    return Remedy.FAIL_SESSION if failure.sessions else Remedy.FAIL_QUEUE


class RowLimit:
    """How many `rows` of a batch may be tried, by what has failed before.

    A batch too large should not run out of memory in every request anew; but who took the memory
    may give it back, so after some steps more rows are tried again.
    """

    def __init__(self) -> None:
        self.rows = MAX_ROWS
        self._steps, self._patience = 0, SHORTEST_PATIENCE
        self._tried_again = 0  # rows that failed, and were tried again without fewer

    def halve(self, failed: int) -> None:
        """`failed` rows were too many: at most half of them are tried for now."""
        self.hold(max(1, failed // 2))
        logger.warning("%d windows at once do not fit into memory: at most %d", failed, self.rows)

    def hold(self, rows: int) -> None:
        """Try no more than `rows`, for longer than the last time."""
        if self.rows < MAX_ROWS:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)
        self.rows, self._steps = rows, 0

    def may_try_again(self, failed: int) -> bool:
        """Whether `failed` rows may be tried once more; not again before so many have succeeded."""
        before, self._tried_again = self._tried_again, failed
        return failed != before

    def wait_for_others(self) -> None:
        """Nothing fits beside what others run: once they end it is as if nothing had failed."""
        self._tried_again = 0

    def count_step(self, capacity: int) -> None:
        """A step over a state of `capacity` rows has succeeded; after enough of them half as many
        rows again may be tried.
        """
        if capacity >= self._tried_again:
            self._tried_again = 0
        if self.rows == MAX_ROWS:
            return
        self._steps += 1
        if self._steps >= self._patience:
            self._steps, self.rows = 0, min(MAX_ROWS, self.rows + (self.rows + 1) // 2)
