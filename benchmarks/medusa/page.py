"""The page of the Medusa benchmark, made from its results alone."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.report import listed, machine, table
from benchmarks.timing import ratio


def page(results: dict[str, Any], plain: str) -> str:
    """The page in Markdown; every ratio is to the column called `plain`."""
    parts = [
        "# Medusa heads beside an assistant",
        f"Written by `scripts/bench medusa` on {machine(results['settings'])}. All columns of a "
        "cell ran interleaved in one process. A cell decodes twice as many windows as its batch "
        "holds. Speed-up is plain seconds over those of the column, medians, with a 95% interval; "
        "tokens a pass are what a row gained where something was drafted for it; MiB are at the "
        "peak above the loaded models.",
    ]
    for name in dict.fromkeys(cell["models"] for cell in results["cells"]):
        rows = [
            _row(cell, column, plain)
            for cell in results["cells"]
            if cell["models"] == name
            for column in cell["seconds"]
        ]
        header = ["windows", "batch", "", "seconds", "speed-up", "tokens a pass", "MiB"]
        parts += [f"## {name.capitalize()}", table(header, rows)]
    return "\n\n".join([*parts, "## Settings", listed(results["settings"])])


def _row(cell: dict[str, Any], column: str, plain: str) -> list[str]:
    seconds = cell["seconds"]
    return [
        f"{cell['window']} s",
        str(cell["batch"]),
        column,
        f"{statistics.median(seconds[column]):.2f}",
        str(ratio(seconds[plain], seconds[column])),
        f"{cell['tokens a pass'][column]:.2f}",
        f"{cell['MiB'][column]:.0f}",
    ]
