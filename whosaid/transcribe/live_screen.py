"""Shows a live session: words as they come, and dimmed the guess of the words that follow.

Completed items stay as lines, in the order in which they were spoken; on a terminal the others
stand below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import takewhile

from rich.console import Console
from rich.live import Live
from rich.text import Text

from whosaid.transcribe.live_transcript import Item, LiveTranscript
from whosaid.transcribe.printing import SPEAKER_STYLES, turn_line


class LiveScreen:
    """Shows a transcript."""

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

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the transcript in a block. The end prints all items, again if speakers came late."""
        try:
            with self._live or nullcontext():
                yield
        finally:
            for item in self._waiting():
                self._print(item)
            if any(item.has_speakers for item in self._nameless):
                self._console.print()
                for item in self._transcript.items.values():
                    self._print(item)

    def show(self) -> None:
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
        if not name:
            return ""
        return self._styles.setdefault(
            name, SPEAKER_STYLES[len(self._styles) % len(SPEAKER_STYLES)]
        )
