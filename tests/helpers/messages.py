"""Prints every message that a person may see, one a line with its place, to be read in a row:
`python -m tests.helpers.messages [PATTERN]` prints those that match a regular expression.

Messages are the texts of errors, log lines, terminal lines and help, found in the syntax trees."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from config import REPOSITORY

LOGS = {"debug", "info", "warning", "error", "critical", "exception"}
PRINTS = {"print", "say", "fail", "error", "exit", "Field", "option", "add_argument", "get", "post"}


def messages(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the messages in a module: sentences in the arguments of exceptions,
    logs, printing functions and descriptions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _tells(node.func):
            for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if (found := _template(value)) and " " in found.strip():
                    yield value.lineno, " ".join(found.split())


def _tells(function: ast.expr) -> bool:
    name = getattr(function, "attr", None) or getattr(function, "id", "")
    return name in LOGS | PRINTS or (name[:1].isupper() and not name.isupper())


def _template(value: ast.expr) -> str:
    """Return a constant text, with {} for the parts that are filled in; "" for other values."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(_template(part) or "{}" for part in value.values)
    return ""


def main(pattern: str = "") -> None:
    listed = ["git", "ls-files", "*.py", ":!tests", ":!benchmarks", ":!extras/*/tests"]
    files = subprocess.check_output(listed, cwd=REPOSITORY, text=True)
    for path in map(Path, files.split()):
        for line, text in sorted(set(messages((REPOSITORY / path).read_text(encoding="utf-8")))):
            if re.search(pattern, text):
                print(f"{path}:{line}: {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
