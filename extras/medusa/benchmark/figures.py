"""The figures of the Medusa benchmark's page, from its results alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.report import table_of
from benchmarks.timing import ratio


def figures(results: dict[str, Any], models: Sequence[str], plain: str) -> dict[str, str]:
    """Return a table for each of `models`; every ratio is to the column called `plain`."""
    return {
        name: table_of(
            [
                _row(cell, column, plain)
                for cell in results["cells"]
                if cell["models"] == name
                for column in cell["seconds"]
            ]
        )
        for name in models
    }


def _row(cell: dict[str, Any], column: str, plain: str) -> dict[str, str]:
    seconds = cell["seconds"]
    return {
        "windows": f"{cell['window']} s",
        "batch": str(cell["batch"]),
        "": column,
        "seconds": f"{statistics.median(seconds[column]):.2f}",
        "speed-up": str(ratio(seconds[plain], seconds[column])),
        "tokens a pass": f"{cell['tokens a pass'][column]:.2f}",
        "MiB": f"{cell['MiB'][column]:.0f}",
    }
