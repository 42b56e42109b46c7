"""The command lines of `python -m extras.medusa`, read by the standard library alone."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whosaid.cli import manifest
from whosaid.cli.parser import CommandParser, one_of, option, whole_number

EXAMPLES = (
    (
        "train heads for a Whisper",
        "python -m extras.medusa train --model openai/whisper-small --recordings talks/"
        " --output-dir heads",
    ),
    (
        "what they are worth on other recordings",
        "python -m extras.medusa evaluate --model openai/whisper-small --heads heads"
        " --recordings talks/",
    ),
)


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


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of a command, `train` or `evaluate`, with its name as `command`.

    Ends the process with status 2 if they are wrong.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] not in (["train"], ["evaluate"]):
        parser = CommandParser(
            "python -m extras.medusa",
            "Train Medusa heads for a Whisper, and measure what they are worth.",
            EXAMPLES,
            "python -m extras.medusa COMMAND --help lists the options of a command.",
            operands="COMMAND",
        )
        parser.add_argument(
            "command",
            type=one_of("train", "evaluate"),
            metavar="COMMAND",
            help="train, or evaluate",
        )
        listed: Namespace = parser.parse_args(given[:1])
        return listed
    command = given[0]
    add, example = (_add_train, 0) if command == "train" else (_add_evaluate, 1)
    parser = CommandParser(
        f"python -m extras.medusa {command}",
        "Train heads and write them, with their model card, to a folder. The same command resumes"
        " a run that was broken off."
        if command == "train"
        else "Print seconds and accepted drafts of heads, beside the model alone.",
        [EXAMPLES[example]],
        manifest.HELP,
    )
    _add_common(parser)
    add(parser)
    options: Namespace = parser.parse_args(given[1:])
    options.command = command
    return options


def _add_common(parser: CommandParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="a Whisper: a Hub id or a folder"
    )
    parser.add_argument(
        "--recordings",
        type=Path,
        required=True,
        metavar="FOLDER_OR_FILE",
        help="a folder of audio files, or a manifest",
    )
    option(
        parser,
        "--device",
        "auto, cuda or cpu; default: auto",
        type=one_of("auto", "cuda", "cpu"),
        default="auto",
        metavar="DEVICE",
    )


def _add_train(parser: CommandParser) -> None:
    parser.add_argument(
        "--output-dir",
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where the heads are written",
    )
    option(
        parser,
        "--work",
        "where decoded texts and the state of the training are kept; default: build/medusa",
        type=Path,
        metavar="FOLDER",
    )
    for name, help_text in (
        ("heads", "tokens that are drafted ahead"),
        ("layers", "residual blocks of each head"),
        ("epochs", "the most passes over the training windows"),
        ("patience", "epochs without longer accepted chains after which training ends"),
        ("batch", "positions in a training step"),
        ("rate", "the highest learning rate"),
        ("shortlist", "tokens that heads draft from, if the vocabulary has more"),
    ):
        default = getattr(Plan, name)
        whole = isinstance(default, int)
        option(
            parser,
            f"--{name}",
            f"{help_text}; default: {default}",
            type=whole_number(int(name != "shortlist")) if whole else float,
            default=default,
            metavar="N" if whole else "NUMBER",
        )


def _add_evaluate(parser: CommandParser) -> None:
    option(
        parser,
        "--heads",
        "a Hub id or a folder; default: those of the model itself",
        metavar="HEADS",
    )
    for name, default, help_text in (
        ("--batch-size", 24, "windows decoded together"),
        ("--repeats", 3, "how often each recording is timed"),
    ):
        told = f"{help_text}; default: {default}"
        option(parser, name, told, type=whole_number(1), default=default, metavar="N")
