"""Prints which lines of the page's JavaScript its tests run:

    .venv/bin/python -m tests.helpers.page_coverage

Chromium counts them itself (V8's precise coverage, by the DevTools protocol), but not those of the
audio worklet, which runs in a thread of its own.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
STATIC = REPOSITORY / "whosaid" / "server" / "page" / "static"
TESTS = [f"tests/test_server_page{part}.py" for part in ("", "_jobs", "_live", "_records")]
UNCOUNTED = {"microphone_worklet.js"}
NO_CODE = re.compile(r"^[ \t]*//[^\n]*|/\*.*?\*/", re.DOTALL | re.MULTILINE)


class Coverage:
    """A plugin of pytest that counts in the tests' browser."""

    def __init__(self) -> None:
        paths = [path for path in STATIC.glob("*.js") if path.name not in UNCOUNTED]
        self.texts = {path.name: path.read_text("utf-8") for path in sorted(paths)}
        # For each character whether a test has run it.
        self.ran = {name: bytearray(len(text)) for name, text in self.texts.items()}

    @pytest.fixture(autouse=True)
    def counting(self, person) -> Iterator[None]:
        """Count what the test runs; counts begin again with every test."""
        every_call = {"callCount": True, "detailed": True}
        person.browser.execute_cdp_cmd("Profiler.enable", {})
        person.browser.execute_cdp_cmd("Profiler.startPreciseCoverage", every_call)
        yield
        counted = person.browser.execute_cdp_cmd("Profiler.takePreciseCoverage", {})
        for script in counted["result"]:
            name = script["url"].rpartition("/app/")[2]
            if name in self.ran:
                self._add(name, script["functions"])

    def _add(self, name: str, functions: list[dict]) -> None:
        ran = bytearray(len(self.texts[name]))
        for function in functions:  # outer ones first
            for each in function["ranges"]:
                start, end = each["startOffset"], each["endOffset"]
                ran[start:end] = bytes([each["count"] > 0]) * (end - start)
        self.ran[name] = bytearray(a | b for a, b in zip(self.ran[name], ran, strict=True))

    def report(self) -> str:
        """Return a line for each file: lines of code, the percentage that ran, and the others."""
        rows, total, covered = [], 0, 0
        for name, text in self.texts.items():
            code = NO_CODE.sub(lambda found: re.sub(r"\S", " ", found[0]), text)
            lines = list(re.finditer(r"^.*\w.*$", code, re.MULTILINE))  # not brackets alone
            missed = [
                1 + text.count("\n", 0, line.start())
                for line in lines
                if not all(self.ran[name][at] for at in self._letters(line))
            ]
            total, covered = total + len(lines), covered + len(lines) - len(missed)
            rows.append(row(name, len(lines), len(missed)) + " ".join(map(str, missed)))
        return "\n".join([*rows, row("all", total, total - covered)])

    @staticmethod
    def _letters(line: re.Match[str]) -> Iterator[int]:
        """Yield the places of a line's letters."""
        for found in re.finditer(r"\w", line[0]):
            yield line.start() + found.start()


def row(name: str, lines: int, missed: int) -> str:
    return f"{name:22} {lines:5} {100 * (lines - missed) / lines:6.1f}%  "


def main() -> int:
    """Run the tests of the page, print the coverage, and return their exit status."""
    coverage = Coverage()
    arguments = ["-q", "-n", "0", "--rootdir", str(REPOSITORY), *sys.argv[1:]]
    status = pytest.main([*arguments, *(str(REPOSITORY / each) for each in TESTS)], [coverage])
    print(coverage.report())
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
