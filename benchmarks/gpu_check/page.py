"""The report: sections of findings, one line each."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.report import table

INTRODUCTION = (
    "Written by `scripts/gpu-check{quick}`; [docs/gpu.md](docs/gpu.md) explains the lines. "
    "Models: those that ASR_MODEL, ASSISTANT_MODEL and DIARIZATION_MODEL name, else the demo's."
)
HEADER = ("check", "expected", "found", "status")
# The figures of the first line: section, check, name.
HEADLINE = (
    ("Machine", "GPU", ""),
    ("Load", "load and warm-up", "starts in "),
    ("Load", "graphs captured at load", "graphs: "),
    ("Speed", "RTFx", "RTFx "),
    ("Speed", "GPU busy", "GPU busy "),
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
    """Return the line of a check that this machine cannot run."""
    return Finding(check, "", reason, Status.LEFT_OUT)


def findings_of(run: Callable[[], Sequence[Finding]]) -> list[Finding]:
    """Return the findings of `run`; an exception becomes a NOT OK line with its traceback."""
    try:
        return list(run())
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        return [failure(f"{type(error).__name__}: {error}", trace)]


@dataclass
class Page:
    """Sections of findings, in the order in which they were checked."""

    quick: bool
    sections: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        return self._count(Status.NOT_OK) == 0

    def markdown(self) -> str:
        """Return the whole page, without a newline at its end."""
        introduction = INTRODUCTION.format(quick=" --quick" if self.quick else "")
        parts = ["# GPU check", introduction, self._summary()]
        for section, findings in self.sections.items():
            parts += [f"## {section}", table(HEADER, [each.cells for each in findings])]
            parts += [f"```\n{each.detail}\n```" for each in findings if each.detail]
        return "\n\n".join(parts)

    def _summary(self) -> str:
        verdict = "As expected" if self.fine else "**Not as expected**"
        counts = ", ".join(f"{self._count(status)} {status.value.strip('*')}" for status in Status)
        figures = [
            f"{name}{each.found}"
            for section, check, name in HEADLINE
            for each in self.sections.get(section, ())
            if each.check == check
        ]
        return f"{verdict}: {counts}. {'; '.join(figures)}".rstrip()

    def _count(self, status: Status) -> int:
        every = [finding for findings in self.sections.values() for finding in findings]
        return sum(finding.status == status for finding in every)


def _cell(text: str) -> str:
    """Return the text in one line, cut if long, without characters that end a Markdown cell."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= LONGEST_CELL else f"{line[: LONGEST_CELL - 3]}..."
