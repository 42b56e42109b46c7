"""What is shown of recordings that are transcribed into files: bars on a terminal, lines elsewhere.

Everything goes to stderr. What ended stays as a line in either form: what it took, what the answer
warns of, or why there is none. Without rich, or without a terminal, there are only lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_NOTE = 100  # characters of a text, of which the JSON has all


@dataclass
class Tally:
    """What has become of the recordings of a run; `sizes` are their bytes, for the time left."""

    sizes: dict[Path, int]
    skipped: int = 0
    audio: float = 0.0  # seconds
    done: int = 0
    failures: list[tuple[Path, str]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _ended_bytes: int = 0

    @property
    def ended(self) -> int:
        """How many are done or have failed."""
        return self.done + len(self.failures)

    def end(self, path: Path) -> None:
        """Count the recording's bytes among those that are behind."""
        self._ended_bytes += self.sizes.get(path, 0)

    def left(self) -> str:
        """About how long the rest takes, if the rest is like what ended."""
        rest = sum(self.sizes.values()) - self._ended_bytes
        if self.ended == len(self.sizes) or not self._ended_bytes:
            return ""
        seconds = (time.monotonic() - self.started) * rest / self._ended_bytes
        return f", about {clock(seconds)} left"

    def summary(self) -> list[str]:
        """The run in one line, then a line for each recording that failed."""
        wall = time.monotonic() - self.started
        counts = [f"{self.done} done"]
        again = "it" if self.skipped == 1 else "them"
        before = f"{self.skipped} done before (--force transcribes {again} again)"
        counts += [before] if self.skipped else []
        counts += [f"{len(self.failures)} failed"] if self.failures else []
        waiting = len(self.sizes) - self.ended
        counts += [f"{waiting} not done"] if waiting else []
        took = f"; {clock(self.audio)} of audio in {clock(wall)}" if self.done else ""
        fast = f", {speed(self.audio, wall)}" if self.audio else ""
        total = len(self.sizes) + self.skipped
        recordings = "1 recording" if total == 1 else f"{total} recordings"
        first = f"{recordings}: {', '.join(counts)}{took}{fast}"
        return [first, *(f"failed: {path}: {reason}" for path, reason in self.failures)]


def speed(audio: float, wall: float) -> str:
    """How many times faster than playing it, `audio` and `wall` in seconds."""
    return f"{audio / wall:.1f}x real time" if wall else "at once"


def clock(seconds: float) -> str:
    """`75.5` as `1:16`, hours in front where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def notes(answer: Mapping[str, Any]) -> list[str]:
    """A line for each warning of an answer, and for each part of a given text that nobody says."""
    warnings = [f"warning: {each}" for each in answer.get("warnings") or ()]
    return warnings + [
        f"not spoken at {clock(each['timestamp'][0])}: {_shortened(each['text'])}"
        for each in answer.get("unspoken") or ()
    ]


def _shortened(text: str) -> str:
    """By characters: some languages have no spaces."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_NOTE else line[: LONGEST_NOTE - 1] + "…"


class Lines:
    """A line for each recording that ended; called from several threads."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._lock = threading.Lock()

    def begin(self, path: Path) -> None:
        """The recording is sent."""

    def advance(self, path: Path, done: float, total: float) -> None:
        """`done` of `total` are behind."""

    def finish(
        self, path: Path, duration: float | None, seconds: float, notes: Sequence[str]
    ) -> None:
        """Its files are written: it lasts `duration` seconds, if that is known, took `seconds`."""
        with self._lock:
            self.tally.done += 1
            self.tally.audio += duration or 0.0
            self.tally.end(path)
            took = f"done in {seconds:.1f} s"
            if duration is not None:
                took = f"{clock(duration)} of audio in {seconds:.1f} s, {speed(duration, seconds)}"
            self._show(path, f"{path}: {took}{self.tally.left()}")
            for note in notes:
                self._say(f"{path}: {note}")

    def fail(self, path: Path, reason: str) -> None:
        """It was not transcribed."""
        with self._lock:
            self.tally.failures.append((path, reason))
            self.tally.end(path)
            self._show(path, f"{path}: {reason}", failed=True)

    def end(self) -> None:
        """Tell how it went, where that is more than what was told of one recording."""
        tally = self.tally
        if len(tally.sizes) > 1 or tally.skipped:
            for line in tally.summary():
                self._say(line)

    def _show(self, path: Path, line: str, failed: bool = False) -> None:
        count = len(self.tally.sizes)
        self._say(f"[{self.tally.ended}/{count}] {line}" if count > 1 else line, failed)

    def _say(self, line: str, failed: bool = False) -> None:
        print(line, file=sys.stderr, flush=True)


class Bars(Lines):
    """A bar for each recording that is being transcribed and, of several, one for all; above them
    the lines.
    """

    def __init__(self, tally: Tally, progress: Any) -> None:  # noqa: ANN401
        super().__init__(tally)
        self._progress = progress
        count = len(tally.sizes)
        self._all = progress.add_task(f"{count} recordings", total=count, visible=count > 1)
        self._bars: dict[Path, Any] = {}

    def begin(self, path: Path) -> None:
        """Show a bar that only moves."""
        self._bars[path] = self._progress.add_task(path.name, total=None)

    def advance(self, path: Path, done: float, total: float) -> None:
        """Fill the recording's bar."""
        self._progress.update(self._bars[path], completed=done, total=total)

    def end(self) -> None:
        """Tell how it went, and take all bars away."""
        super().end()
        for task in self._progress.task_ids:
            self._progress.remove_task(task)

    def _show(self, path: Path, line: str, failed: bool = False) -> None:
        if path in self._bars:
            self._progress.remove_task(self._bars.pop(path))
        self._progress.advance(self._all)
        super()._show(path, line, failed)

    def _say(self, line: str, failed: bool = False) -> None:
        self._progress.console.print(
            line, style="red" if failed else None, markup=False, highlight=False, soft_wrap=True
        )


class Terminal:
    """Where stderr goes: to a terminal that shows bars, or else to lines alone."""

    def __init__(self) -> None:
        self._progress = _progress() if sys.stderr.isatty() else None

    @contextmanager
    def shown(self, tally: Tally) -> Iterator[Lines]:
        """What becomes of recordings in a block; the summary, however it ends."""
        with self._progress or nullcontext():
            lines = Bars(tally, self._progress) if self._progress else Lines(tally)
            try:
                yield lines
            finally:
                lines.end()

    @contextmanager
    def without_bars(self) -> Iterator[None]:
        """Leave the terminal to others in a block that runs in one of `shown`."""
        if self._progress:
            self._progress.stop()
        try:
            yield
        finally:
            if self._progress:
                self._progress.start()


def _progress() -> Any | None:  # noqa: ANN401
    """Rich's display of bars, which disappear at the end; None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
