"""The command lines of `python -m extras.medusa`; imports only the standard library."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whosaid.cli import manifest
from whosaid.cli.parser import CommandParser, Option, argument, count, one_of, option, whole_number

PROGRAM = "python -m extras.medusa"


@dataclass(frozen=True)
class Plan:
    """How heads are trained; after `patience` epochs without longer chains on held-out windows it
    ends. Vocabularies larger than `shortlist` are cut to as many tokens.
    """

    heads: int = 5
    layers: int = 1
    epochs: int = 8
    patience: int = 3
    batch: int = 512
    rate: float = 4e-3
    shortlist: int = 8000


def _planned(name: str, help_text: str, lowest: int = 1) -> Option:
    default = getattr(Plan, name)
    whole = isinstance(default, int)
    kind = whole_number(lowest) if whole else float
    metavar = "N" if whole else "NUMBER"
    told = f"{help_text}; default: {default}"
    return argument(f"--{name}", told, metavar, type=kind, default=default)


COMMON = (
    argument("--model", "a Whisper: a Hub id or a folder", required=True),
    argument("--recordings", "a folder of audio files, or a manifest", type=Path, required=True),
    argument("--device", "default: auto", type=one_of("auto", "cuda", "cpu"), default="auto"),
)
TRAIN = (
    argument(
        "--output-dir", "for the heads", "FOLDER", also=("--output",), type=Path, required=True
    ),
    argument("--work", "a folder for texts and the state; default: build/medusa", type=Path),
    _planned("heads", "tokens that are drafted ahead"),
    _planned("layers", "residual blocks of each head"),
    _planned("epochs", "most passes over the training windows"),
    _planned("patience", "epochs without longer accepted chains after which training ends"),
    _planned("batch", "positions in a training step"),
    _planned("rate", "the highest learning rate"),
    _planned("shortlist", "tokens that heads draft from, if the vocabulary has more", 0),
)
EVALUATE = (
    argument("--heads", "a Hub id or a folder; default: the model's own", "HEADS"),
    count("--batch-size", "windows decoded together; default: 24", default=24),
    count("--repeats", "repeats of each recording; default: 3", default=3),
)
# Description, example and options of each command.
COMMANDS: dict[str, tuple[str, tuple[str, str], tuple[Option, ...]]] = {
    "train": (
        "Train heads and write them, with their model card, to a folder. The same command resumes"
        " an interrupted run.",
        (
            "train heads for a Whisper",
            f"{PROGRAM} train --model openai/whisper-small --recordings talks/ --output-dir heads",
        ),
        TRAIN,
    ),
    "evaluate": (
        "Print seconds and accepted drafts of heads, compared with the model alone.",
        (
            "their gain on other recordings",
            f"{PROGRAM} evaluate --model openai/whisper-small --heads heads --recordings talks/",
        ),
        EVALUATE,
    ),
}


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of the given `command`; exit with status 2 if they are wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in COMMANDS:
        parser = CommandParser(
            PROGRAM,
            "Train and evaluate Medusa heads for a Whisper.",
            [example for _, example, _ in COMMANDS.values()],
            f"{PROGRAM} COMMAND --help lists the options of a command.",
            operands="COMMAND",
        )
        parser.add_argument(
            "command", type=one_of(*COMMANDS), metavar="COMMAND", help=", or ".join(COMMANDS)
        )
        listed: Namespace = parser.parse_args(given[:1])
        return listed
    description, example, own = COMMANDS[given[0]]
    parser = CommandParser(f"{PROGRAM} {given[0]}", description, [example], manifest.HELP)
    for name, help_text, how in (*COMMON, *own):
        option(parser, name, help_text, **how)
    options: Namespace = parser.parse_args(given[1:])
    options.command = given[0]
    return options
