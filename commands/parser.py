"""One look for all command lines: help with examples, one line and status 2 for what is wrong.

An option that stands for a variable of the environment names it in the help and has no default of
its own: what is not given is left to the settings, which read the variable.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

HELP_WIDTH = 80
VARIABLES = "A name in brackets is the variable that is read where the option is not given."
# A wrong command line; a command that could not do its work ends with FAILED.
FAILED, WRONG, INTERRUPTED = 1, 2, 130
OPTION = re.compile(r"--?[^\s\d-]\S*")


class CommandParser(argparse.ArgumentParser):
    """argparse's parser without abbreviations, which names the nearest option to an unknown one.

    `examples` are pairs of what it does and the command line that does it; `operands` is what the
    usage shows after the options.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Sequence[tuple[str, str]],
        notes: str = "",
        operands: str = "",
    ) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [OPTION ...] {operands}".strip(),
            description=description,
            allow_abbrev=False,
        )
        self._examples, self._notes = examples, notes

    def format_help(self) -> str:
        """Argparse's help, then the examples, a line each, then the notes."""
        lines = [f"  # {what}\n  {line}" for what, line in self._examples]
        shown = ["examples:\n" + "\n".join(lines)] if lines else []
        if any((action.help or "").endswith("]") for action in self._actions):
            shown.append(VARIABLES)
        notes = [fill(self._notes, HELP_WIDTH)] if self._notes else []
        return "\n".join([super().format_help(), *(f"{part}\n" for part in shown + notes)])

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401
        """As argparse's; an unknown option is told before anything else that is wrong."""
        given = _with_hyphens(list(sys.argv[1:] if args is None else args))
        for name in _option_names(given):
            if name not in self._option_string_actions:
                self.error(f"unknown option {ascii(name)[1:-1]}{self._nearest(name)}")
        return super().parse_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line."""
        line = message.removeprefix("argument ")
        self.exit(WRONG, f"{self.prog}: {line} ({self.prog} --help lists the options)\n")

    def _nearest(self, name: str) -> str:
        return did_you_mean(name, self._option_string_actions)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean KNOWN?` for the name most like `name`, or nothing where none is like it."""
    nearest = get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def one_of(*names: str) -> Callable[[str], str]:
    """An option's type: one of `names`; the nearest one is named where it is none."""

    def read(text: str) -> str:
        if text in names:
            return text
        raise argparse.ArgumentTypeError(
            f"{text[:40]!a} is none of {', '.join(names)}{did_you_mean(text, names)}"
        )

    return read


def some_of(*names: str) -> Callable[[str], list[str]]:
    """An option's type: some of `names` with commas between them, each once."""
    read = one_of(*names)

    def read_all(text: str) -> list[str]:
        return list(dict.fromkeys(read(each.strip()) for each in text.split(",")))

    return read_all


def whole_number(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """An option's type: a whole number of at least `lowest`, and at most `highest` if given."""
    bounds = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
        if number is None or number < lowest or (highest is not None and number > highest):
            raise argparse.ArgumentTypeError(f"should be a whole number, {bounds}")
        return number

    return read


def web_address(text: str) -> str:
    """An option's type: the address of a server, with its scheme."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError("should begin with http:// or https://")
    return text


def model(text: str) -> str:
    """An option's type: a folder's absolute path, seen from where the command was started; other
    text, which may be a hub id, unchanged.
    """
    folder = Path(text).expanduser()
    return str(folder.resolve()) if folder.is_dir() else text


def option(
    group: argparse._ActionsContainer,
    name: str,
    help_text: str,
    variable: str = "",
    **how: Any,  # noqa: ANN401
) -> None:
    """Add an option that, where `variable` is named, is that variable's value if it is not given.

    `how` goes to argparse.
    """
    told = f"{help_text} [{variable}]" if variable else help_text
    group.add_argument(name, help=told, **how)


def _with_hyphens(arguments: list[str]) -> list[str]:
    """`--output_format`, as openai/whisper and others write it, is `--output-format`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    written = []
    for each in arguments[:end]:
        name, equals, value = each.partition("=")
        written.append(f"{name.replace('_', '-')}{equals}{value}" if each[:2] == "--" else each)
    return written + arguments[end:]


def _option_names(arguments: Sequence[str]) -> list[str]:
    """What argparse takes for options, before a bare `--`: no negative number, and no sentence."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = [each.partition("=")[0] for each in arguments[:end]]
    return [name for name in names if OPTION.fullmatch(name)]
