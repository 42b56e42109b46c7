"""Prints the progress of a run: audio done, speed, time left, and finally the failures."""

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

from extras.archive.manifest import Recording
from extras.archive.records import Record

# Seconds between two lines, and the recordings of each code in the table of failures.
LINES, MOST_PATHS = 10.0, 3


class Progress:
    """Counts records, and writes progress to stderr; bytes tell how much time is left."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._sizes = {each.id: each.size for each in recordings}
        self._left = sum(self._sizes.values())
        self._started = self._shown = time.monotonic()
        # The time of the first record, and the bytes left then: the start of workers before it does
        # not count for the speed.
        self._first: tuple[float, int] | None = None
        self.audio, self.records, self.failures = 0.0, 0, 0

    def add(self, record: Record) -> None:
        now = time.monotonic()
        self.records += 1
        self.failures += bool(record.code)
        self.audio += record.duration or 0.0
        self._left -= self._sizes.get(record.id, 0)
        began, left = self._first = self._first or (now, self._left)
        if now - self._shown >= LINES:
            self._shown = now
            line = f"{self.records}/{counted(len(self._sizes))}, {self._speed(now)}"
            if left > self._left:
                line += f", {span(self._left * (now - began) / (left - self._left))} left"
            print(f"{line}, {self.failures} failed", file=sys.stderr, flush=True)

    def _speed(self, now: float) -> str:
        elapsed = now - self._started
        speed = self.audio / elapsed if elapsed else 0.0
        return f"{span(self.audio)} of audio in {span(elapsed)}, {speed:.1f} x real time"

    def summary(self) -> str:
        done = f"{counted(self.records - self.failures)} done and {self.failures} failed"
        return f"{done}, {self._speed(time.monotonic())}."


def counted(recordings: int) -> str:
    return f"{recordings} recording{'' if recordings == 1 else 's'}"


def span(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def failure_table(records: Sequence[Record]) -> str:
    """Return the number of recordings by code, and the first ones of each with their errors."""
    lines = []
    ordered = sorted(records, key=lambda each: (each.code, each.path))
    for code, group in groupby(ordered, key=lambda each: each.code):
        found = list(group)
        lines.append(f"{code}: {counted(len(found))}")
        lines += [f"  {ascii(each.path)[1:-1]}: {each.detail}" for each in found[:MOST_PATHS]]
        if len(found) > MOST_PATHS:
            lines.append(f"  and {len(found) - MOST_PATHS} more")
    return "\n".join(lines)
