"""A transcript as a person reads it on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from whosaid.transcribe.screen import notes, speed

SPEAKER_STYLES = ("cyan", "magenta", "yellow", "green", "bright_blue", "bright_red")


def clock(seconds: float) -> str:
    """Write `75.5` as `1:15.5`."""
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f}:{rest:04.1f}"


def speaker_styles(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    speakers = sorted({entry["speaker"] for entry in entries if entry.get("speaker")})
    return {speaker: SPEAKER_STYLES[i % len(SPEAKER_STYLES)] for i, speaker in enumerate(speakers)}


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
        name = word.get("speaker") or ""
        times = (f"{start:8.2f} {end:8.2f}  {word['probability']:4.2f}  ", "dim")
        overlap = ("  (over another voice)" if word.get("overlap") else "", "dim")
        yield Text.assemble(
            times,
            (f"{name:<{width}}", styles.get(name, "dim")),
            "  ",
            word["word"].strip(),
            overlap,
        )


def summary(response: dict[str, Any], wall: float) -> str:
    duration = response["duration"]
    about = f"{clock(duration)} of audio, language {response['language'] or 'unknown'}"
    speakers = {entry["speaker"] for entry in response["speakers"] if entry["speaker"]}
    if speakers:
        about += f", speakers {len(speakers)}"
    return f"{about}; took {wall:.1f} s, {speed(duration, wall)}"


def show(response: dict[str, Any], wall: float, console: Console) -> None:
    for line in word_lines(response) if "words" in response else transcript_lines(response):
        console.print(line, soft_wrap=True)
    if not response["chunks"]:
        console.print("(no speech)", style="dim")
    for note in notes(response):
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(response, wall), style="bold", highlight=False, soft_wrap=True)
