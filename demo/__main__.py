"""`scripts/demo`: sends one recording to the endpoint and prints the answer for a person.

The one decision: the demo is a client. It sends the documented JSON to `EndpointHandler` and prints
what comes back; its progress display shows the endpoint's own log records. Everything but the
answer goes to stderr, and every failure is one line there and exit status 1.
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
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from config import ModelSettings
from errors import ClientError, EndpointError, StartError
from model_sources.choice import EMBEDDED, VOCABULARY_SIZE, Screen, choose, source

REPOSITORY = Path(__file__).resolve().parent.parent
CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
SPEAKER_STYLES = ("cyan", "magenta", "yellow", "green", "bright_blue", "bright_red")


class ProgressLog(logging.Handler):
    """Shows the endpoint's log records as one line of progress with a bar where they count."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self.progress = progress
        self.task = progress.add_task("starting", total=None)

    def emit(self, record: logging.LogRecord) -> None:
        """Show the record's message and, where it has them, its `done` and `total`."""
        self.progress.update(
            self.task,
            description=record.getMessage(),
            completed=getattr(record, "done", 0),
            total=getattr(record, "total", None),
        )


@contextmanager
def progress_shown(console: Console) -> Iterator[None]:
    """Show what the endpoint logs while the block runs, on a terminal; it disappears afterwards."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    logger = logging.getLogger("endpoint")
    terminal = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not terminal) as progress:
        shown = ProgressLog(progress)
        logger.addHandler(shown)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(shown)


def request_body(options: argparse.Namespace) -> dict[str, Any]:
    """The JSON that a client would send, after a round trip through its text form.

    Raises OSError where the file cannot be read.
    """
    parameters = {
        "assisted": options.assisted or options.assistant is not None,
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


def speaker_styles(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A colour for each speaker named in `entries`."""
    speakers = sorted({entry["speaker"] for entry in entries if entry.get("speaker")})
    return {speaker: SPEAKER_STYLES[i % len(SPEAKER_STYLES)] for i, speaker in enumerate(speakers)}


def transcript_lines(response: dict[str, Any]) -> Iterator[Text]:
    """One line a turn: start time, speaker, text. One line a chunk where there are no speakers."""
    entries = response["speakers"] or response["chunks"]
    styles = speaker_styles(entries)
    width = max(map(len, styles), default=0)
    for entry in entries:
        speaker = entry.get("speaker") or ""
        name = (f"{speaker:<{width}}", styles.get(speaker, "dim"))
        yield Text.assemble(
            (f"{clock(entry['timestamp'][0]):>7}", "dim"), "  ", name, "  ", entry["text"].strip()
        )


def word_lines(response: dict[str, Any]) -> Iterator[Text]:
    """One line a word: start, end, probability, speaker, word; marked where speakers overlap."""
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
    """Duration, language, number of speakers where there are any, wall time and speed."""
    duration = response["duration"]
    about = f"{clock(duration)} of audio, language {response['language'] or 'unknown'}"
    speakers = {entry["speaker"] for entry in response["speakers"] if entry["speaker"]}
    if speakers:
        about += f", speakers {len(speakers)}"
    return f"{about}; took {wall:.1f} s, {duration / wall:.1f} times faster than playing it"


def show(response: dict[str, Any], wall: float, console: Console) -> None:
    """Print the transcript, its warnings and the summary."""
    for line in word_lines(response) if "words" in response else transcript_lines(response):
        console.print(line, soft_wrap=True)
    if not response["chunks"]:
        console.print("(no speech)", style="dim")
    for warning in response["warnings"]:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    console.print(summary(response, wall), style="bold", highlight=False, soft_wrap=True)


def tell(console: Console, text: str) -> None:
    """Print what the user should know before the answer comes."""
    console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def refuse(reason: str, console: Console) -> int:
    """Print the reason on one line and return the exit status of a failure."""
    console.print(reason, style="red", markup=False, highlight=False, soft_wrap=True)
    return 1


def answer(
    body: dict[str, Any], settings: ModelSettings, console: Console
) -> tuple[dict[str, Any], float]:
    """Load the endpoint and send it one request; the response and its wall time in seconds.

    Loading is not timed. The endpoint is imported here because that takes seconds, which the
    progress display covers. Raises EndpointError and, where the endpoint cannot start, SystemExit.
    """
    with progress_shown(console):
        from handler import EndpointHandler

        endpoint = EndpointHandler(str(REPOSITORY), settings)
        started = time.perf_counter()
        response = endpoint(body)
        return response, time.perf_counter() - started


def print_answer(response: dict[str, Any], wall: float, options: argparse.Namespace) -> None:
    """Print the response to stdout in the form that was asked for."""
    if options.json:
        sys.stdout.write(json.dumps(response, indent=2, ensure_ascii=False) + "\n")
    elif options.srt:
        sys.stdout.write(response["output"]["srt"])
    else:
        show(response, wall, Console())


def model_reference(text: str) -> str:
    """A folder's absolute path, relative to where the demo was started; other text unchanged, and
    the name of the embedded models.
    """
    folder = Path(text).expanduser()
    return str(folder.resolve()) if folder.is_dir() and text != EMBEDDED else text


def is_bundled(options: argparse.Namespace) -> bool:
    """Whether the recording is the bundled conversation."""
    return bool(options.audio.resolve() == CONVERSATION)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The demo's command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Transcribe a recording with its speakers.",
        epilog="MODEL is a hub id (owner/name or owner/name@revision), downloaded once, or a"
        " folder. Without --model a recording of your own is heard by OpenAI's Whisper base,"
        " fetched once, and the bundled conversation by the small embedded models, which"
        f" --model {EMBEDDED} names and which know {VOCABULARY_SIZE} words.",
    )
    parser.add_argument(
        "audio", nargs="?", type=Path, default=CONVERSATION, help="default: the bundled one"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the endpoint's answer as it is")
    form.add_argument("--words", action="store_true", help="print every word with its times")
    form.add_argument("--srt", action="store_true", help="print subtitles")
    parser.add_argument(
        "--assisted", action="store_true", help="let the assistant draft (speculative decoding)"
    )
    models = parser.add_argument_group("models of your own")
    for option, help_text in (
        ("--model", f"a Whisper, such as openai/whisper-small, or {EMBEDDED}"),
        ("--assistant", "a smaller Whisper that drafts for it; implies --assisted"),
        ("--diarization", "a pyannote pipeline; with --model there are no speakers without one"),
    ):
        models.add_argument(option, type=model_reference, metavar="MODEL", help=help_text)
    options = parser.parse_args(arguments)
    beside = options.assistant or options.diarization
    if beside and not source(options.model, is_bundled(options)).takes_options:
        parser.error("--assistant and --diarization go with --model or a recording of your own")
    return options


def run(options: argparse.Namespace, err: Console) -> int:
    """Answer the command line and return the exit status."""
    try:
        body = request_body(options)
    except OSError as error:
        return refuse(f"{options.audio}: {error.strerror}", err)
    bundled = is_bundled(options)
    try:
        screen = Screen(partial(tell, err), partial(progress_shown, err))
        response, wall = answer(body, choose(options, bundled, screen), err)
    except ClientError as error:
        return refuse(f"{options.audio}: {error}", err)
    except (EndpointError, ValueError, SystemExit) as error:
        reason = str(error).removeprefix(f"{StartError.code}: ")
        for field, name in source(options.model, bundled).names.items():
            reason = reason.replace(field.upper(), name)
        return refuse(reason, err)
    print_answer(response, wall, options)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status is 1 where there is no answer, 2 for a wrong command line."""
    try:
        return run(parse_arguments(arguments), Console(stderr=True))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
