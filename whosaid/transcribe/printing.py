"""Prints a transcript on a terminal, also while it grows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle, takewhile
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from whosaid.transcribe.live_transcript import LiveTranscript, TranscriptItem
from whosaid.transcribe.screen import notes, speed

SPEAKER_STYLES = ("cyan", "magenta", "yellow", "green", "bright_blue", "bright_red")


def clock(seconds: float) -> str:
    """Write `75.5` as `1:15.5`."""
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f}:{rest:04.1f}"


def speaker_styles(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    speakers = {entry["speaker"] for entry in entries if entry.get("speaker")}
    return dict(zip(sorted(speakers), cycle(SPEAKER_STYLES), strict=False))


def transcript_lines(response: dict[str, Any]) -> Iterator[Text]:
    entries = response["speakers"] or response["chunks"]
    styles = speaker_styles(entries)
    width = max(map(len, styles), default=0)
    for entry in entries:
        speaker = entry.get("speaker") or ""
        name = (f"{speaker:<{width}}", styles.get(speaker, "dim"))
        yield turn_line(entry["timestamp"][0], name, entry["text"])


def turn_line(start: float, name: tuple[str, str], text: str) -> Text:
    return Text.assemble((f"{clock(start):>7}", "dim"), "  ", name, "  ", text.strip())


def word_lines(response: dict[str, Any]) -> Iterator[Text]:
    """Yield start, end, probability, speaker and text of each word; mark overlapping speakers."""
    styles = speaker_styles(response["words"])
    width = max(map(len, styles), default=0)
    for word in response["words"]:
        start, end = word["timestamp"]
        speaker = word.get("speaker") or ""
        name = (f"{speaker:<{width}}", styles.get(speaker, "dim"))
        times = (f"{start:8.2f} {end:8.2f}  {word['probability']:4.2f}  ", "dim")
        overlap = ("  (over another voice)" if word.get("overlap") else "", "dim")
        yield Text.assemble(times, name, "  ", word["word"].strip(), overlap)


def summary(response: dict[str, Any], wall: float) -> str:
    duration = response["duration"]
    about = f"{clock(duration)} of audio, language {response['language'] or 'unknown'}"
    speakers = {entry["speaker"] for entry in response["speakers"] if entry["speaker"]}
    if speakers:
        about += f", speakers {len(speakers)}"
    return f"{about}; took {wall:.1f} s, {speed(duration, wall)}"


def show(response: dict[str, Any], wall: float, console: Console) -> None:
    lines = [*(word_lines(response) if "words" in response else transcript_lines(response))]
    text = response["text"].strip()  # without times there are no lines
    for line in lines or [Text(text)] * bool(text):
        console.print(line, soft_wrap=True)
    for note in notes(response):
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(response, wall), style="bold", highlight=False, soft_wrap=True)


class LiveScreen:
    """Shows a live session: words as they come, then dimmed a guess of the next words. Completed
    items become lines, in order; on a terminal the other items are shown below them.
    """

    def __init__(self, transcript: LiveTranscript, console: Console) -> None:
        self._transcript, self._console = transcript, console
        self._printed = 0  # items printed as lines
        self._new_styles = cycle(SPEAKER_STYLES)
        self._styles = defaultdict(lambda: next(self._new_styles), {"": ""})
        self._nameless: list[TranscriptItem] = []  # printed without speakers
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, auto_refresh=False, transient=True, vertical_overflow="visible"
            )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the transcript in the block; print it at the end, again if speakers came late."""
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

    def _waiting(self) -> list[TranscriptItem]:
        return list(self._transcript.items.values())[self._printed :]

    def _print(self, item: TranscriptItem) -> None:
        for line in self._lines(item):
            self._console.print(line, soft_wrap=True)

    def _lines(self, item: TranscriptItem) -> list[Text]:
        named = [(each, each.speaker or "") for each in item.blocks()]
        return [
            turn_line(each.start, (name, self._styles[name]), each.text) for each, name in named
        ]

    def _with_guess(self, item: TranscriptItem) -> list[Text]:
        lines = self._lines(item)
        if item.unstable.strip():
            if not lines:
                lines.append(turn_line(item.start, ("", ""), ""))
            lines[-1].append(f" {item.unstable.strip()}", "dim")
        return lines
