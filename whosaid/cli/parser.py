"""The parser of all command lines: help with examples, one line and status 2 for a mistake.

An option for an environment variable names the variable in its help and has no default: the
settings read the variable if the option is not given.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn
from urllib.parse import urlsplit

from whosaid.model_reference import ModelReference

HELP_WIDTH = 80
VARIABLES = "A name in brackets is the variable that is read if the option is not given."
# An option: its name, its help, and further arguments of `option`.
Option = tuple[str, str, dict[str, Any]]
# Exit status for a wrong command line; FAILED is for a command that could not do its work.
FAILED, WRONG, INTERRUPTED = 1, 2, 130
# Arguments that argparse reads as options.
OPTION = re.compile(r"--?[^\s\d-]\S*")
BOOLEANS = {"True": True, "true": True, "False": False, "false": False}
MOST_SUGGESTED = 4


def exit_at_once(status: int) -> NoReturn:
    """End the process; the interpreter's own exit would wait for threads that compute."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


class CommandParser(argparse.ArgumentParser):
    """argparse's parser without abbreviations, which suggests known options for an unknown one.

    `examples` are pairs of a description and a command line. The usage shows `operands` after the
    options. `variables` maps options that do not exist to environment variables, or
    options, with their effect. `checks` return an error if options contradict each other.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Sequence[tuple[str, str]],
        notes: str = "",
        operands: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [OPTION ...] {operands}".strip(),
            description=description,
            allow_abbrev=False,
        )
        self._examples, self._notes, self._given = examples, notes, list[str]()
        self.variables = {**(variables or {})}
        self.checks: list[Callable[[argparse.Namespace], str | None]] = []

    @property
    def written(self) -> dict[str, str]:
        """Return the options of the command line as the user wrote them, by destination."""
        known = self._option_string_actions
        return {known[name].dest: name for name in self._given if name in known}

    def format_help(self) -> str:
        lines = [f"  # {what}\n  {line}" for what, line in self._examples]
        shown = ["examples:\n" + "\n".join(lines)] if lines else []
        if any((action.help or "").endswith("]") for action in self._actions):
            shown.append(VARIABLES)
        notes = [fill(self._notes, HELP_WIDTH)] if self._notes else []
        return "\n".join([super().format_help(), *(f"{part}\n" for part in shown + notes)])

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Parse as argparse does. Underscores in option names are hyphens, and a flag may be
        followed by True or False. An unknown option is reported before any other error.
        """
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        before = self._without_booleans(_with_hyphens(given[:end]))
        names = (each.partition("=")[0] for each in before)
        self._given = [name for name in names if OPTION.fullmatch(name)]
        for name in self._given:
            if self._option_string_actions.keys().isdisjoint((name, name[:2])):
                self.error(f"unknown option {ascii(name)[1:-1]}{self._suggestion(name)}")
        options = super().parse_args(before + given[end:], namespace)
        for wrong in filter(None, (check(options) for check in self.checks)):
            self.error(wrong)
        return options

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line, with an option's name as the user wrote it."""
        names, colon, wrong = message.removeprefix("argument ").partition(": ")
        if colon and names.startswith("-"):
            known = names.split("/")
            names = next((name for name in known if name in self._given), known[0])
        line = f"{names}{colon}{wrong}"
        self.exit(WRONG, f"{self.prog}: {line} ({self.prog} --help lists the options)\n")

    def _without_booleans(self, arguments: list[str]) -> list[str]:
        """Rewrite flags in openai/whisper's style: `--flag True` and `--flag=True` become `--flag`;
        `--flag False` becomes `--no-flag`, or is dropped if that does not exist.
        """
        written: list[str] = []
        for each in arguments:
            if each in BOOLEANS and written and self._is_flag(written[-1]):
                each = f"{written.pop()}={each}"
            name, _, value = each.partition("=")
            if value not in BOOLEANS or not self._is_flag(name):
                written.append(each)
            elif BOOLEANS[value]:
                written.append(name)
            elif (opposite := _opposite(name)) in self._option_string_actions:
                written.append(opposite)
        return written

    def _is_flag(self, name: str) -> bool:
        action = self._option_string_actions.get(name)
        return action is not None and action.nargs == 0

    def _suggestion(self, name: str) -> str:
        """Suggest a variable or options; return "" if none is similar to `name`."""
        if other := self.variables.get(name):
            set_ = f"; set the variable {other} instead"
            return f"; did you mean {other}?" if other.startswith("-") else set_
        known = [each for each in self._option_string_actions if each != _opposite(name)]
        near = get_close_matches(name, known, 1, 0.82)
        parts = set(name[2:].split("-"))
        longer = [
            each
            for each in known
            if each.startswith(name) or (parts <= set(each[2:].split("-")) and each[:5] != "--no-")
        ]
        named = (longer if len(name) > 4 and len(longer) <= MOST_SUGGESTED else []) or near
        return f"; did you mean {' or '.join(named)}?" if named else ""


def _opposite(name: str) -> str:
    return f"--{name[5:]}" if name.startswith("--no-") else f"--no-{name[2:]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean KNOWN?` for the most similar name, or ""."""
    nearest = get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def one_of(*names: str) -> Callable[[str], str]:
    """Return an option's type: one of `names`, with a suggestion for any other."""

    def read(text: str) -> str:
        if text in names:
            return text
        told = f"{text[:40]!a} is none of {', '.join(names)}{did_you_mean(text, names)}"
        raise argparse.ArgumentTypeError(told)

    return read


def some_of(*names: str) -> Callable[[str], list[str]]:
    """Return an option's type: some of `names`, separated by commas, each once."""
    read = one_of(*names)

    def read_all(text: str) -> list[str]:
        return list(dict.fromkeys(read(each.strip()) for each in text.split(",")))

    return read_all


def whole_number(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Return an option's type: a whole number of at least `lowest`, and at most `highest`."""
    bounds = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
        if number is None or number < lowest or (highest is not None and number > highest):
            raise argparse.ArgumentTypeError(f"should be a whole number, {bounds}")
        return number

    return read


def web_address(text: str) -> str:
    """Return a URL. WebSocket's schemes name a server too."""
    try:
        parts = urlsplit(text)
        there = parts.hostname is not None and parts.port != 0
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not an address: {error}") from error
    if parts.scheme not in ("http", "https", "ws", "wss") or not there:
        raise argparse.ArgumentTypeError("should begin with http:// or https://, and name a host")
    return text


def model(text: str) -> str:
    """Return a folder's absolute path, or a Hub id; short names are completed."""
    folder = Path(text).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    try:
        return str(ModelReference.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def option(
    group: argparse._ActionsContainer,
    name: str,
    help_text: str,
    variable: str = "",
    also: Sequence[str] = (),
    **how: Any,  # noqa: ANN401
) -> None:
    """Add an option with names `also`; the help names the `variable` that is read without it."""
    shown = f"{help_text} [{variable}]" if variable else help_text
    group.add_argument(name, *also, help=shown, **how)


def add_options(
    parser: CommandParser, title: str, description: str, options: Iterable[Option]
) -> None:
    group = parser.add_argument_group(title, description or None)
    for name, help_text, how in options:
        option(group, name, help_text, **how)


def argument(name: str, help_text: str, metavar: str | None = None, **how: Any) -> Option:  # noqa: ANN401
    return name, help_text, {"metavar": metavar, **how}


def count(name: str, help_text: str, highest: int | None = None, **how: Any) -> Option:  # noqa: ANN401
    return name, help_text, {"type": whole_number(1, highest), "metavar": "N", **how}


def flag(name: str, help_text: str, const: object = True, **how: Any) -> Option:  # noqa: ANN401
    return name, help_text, {"action": "store_const", "const": const, **how}


def _with_hyphens(arguments: list[str]) -> list[str]:
    """Write options with hyphens: openai/whisper's `--output_format` is `--output-format`."""
    written = []
    for each in arguments:
        name, equals, value = each.partition("=")
        written.append(f"{name.replace('_', '-')}{equals}{value}" if each[:2] == "--" else each)
    return written
