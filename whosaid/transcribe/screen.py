"""Shows the progress of a run on stderr, with rich.

Every ended recording leaves a line: its time, its answer's warnings, or the reason of its failure.
On a terminal bars below the lines show the recordings in progress: what is done to each, how much
is done, and the time left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from whosaid.transcribe.partial import PartialAnswer

LONGEST_NOTE = 100  # characters of a text; the JSON has all of it
WIDEST_NAME = 20  # characters of a recording's name beside its bar
# The least share of speech that tells the time left: the first windows waited for other work.
LEAST_SHARE = 0.1
SPEECH, SPEAKERS = "of speech", "finding who said what"


def speed(audio: float, wall: float) -> str:
    return f"{audio / wall:.1f}x real time" if wall else "at once"


def clock(seconds: float) -> str:
    """Write `75.5` as `1:16`, with hours in front if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def notes(answer: Mapping[str, Any]) -> list[str]:
    told = [f"warning: {each}" for each in answer.get("warnings") or ()]
    if not str(answer.get("text", "")).strip():
        told.append("no speech was found, so the text is empty")
    return told + [
        f"not spoken at {clock(each['timestamp'][0])}: {_shortened(each['text'])}"
        for each in answer.get("unspoken") or ()
    ]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_NOTE else line[: LONGEST_NOTE - 1] + "…"


@dataclass(slots=True)
class RecordingStage:
    """The work on a recording, as `text`, since when. `done` of `total` are seconds of speech, or
    shares of the speakers' work; the first `skipped` of them took no time of this stage. `share` is
    that of the speech that is written, which `partial` keeps.
    """

    text: str = "reading"
    since: float = field(default_factory=lambda: time.monotonic())
    done: float = 0.0
    total: float | None = None
    skipped: float = 0.0
    share: float = 0.0
    partial: PartialAnswer | None = None
    is_job: bool = False

    def begin(self, text: str) -> None:
        if text != self.text:
            self.text, self.total, self.skipped = text, None, 0.0
            self.since = time.monotonic()

    def advance(self, done: float, total: float, speakers: bool = False) -> None:
        """Note the seconds of speech that are written, or how many of the `speakers` are found."""
        if speakers and done < total:
            self.begin(SPEAKERS)
            if self.total is None:  # the rest was done while speech was written
                self.since, self.skipped = time.monotonic(), done
            self.done, self.total = done, total
        elif speakers:
            self.begin("the last steps")
        else:
            self._write(done, total)

    def _write(self, done: float, total: float) -> None:
        self.share = done / total if total else 0.0
        if not done:
            self.begin("finding speech")
            return
        if done >= total:
            self.begin(SPEAKERS)
            return
        if self.text != SPEECH and self.partial is not None and self.partial.resumes:
            self.since, self.skipped = time.monotonic(), done
        self.text, self.done, self.total = SPEECH, done, total

    def __str__(self) -> str:
        seconds = time.monotonic() - self.since
        if self.total is None:
            return f"{self.text}, {clock(seconds)}"
        left, new = "", self.done - self.skipped
        if new > LEAST_SHARE * (self.total - self.skipped):
            left = f", about {clock(seconds / new * (self.total - self.done))} left"
        if self.text == SPEAKERS:
            return f"{self.text}: {self.done / self.total:.0%}{left}"
        return f"{clock(self.done)} of {clock(self.total)} {self.text}{left}"


class Run:
    """Counts and shows the recordings of a run; thread-safe.

    `sizes`, in bytes, serve to estimate the remaining time. `skipped` recordings were done before.
    """

    def __init__(self, progress: Progress, sizes: Mapping[Path, int], skipped: int = 0) -> None:
        self.failures: list[tuple[Path, str]] = []
        self._progress, self._sizes, self._skipped = progress, sizes, skipped
        self._done, self._audio, self._ended_bytes = 0, 0.0, 0
        self._since = self._due = time.monotonic()
        self._lock = threading.Lock()
        self._bars: dict[Path, tuple[TaskID, RecordingStage]] = {}
        count = len(sizes)
        self._all = progress.add_task(
            f"{count} recordings", total=count, visible=count > 1, stage=self
        )

    def __str__(self) -> str:
        return f"{self._ended} done{self._left(time.monotonic())}"

    def begin(self, path: Path) -> None:
        stage = RecordingStage()
        self._bars[path] = self._progress.add_task(path.name, total=None, stage=stage), stage

    def load(self, path: Path) -> None:
        """Show that the models load, before anything is done to the recording."""
        self._bars[path][1].begin("loading the models")

    def work(
        self, path: Path, text: str, partial: PartialAnswer | None = None, is_job: bool = False
    ) -> None:
        """Show that work on the recording begins, by `text`; `partial` keeps what is written."""
        if not self._ended_bytes:  # the models' load does not count
            self._since = time.monotonic()
        stage = self._bars[path][1]
        stage.partial, stage.is_job = partial, is_job
        stage.begin(text)
        if partial is not None and partial.resumes:
            self.say(f"{path}: goes on from {partial.path}")

    def advance(self, path: Path, done: float, total: float, speakers: bool = False) -> None:
        task, stage = self._bars[path]
        stage.advance(done, total, speakers)
        self._progress.update(task, completed=stage.done, total=stage.total)

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
                self.say(f"{path}: {note}")

    def fail(self, path: Path, reason: str) -> None:
        with self._lock:
            self.failures.append((path, reason))
            self._end(path, reason, "red")

    def end(self, interrupted: bool) -> None:
        """Show the summary; if the run was interrupted, name the recordings that had begun."""
        for path, (_, stage) in [*self._bars.items()] if interrupted else ():
            again = "the next run begins it anew"
            if stage.is_job:
                again = "the server's job goes on, and the next run takes its answer"
            if stage.partial is not None and stage.partial.path.exists():
                again = f"{stage.partial.path} keeps that, and the next run goes on from there"
            self.say(f"{path}: stopped at {stage.share:.0%}; {again}")
        if len(self._sizes) > 1 or self._skipped:
            self.say(self._summary())
            for path, reason in self.failures:
                self.say(f"failed: {path}: {reason}")
        for task in self._progress.task_ids:
            self._progress.remove_task(task)

    @property
    def _ended(self) -> int:
        return self._done + len(self.failures)

    def _end(self, path: Path, told: str, style: str = "") -> None:
        self._ended_bytes += self._sizes[path]
        if path in self._bars:
            self._progress.remove_task(self._bars.pop(path)[0])
        self._progress.advance(self._all)
        now, count = time.monotonic(), len(self._sizes)
        if self._ended_bytes:
            rest = sum(self._sizes.values()) - self._ended_bytes
            self._due = now + (now - self._since) * rest / self._ended_bytes
        number = f"[{self._ended}/{count}] " if count > 1 else ""
        self.say(f"{number}{path}: {told}{'' if style else self._left(now)}", style)

    def _left(self, now: float) -> str:
        """Return the remaining time, estimated when the last recording ended."""
        if self._ended == len(self._sizes) or not self._ended_bytes:
            return ""
        return f", about {clock(max(0.0, self._due - now))} left"

    def _summary(self) -> str:
        wall = time.monotonic() - self._since
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

    def say(self, line: str, style: str = "") -> None:
        self._progress.console.print(Text(line, style), soft_wrap=True)


class Terminal:
    """Standard error, which shows bars if it is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, max_width=WIDEST_NAME),
            ),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[stage]}", markup=False, table_column=Column(no_wrap=True)),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )

    @contextmanager
    def shown(
        self, sizes: Mapping[Path, int], skipped: int = 0, spared: Sequence[str] = ()
    ) -> Iterator[Run]:
        """Show a run in a block. However the block ends, show its summary and `spared` lines."""
        with self._progress:
            run, interrupted = Run(self._progress, sizes, skipped), False
            try:
                yield run
            except KeyboardInterrupt:
                interrupted = True
                raise
            finally:
                run.end(interrupted)
                for line in spared:
                    run.say(f"skipped: {line}")

    @contextmanager
    def without_bars(self) -> Iterator[None]:
        """Hide the bars during a block inside `shown`, so that others can use the terminal."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()
