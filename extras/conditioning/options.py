"""The command lines of `python -m extras.conditioning`, read by the standard library alone."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from whosaid.cli.parser import CommandParser, one_of, option, whole_number

EXAMPLES = {
    "train": "python -m extras.conditioning train --model openai/whisper-base --recordings voices/"
    " --out conditioning",
    "evaluate": "python -m extras.conditioning evaluate --model openai/whisper-base"
    " --recordings voices/ --conditioning conditioning",
}


@dataclass(frozen=True)
class Plan:
    """How long and how an encoder is trained. Of at most `targets` pieces the model's own texts are
    made; others only talk beside them.
    """

    minutes: float = 60.0
    targets: int = 2000
    rank: int = 16
    batch: int = 4
    rate: float = 1e-3
    transform_rate: float = 3e-3
    save_every: float = 5.0


HELP = {
    "minutes": "how long to train",
    "targets": "the most pieces of speech to follow",
    "rank": "of the updates of the encoder's products",
    "batch": "mixtures in a training step",
    "rate": "the highest learning rate of those updates",
    "transform_rate": "the highest learning rate of the transformations of frames",
    "save_every": "minutes between savings",
}


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of a command, `train` or `evaluate`, with its name as `command`.

    Ends the process with status 2 if they are wrong.
    """
    parser = CommandParser(
        "python -m extras.conditioning",
        "Train an encoder to follow one speaker where several talk at once, and evaluate it.",
        [("train an encoder", EXAMPLES["train"]), ("its word errors", EXAMPLES["evaluate"])],
        "A recording is of one voice; its speaker is its file name up to the first hyphen.",
    )
    parser.add_argument(
        "command", type=one_of(*EXAMPLES), metavar="COMMAND", help="train, or evaluate"
    )
    add = partial(option, parser)
    add("--model", "a Whisper: a Hub id or a folder", required=True, metavar="MODEL")
    add("--recordings", "a folder of audio files, or a manifest", type=Path, required=True)
    add("--language", "of all recordings; default: en", default="en", metavar="CODE")
    add("--device", "default: auto", type=one_of("auto", "cuda", "cpu"), default="auto")
    add("--out", "train: the folder of the encoder, its card and the training's state", type=Path)
    for name, help_text in HELP.items():
        default = getattr(Plan, name)
        kind = whole_number(1) if isinstance(default, int) else float
        shown = f"train: {help_text}; default: {default}"
        add(f"--{name.replace('_', '-')}", shown, type=kind, default=default, metavar="N")
    add("--conditioning", "evaluate: the folder that train wrote", type=Path)
    part = "evaluate: whose voices, development or test; default: test"
    add("--part", part, type=one_of("development", "test"), default="test")
    add("--pairs", "evaluate: pairs of voices; default: 20", type=whole_number(1), default=20)
    options: Namespace = parser.parse_args(arguments)
    needed = "out" if options.command == "train" else "conditioning"
    if getattr(options, needed) is None:
        parser.error(f"{options.command} needs --{needed} FOLDER")
    return options
