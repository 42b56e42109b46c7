"""The tables of the live benchmark's page, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from benchmarks.counts import pooled
from benchmarks.real.manifest import recordings_of
from benchmarks.real.scoring import score
from benchmarks.report import Tables

# A measurement, or a whole file of results, as JSON has it.
Results = Mapping[str, Any]
THEIRS = "faster-whisper, LocalAgreement"


def figures(results: Results) -> Tables:
    """Return delays by number of clients, and word errors."""
    delays = [_delays(_name(cell), cell["sessions"]) for cell in results["ours"]]
    if results["theirs"]:
        delays.insert(1, _delays(THEIRS, results["theirs"]))
    return {"delays": delays, "errors": _errors(results)}


def _name(cell: Results) -> str:
    beside = ", beside a file" if cell["beside"] else ""
    return f"{cell['clients']} client{'s' * (cell['clients'] > 1)}{beside}"


def _delays(name: str, sessions: Sequence[Results]) -> dict[str, str]:
    return {
        "": name,
        "final": _quantiles(sessions, "told"),
        "completed": _quantiles(sessions, "waits"),
        "sessions": str(len(sessions)),
        "failed": str(sum(bool(each["failure"]) for each in sessions)),
    }


def _quantiles(sessions: Sequence[Results], column: str) -> str:
    """Return the median and p95 of a column's seconds."""
    seconds = list(chain.from_iterable(each[column] for each in sessions))
    if not seconds:
        return "-"
    return " / ".join(f"{each:.2f}" for each in np.percentile(seconds, [50, 95]))


def _errors(results: Results) -> list[dict[str, str]]:
    """Return word errors of the recordings that one client sent to the end and every engine
    transcribed.
    """
    alone = (cell for cell in results["ours"] if cell["clients"] == 1 and not cell["beside"])
    ours = [each for cell in alone for each in cell["sessions"] if each["whole"]]
    texts = {
        "the file": {name: each["file"] for name, each in results["recordings"].items()},
        "completed": {each["recording"]: each["completed"] for each in ours},
        "deltas": {each["recording"]: each["deltas"] for each in ours},
    }
    if results["theirs"]:
        texts[THEIRS] = {each["recording"]: each["deltas"] for each in results["theirs"]}
    heard = recordings_of(results, texts)
    rows = []
    for who, known in texts.items() if heard else ():
        count = pooled([score(each, known[each.name]) for each in heard if each.text])
        silent = [score(each, known[each.name]).errors for each in heard if not each.text]
        rows.append(
            {
                "": who,
                "word errors": f"{count.rate:.1%} of {count.total:.0f}",
                "words where nobody speaks": f"{sum(silent):.0f}",
            }
        )
    return rows
