"""The page that the check prints: sections of findings, one line each.

A check that raises is a finding with its traceback, so one failure never hides the checks after it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.report import table

HEADER = ("check", "expected", "found", "status")
# The figures of the first line: section, check, name.
HEADLINE = (
    ("Machine", "GPU", ""),
    ("Load", "load and warm-up", "starts in "),
    ("Load", "graphs captured at load", "graphs: "),
    ("Speed", "RTFx, batch 24", "RTFx at batch 24: "),
    ("Speed", "GPU busy, batch 24", "GPU busy "),
)
LONGEST_CELL = 160


class Status(StrEnum):
    """The last column of a line."""

    OK = "OK"
    NOT_OK = "**NOT OK**"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class Finding:
    """A line of the page. If the check was left out, `found` is the reason.

    `detail` is printed below the table: the traceback of a check that failed.
    """

    check: str
    expected: str
    found: str
    status: Status
    detail: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        return (_cell(self.check), _cell(self.expected), _cell(self.found), self.status.value)


def judge(check: str, expected: str, found: str, fine: bool) -> Finding:
    """Return a finding that is OK if `fine`, else NOT OK."""
    return Finding(check, expected, found, Status.OK if fine else Status.NOT_OK)


def failure(found: str, detail: str = "") -> Finding:
    """Return the finding of a check that did not run to its end."""
    return Finding("the check itself", "runs to its end", found, Status.NOT_OK, detail)


def note(check: str, found: str) -> Finding:
    """Return a figure about which nothing is expected."""
    return Finding(check, "any", found, Status.OK)


def leave_out(check: str, reason: str) -> Finding:
    """Return the line of a check that cannot be made on this machine."""
    return Finding(check, "", reason, Status.LEFT_OUT)


@dataclass
class Page:
    """Sections in the order in which they were checked."""

    title: str
    introduction: str
    sections: dict[str, list[Finding]] = field(default_factory=dict)

    def check(self, section: str, run: Callable[[], Sequence[Finding]]) -> None:
        """Add what `run` finds to a section; an exception becomes its last line, NOT OK."""
        findings = self.sections.setdefault(section, [])
        try:
            findings += run()
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            findings.append(failure(f"{type(error).__name__}: {error}", trace))

    def leave_out(self, sections: Sequence[str], reason: str) -> None:
        """Add sections that cannot be checked."""
        for section in sections:
            self.sections.setdefault(section, []).append(leave_out("all", reason))

    @property
    def fine(self) -> bool:
        return self._count(Status.NOT_OK) == 0

    def markdown(self) -> str:
        """Return the whole page, without a newline at its end."""
        parts = [f"# {self.title}", self.introduction, self._summary()]
        for section, findings in self.sections.items():
            parts += [f"## {section}", table(HEADER, [each.cells for each in findings])]
            parts += [f"```\n{each.detail}\n```" for each in findings if each.detail]
        return "\n\n".join(parts)

    def _summary(self) -> str:
        counts = {status: self._count(status) for status in Status}
        verdict = "As expected" if self.fine else "**Not as expected**"
        figures = [
            f"{name}{each.found}"
            for section, check, name in HEADLINE
            for each in self.sections.get(section, ())
            if each.check == check
        ]
        return (
            f"{verdict}: {counts[Status.OK]} OK, {counts[Status.NOT_OK]} NOT OK, "
            f"{counts[Status.LEFT_OUT]} left out. {'; '.join(figures)}"
        ).rstrip()

    def _count(self, status: Status) -> int:
        every = [finding for findings in self.sections.values() for finding in findings]
        return sum(finding.status == status for finding in every)


def _cell(text: str) -> str:
    """Return the text in one line, cut if it is long, without what would end a Markdown cell."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= LONGEST_CELL else f"{line[: LONGEST_CELL - 3]}..."
