"""`python -m extras.conditioning train` and `evaluate`: an encoder that follows one speaker."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from whosaid.cli.parser import CommandParser, one_of, option, whole_number
from whosaid.errors import EndpointError

COMMAND = "python -m extras.conditioning"
COMMON = "--model openai/whisper-base --recordings voices/ --out conditioning"
EXAMPLES = (
    ("train an encoder", f"{COMMAND} train {COMMON}"),
    ("its word errors", f"{COMMAND} evaluate {COMMON}"),
)


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of a command. Ends the process with status 2 if they are wrong."""
    parser = CommandParser(
        COMMAND,
        "Train an encoder to follow one speaker where several talk at once, or evaluate it.",
        EXAMPLES,
        "A recording has one voice; its speaker is its file name up to the first hyphen.",
    )
    parser.add_argument(
        "command", type=one_of("train", "evaluate"), metavar="COMMAND", help="train or evaluate"
    )
    add = partial(option, parser)
    add("--model", "a Whisper: a Hub id or a folder", required=True)
    add("--recordings", "a folder of audio files, or a manifest", type=Path, required=True)
    add("--out", "the folder of the encoder and its card", type=Path, required=True)
    add("--language", "of all recordings; default: en", default="en")
    add("--device", "default: auto", type=one_of("auto", "cuda", "cpu"), default="auto")
    add("--minutes", "how long to train; default: 60", type=float, default=60.0)
    add("--rank", "of the low-rank updates; default: 16", type=whole_number(1), default=16)
    targets = "the most pieces of speech to follow; default: 2000"
    add("--targets", targets, type=whole_number(2), default=2000)
    part = "whose voices to evaluate, development or test; default: test"
    add("--part", part, type=one_of("development", "test"), default="test")
    add("--pairs", "pairs of voices to evaluate; default: 20", type=whole_number(1), default=20)
    options: Namespace = parser.parse_args(arguments)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Ends the process with one line if it fails."""
    options = read(arguments)
    from extras.conditioning import commands  # after the options, because it loads torch

    try:
        {"train": commands.train, "evaluate": commands.evaluate}[options.command](options)
    except (EndpointError, OSError, ValueError) as error:
        sys.exit(f"{COMMAND} {options.command}: {error}")


if __name__ == "__main__":
    main()
