"""What `scripts/transcribe` shows while it runs: bars on a terminal, lines elsewhere.

The one decision: everything goes to stderr, and a file that failed is one line in either form,
which stays when the bars are gone. Without rich, or without a terminal, there are only lines.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol


class Screen(Protocol):
    """What is told of each recording; called from several threads."""

    def begin(self, path: Path) -> None:
        """The recording is sent."""

    def advance(self, path: Path, done: float, total: float) -> None:
        """`done` of `total` seconds of speech are transcribed."""

    def finish(self, path: Path, duration: float | None, seconds: float) -> None:
        """Its files are written: it lasts `duration` seconds, if that is known, took `seconds`."""

    def fail(self, path: Path, reason: str) -> None:
        """It was not transcribed."""


def summary(path: Path, duration: float | None, seconds: float) -> str:
    """One line about a recording that is done."""
    if duration is None:
        return f"{path}: done in {seconds:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    return f"{path}: {minutes}:{rest:02d} of audio in {seconds:.1f} s"


class Lines:
    """One line for a recording that is done or failed, with how many of all have ended."""

    def __init__(self, total: int) -> None:
        self.total, self.ended, self._lock = total, 0, threading.Lock()

    def begin(self, path: Path) -> None:
        """Nothing is printed."""

    def advance(self, path: Path, done: float, total: float) -> None:
        """Nothing is printed."""

    def finish(self, path: Path, duration: float | None, seconds: float) -> None:
        """Print what it took."""
        self._print(summary(path, duration, seconds))

    def fail(self, path: Path, reason: str) -> None:
        """Print why."""
        self._print(f"{path}: {reason}")

    def _print(self, line: str) -> None:
        with self._lock:
            self.ended += 1
            print(f"[{self.ended}/{self.total}] {line}", file=sys.stderr, flush=True)


class Bars:
    """A bar for each recording that is being transcribed, and one for all."""

    def __init__(self, progress: Any, total: int) -> None:  # noqa: ANN401
        self._progress = progress
        self._all = progress.add_task("all", total=total)
        self._bars: dict[Path, Any] = {}

    def begin(self, path: Path) -> None:
        """Show a bar that only moves."""
        self._bars[path] = self._progress.add_task(path.name, total=None)

    def advance(self, path: Path, done: float, total: float) -> None:
        """Fill the recording's bar."""
        self._progress.update(self._bars[path], completed=done, total=total)

    def finish(self, path: Path, duration: float | None, seconds: float) -> None:
        """Put a line in the place of the bar."""
        self._end(path, summary(path, duration, seconds), None)

    def fail(self, path: Path, reason: str) -> None:
        """Put the reason in the place of the bar."""
        self._end(path, f"{path}: {reason}", "red")

    def _end(self, path: Path, line: str, style: str | None) -> None:
        self._progress.remove_task(self._bars[path])
        self._progress.advance(self._all)
        self._progress.console.print(
            line, style=style, markup=False, highlight=False, soft_wrap=True
        )


@contextmanager
def screen(total: int, skipped: int) -> Iterator[Screen]:
    """What is fitting for where stderr goes, for `total` recordings; `skipped` were done before."""
    if skipped:
        print(f"{skipped} of {total + skipped} done before", file=sys.stderr)
    if not sys.stderr.isatty():
        yield Lines(total)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield Lines(total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bars(progress, total)
