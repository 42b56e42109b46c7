"""The tables of the page about speed, from the results alone."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.report import Tables
from benchmarks.speed.cells import ASSISTED, COLUMNS, CT2, OURS, PIPELINE
from benchmarks.timing import ratio

RATIOS = {
    "pipeline / ours": (PIPELINE, OURS),
    "CTranslate2 / ours": (CT2, OURS),
    "ours / ours assisted": (OURS, ASSISTED),
}

# A cell or a whole file of results, as JSON has it.
Results = dict[str, Any]


def summary(cell: Results) -> str:
    """Return one cell in a line, printed while the next is measured."""
    times = ", ".join(f"{name} {median(times):.2f} s" for name, times in cell["seconds"].items())
    return f"{cell['models']}: {cell['cell']}, batch {cell['batch']}: {times}"


def figures(results: Results) -> Tables:
    """Return times with their ratios, and the costs of a step of each pair of models."""
    return {
        "times": [_times(cell) for cell in results["cells"]],
        "models": [_models(*each) for each in results["models"].items()],
    }


def _times(cell: Results) -> dict[str, str]:
    seconds, accepted = cell["seconds"], cell["acceptance"]
    row = {
        "cell": f"{cell['models']}: {cell['cell']}",
        "batch": str(cell["batch"]),
        **{name: f"{median(seconds[name]):.2f}" if name in seconds else "" for name in COLUMNS},
    }
    for name, (slower, faster) in RATIOS.items():
        both = slower in seconds and faster in seconds
        row[name] = str(ratio(seconds[slower], seconds[faster])) if both else ""
    return row | {"accepted": "" if accepted is None else f"{accepted:.2f}"}


def _models(name: str, facts: Results) -> dict[str, str]:
    peaks = ""
    if memory := facts.get("memory"):
        listing = ", ".join(f"{column} {mib:.0f}" for column, mib in memory["MiB"].items())
        peaks = f"{listing} ({memory['cell']}, batch {memory['batch']})"
    return {
        "models": name,
        "main step, ms": f"{facts['main step ms']:.1f}",
        "draft step, ms": f"{facts['draft step ms']:.1f}",
        "tokens a window": str(facts["max tokens"] or "until the end"),
        "peak memory above the loaded models, MiB": peaks,
    }
