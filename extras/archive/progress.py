"""What is shown of a run: how much audio is done, speed, time left; and what failed, at its end.

Everything is counted from records and in seconds of audio, for a recording may last a second or two
hours. On a terminal one line is written again and again, elsewhere a line now and then; both go to
stderr, and the summary to stdout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from extras.archive.manifest import Recording
from extras.archive.records import Record

# Seconds between two lines, on a terminal and elsewhere.
REFRESH, LINES = 0.2, 30.0
# What the table of failures shows of each code.
MOST_PATHS = 3


class Progress:
    """Counts records of `recordings`, and says how far the run is."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        done_before: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = {each.id: each.seconds for each in recordings}
        self._total, self._done_before = sum(self._seconds.values()), done_before
        self._stream, self._clock = stream or sys.stderr, clock
        self._terminal = self._stream.isatty()
        self._started = self._shown = clock()
        self._first: tuple[float, float] | None = None
        self.audio, self.records, self.failures = 0.0, 0, 0

    def add(self, record: Record) -> None:
        """Count a record."""
        now = self._clock()
        self.records += 1
        self.failures += bool(record.code)
        self.audio += self._seconds.get(record.id, 0.0)
        self._first = self._first or (now, self.audio)
        if now - self._shown >= (REFRESH if self._terminal else LINES):
            self._shown = now
            self._show(self.line())

    def line(self) -> str:
        """How far the run is."""
        elapsed = self._clock() - self._started
        speed = self.audio / elapsed if elapsed > 0 else 0.0
        parts = [
            f"{self.records}/{counted(len(self._seconds))}",
            f"{span(self.audio)} of {span(self._total)} of audio",
            f"{speed:.1f} x real time",
        ]
        if (left := self._seconds_left()) is not None:
            parts.append(f"{clock_time(left)} left")
        if self.failures:
            parts.append(f"{self.failures} failed")
        return ", ".join(parts)

    def _seconds_left(self) -> float | None:
        """By the speed since the first record: until then the workers were started."""
        if self._first is None:
            return None
        elapsed, audio = self._clock() - self._first[0], self.audio - self._first[1]
        return (self._total - self.audio) * elapsed / audio if audio > 0 else None

    def _show(self, line: str) -> None:
        print(f"\r{line}\x1b[K" if self._terminal else line, file=self._stream, flush=True, end="")
        if not self._terminal:
            print(file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the last line on the screen."""
        if self.records:
            self._show(self.line())
        if self.records and self._terminal:
            print(file=self._stream)

    def summary(self) -> str:
        """What this run has done, in one line."""
        elapsed = self._clock() - self._started
        speed = self.audio / elapsed if elapsed > 0 else 0.0
        before = f" {self._done_before} done before." if self._done_before else ""
        return (
            f"{counted(self.records - self.failures)} done and {self.failures} failed,"
            f" {span(self.audio)} of audio in {clock_time(elapsed)}, {speed:.1f} x real time."
            f"{before}"
        )


def counted(recordings: int) -> str:
    """How many, as a person says it."""
    return f"{recordings} recording{'' if recordings == 1 else 's'}"


def span(seconds: float) -> str:
    """Seconds, minutes or hours, with as many decimals as a person can use."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.{0 if seconds >= 360_000 else 2}f} h"


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds; less than a minute in seconds alone."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def failure_table(records: Sequence[Record]) -> str:
    """A line a code: how many recordings, and the first of them with what is wrong."""
    by_code: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda each: each.path):
        by_code.setdefault(record.code, []).append(record)
    width = max((len(code) for code in by_code), default=0)
    lines = []
    for code, found in sorted(by_code.items(), key=lambda item: -len(item[1])):
        for place, record in enumerate(found[:MOST_PATHS]):
            head = f"{code:{width}} {len(found):>7}" if place == 0 else " " * (width + 8)
            lines.append(f"{head}  {ascii(record.path)[1:-1]}: {record.detail}")
        if len(found) > MOST_PATHS:
            lines.append(f"{' ' * (width + 8)}  and {len(found) - MOST_PATHS} more")
    return "\n".join(lines)
