"""`scripts/demo`: hear the endpoint out as a client would, and show the answer to a person.

The one decision: the demo knows nothing that a client could not know. It sends the documented JSON
to `EndpointHandler` and draws what comes back; its progress display reads the endpoint's own log
records.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from config import ModelSettings
from errors import EndpointError

REPOSITORY = Path(__file__).resolve().parent.parent
CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
SPEAKER_STYLES = ("cyan", "magenta", "yellow", "green", "bright_blue", "bright_red")


class ProgressLog(logging.Handler):
    """Shows the endpoint's log records as one line of progress: the step's name, and how far where
    it counts.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self.progress = progress
        self.task = progress.add_task("starting", total=None)

    def emit(self, record: logging.LogRecord) -> None:
        """Take over the record's message and, where it has them, its `done` and `total`."""
        self.progress.update(
            self.task,
            description=record.getMessage(),
            completed=getattr(record, "done", 0),
            total=getattr(record, "total", None),
        )


@contextmanager
def progress_shown(console: Console) -> Iterator[None]:
    """Display what the endpoint logs while the block runs; nothing is left on the screen
    afterwards.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    logger = logging.getLogger("endpoint")
    with Progress(*columns, console=console, transient=True) as progress:
        shown = ProgressLog(progress)
        logger.addHandler(shown)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(shown)


def request_body(options: argparse.Namespace) -> dict[str, Any]:
    """The JSON a client sends, after a round trip through its text form."""
    parameters = {
        "assisted": options.assisted,
        "return_timestamps": "word" if options.words else True,
        "output": ["srt"] if options.srt else [],
    }
    body = {
        "inputs": base64.b64encode(options.audio.read_bytes()).decode(),
        "parameters": parameters,
    }
    decoded: dict[str, Any] = json.loads(json.dumps(body))
    return decoded


def clock(seconds: float) -> str:
    """`75.5` as `1:15.5`."""
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f}:{rest:04.1f}"


def colours(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A colour for each speaker named in `entries`."""
    speakers = sorted({entry["speaker"] for entry in entries if entry.get("speaker")})
    return {speaker: SPEAKER_STYLES[i % len(SPEAKER_STYLES)] for i, speaker in enumerate(speakers)}


def transcript_lines(response: dict[str, Any]) -> Iterator[Text]:
    """One line a turn: when, who in a colour of their own, what. Chunks where nobody was told
    apart.
    """
    entries = response["speakers"] or response["chunks"]
    styles = colours(entries)
    width = max(map(len, styles), default=0)
    for entry in entries:
        speaker = entry.get("speaker") or ""
        name = (f"{speaker:<{width}}", styles.get(speaker, "dim"))
        yield Text.assemble(
            (f"{clock(entry['timestamp'][0]):>7}", "dim"), "  ", name, "  ", entry["text"].strip()
        )


def word_lines(response: dict[str, Any]) -> Iterator[Text]:
    """One line a word: from when to when, how sure, who, what; marked where another voice is heard
    too.
    """
    styles = colours(response["words"])
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
    """Duration, wall time and how many times faster than playing it that was."""
    duration = response["duration"]
    speakers = len({entry["speaker"] for entry in response["speakers"] if entry["speaker"]})
    heard = f"{clock(duration)} of audio, language {response['language'] or 'unknown'}, speakers {speakers}"
    return f"{heard}; took {wall:.1f} s, {duration / wall:.1f} times faster than playing it"


def show(response: dict[str, Any], wall: float, console: Console) -> None:
    """The transcript, its warnings and the summary, as a person wants to read them."""
    for line in word_lines(response) if "words" in response else transcript_lines(response):
        console.print(line, soft_wrap=True)
    if not response["chunks"]:
        console.print("(no speech)", style="dim")
    for warning in response["warnings"]:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    console.print(summary(response, wall), style="bold", highlight=False, soft_wrap=True)


def refused(reason: str, console: Console) -> int:
    """Print the reason, whole and on one line; returns the exit status."""
    console.print(reason, style="red", markup=False, highlight=False, soft_wrap=True)
    return 1


def answer(body: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Load the endpoint and send it one request; returns its response and the wall time in seconds,
    loading excluded.

    The handler is imported here because that takes seconds, which the progress display should
    already cover.
    """
    from handler import EndpointHandler

    endpoint = EndpointHandler(str(REPOSITORY), ModelSettings.for_demo())
    started = time.perf_counter()
    response = endpoint(body)
    return response, time.perf_counter() - started


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The demo's command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Transcribe a conversation with its speakers."
    )
    parser.add_argument(
        "audio",
        nargs="?",
        type=Path,
        default=CONVERSATION,
        help="default: the bundled conversation",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the endpoint's raw answer")
    form.add_argument(
        "--words", action="store_true", help="print every word with its times and speaker"
    )
    form.add_argument("--srt", action="store_true", help="print subtitles")
    parser.add_argument(
        "--assisted", action="store_true", help="let the assistant draft (speculative decoding)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status is 1 where the endpoint refuses the audio or the file cannot be
    read.
    """
    options = parse_arguments(arguments)
    out, err = Console(), Console(stderr=True)
    try:
        body = request_body(options)
    except OSError as error:
        return refused(f"{options.audio}: {error.strerror}", err)
    try:
        with progress_shown(err):
            response, wall = answer(body)
    except (
        EndpointError,
        ValueError,
    ) as error:  # ValueError: an environment that names no usable model
        return refused(str(error), err)
    if options.json:
        sys.stdout.write(json.dumps(response, indent=2, ensure_ascii=False) + "\n")
    elif options.srt:
        sys.stdout.write(response["output"]["srt"])
    else:
        show(response, wall, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
