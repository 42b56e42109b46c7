"""A live session on a terminal: words as they come, the guess of what follows dimmed.

What is done stays as lines, in the order in which it was spoken; below them stands what is not.
Where standard output is no terminal there are only the lines.
"""

from __future__ import annotations

from itertools import takewhile
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from transcribe.live_transcript import Item, LiveTranscript
from transcribe.printing import SPEAKER_STYLES, turn_line


class LiveScreen:
    """Shows a transcript whenever it has changed, in a block."""

    def __init__(self, transcript: LiveTranscript, console: Console) -> None:
        self._transcript, self._console = transcript, console
        self._printed = 0  # items whose lines stand
        self._styles: dict[str, str] = {}
        self._nameless: list[Item] = []  # whose lines stand without speakers
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, auto_refresh=False, transient=True, vertical_overflow="visible"
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
        for item in self._waiting():
            self._print(item)
        if any(item.has_speakers for item in self._nameless):  # they were told at the end
            self._console.print()
            for item in self._transcript.items.values():
                self._print(item)

    def show(self) -> None:
        """The transcript has changed."""
        waiting = self._waiting()
        done = list(takewhile(lambda item: item.done, waiting))
        self._printed += len(done)
        if self._live:
            lines = [line for item in waiting[len(done) :] for line in self._with_guess(item)]
            self._live.update(Text("\n").join(lines), refresh=True)
        for item in done:
            self._print(item)
            if not item.has_speakers:
                self._nameless.append(item)

    def _waiting(self) -> list[Item]:
        """Items without lines that stand: the first that is not done, and those after it."""
        return list(self._transcript.items.values())[self._printed :]

    def _print(self, item: Item) -> None:
        for line in self._lines(item):
            self._console.print(line, soft_wrap=True)

    def _lines(self, item: Item) -> list[Text]:
        lines = []
        for block in item.blocks():
            name = block.speaker or ""
            lines.append(turn_line(block.start, (name, self._style(name)), block.text))
        return lines

    def _with_guess(self, item: Item) -> list[Text]:
        lines = self._lines(item)
        if item.unstable.strip():
            if not lines:
                lines.append(turn_line(item.start, ("", ""), ""))
            lines[-1].append(f" {item.unstable.strip()}", "dim")
        return lines

    def _style(self, name: str) -> str:
        """A colour for each speaker, in the order of their first words."""
        if not name:
            return ""
        return self._styles.setdefault(
            name, SPEAKER_STYLES[len(self._styles) % len(SPEAKER_STYLES)]
        )
