"""Shows the progress of a run on stderr, with rich.

Every ended recording leaves a line: its time, its answer's warnings, or the reason of its failure.
On a terminal bars below the lines show the recordings in progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

LONGEST_NOTE = 100  # characters of a text; the JSON has all of it


def speed(audio: float, wall: float) -> str:
    return f"{audio / wall:.1f}x real time" if wall else "at once"


def clock(seconds: float) -> str:
    """Write `75.5` as `1:16`, with hours in front if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def notes(answer: Mapping[str, Any]) -> list[str]:
    warnings = [f"warning: {each}" for each in answer.get("warnings") or ()]
    return warnings + [
        f"not spoken at {clock(each['timestamp'][0])}: {_shortened(each['text'])}"
        for each in answer.get("unspoken") or ()
    ]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_NOTE else line[: LONGEST_NOTE - 1] + "…"


class Run:
    """Counts and shows the recordings of a run; thread-safe.

    `sizes`, in bytes, serve to estimate the remaining time. `skipped` recordings were done before.
    """

    def __init__(self, progress: Progress, sizes: Mapping[Path, int], skipped: int = 0) -> None:
        self.failures: list[tuple[Path, str]] = []
        self._progress, self._sizes, self._skipped = progress, sizes, skipped
        self._done, self._audio, self._ended_bytes = 0, 0.0, 0
        self._started, self._lock = time.monotonic(), threading.Lock()
        self._bars: dict[Path, TaskID] = {}
        count = len(sizes)
        self._all = progress.add_task(f"{count} recordings", total=count, visible=count > 1)

    def begin(self, path: Path) -> None:
        self._bars[path] = self._progress.add_task(path.name, total=None)

    def advance(self, path: Path, done: float, total: float) -> None:
        self._progress.update(self._bars[path], completed=done, total=total)

    def finish(
        self, path: Path, duration: float | None, seconds: float, notes: Sequence[str]
    ) -> None:
        """Show that a recording of `duration` seconds, if known, took `seconds`."""
        took = f"done in {seconds:.1f} s"
        if duration is not None:
            took = f"{clock(duration)} of audio in {seconds:.1f} s, {speed(duration, seconds)}"
        with self._lock:
            self._done += 1
            self._audio += duration or 0.0
            self._end(path, took)
            for note in notes:
                self._say(f"{path}: {note}")

    def fail(self, path: Path, reason: str) -> None:
        with self._lock:
            self.failures.append((path, reason))
            self._end(path, reason, "red")

    def end(self) -> None:
        if len(self._sizes) > 1 or self._skipped:
            self._say(self._summary())
            for path, reason in self.failures:
                self._say(f"failed: {path}: {reason}")
        for task in self._progress.task_ids:
            self._progress.remove_task(task)

    @property
    def _ended(self) -> int:
        return self._done + len(self.failures)

    def _end(self, path: Path, told: str, style: str = "") -> None:
        self._ended_bytes += self._sizes[path]
        if path in self._bars:
            self._progress.remove_task(self._bars.pop(path))
        self._progress.advance(self._all)
        count = len(self._sizes)
        number = f"[{self._ended}/{count}] " if count > 1 else ""
        self._say(f"{number}{path}: {told}{'' if style else self._left()}", style)

    def _left(self) -> str:
        """Estimate the remaining time from the ended recordings."""
        rest = sum(self._sizes.values()) - self._ended_bytes
        if self._ended == len(self._sizes) or not self._ended_bytes:
            return ""
        seconds = (time.monotonic() - self._started) * rest / self._ended_bytes
        return f", about {clock(seconds)} left"

    def _summary(self) -> str:
        wall = time.monotonic() - self._started
        total, waiting = len(self._sizes) + self._skipped, len(self._sizes) - self._ended
        again = "it" if self._skipped == 1 else "them"
        counts = [f"{self._done} done"]
        if self._skipped:
            counts.append(f"{self._skipped} done before (--force transcribes {again} again)")
        if self.failures:
            counts.append(f"{len(self.failures)} failed")
        if waiting:
            counts.append(f"{waiting} not done")
        took = f"; {clock(self._audio)} of audio in {clock(wall)}" if self._done else ""
        fast = f", {speed(self._audio, wall)}" if self._audio else ""
        recordings = "1 recording" if total == 1 else f"{total} recordings"
        return f"{recordings}: {', '.join(counts)}{took}{fast}"

    def _say(self, line: str, style: str = "") -> None:
        self._progress.console.print(Text(line, style), soft_wrap=True)


class Terminal:
    """Standard error, which shows bars if it is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=32),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )

    @contextmanager
    def shown(self, sizes: Mapping[Path, int], skipped: int = 0) -> Iterator[Run]:
        """Show a run in a block, and its summary at the end, however the block ends."""
        with self._progress:
            run = Run(self._progress, sizes, skipped)
            try:
                yield run
            finally:
                run.end()

    @contextmanager
    def without_bars(self) -> Iterator[None]:
        """Hide the bars during a block inside `shown`, so that others can use the terminal."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()
