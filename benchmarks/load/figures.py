"""The tables of the load benchmark's page, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.load.servers import HF_SERVE, OURS
from benchmarks.report import Tables

# A measurement, or a whole file of results, as JSON has it.
Results = Mapping[str, Any]
# What was measured, in whichever of these a measurement has.
CELL = ("models", "server", "seconds", "users", "long ones")


def figures(results: Results) -> Tables:
    """Return the tables of users and of short requests beside long ones."""
    rates = {_cell_of(cell): cell["rate"] for cell in results["users"]}
    return {
        "users": [_users(cell, rates) for cell in results["users"]],
        "beside": [
            {**_where(cell), "long": _seconds(cell["long"]), **_times(cell)}
            for cell in results["beside"]
        ],
        "crowd": [
            {**_where(cell), "long ones": str(cell["long ones"]), **_times(cell)}
            for cell in results["crowd"]
        ],
    }


def summary(cell: Results) -> str:
    """Return one measurement in a line."""
    what = ", ".join(f"{name} {cell[name]}" for name in CELL if name in cell)
    return f"{what}: {' '.join(_times(cell).values())}"


def _users(cell: Results, rates: Mapping[tuple[Any, ...], float]) -> dict[str, str]:
    theirs = cell["server"] == OURS and rates.get(_cell_of({**cell, "server": HF_SERVE}))
    return {
        **_where(cell),
        "audio": f"{cell['seconds']} s",
        "users": str(cell["users"]),
        **_times(cell),
        "ours : hf-serve": f"{cell['rate'] / theirs:.2f}" if theirs else "",
    }


def _cell_of(cell: Results) -> tuple[Any, ...]:
    return tuple(cell.get(name) for name in CELL)


def _where(cell: Results) -> dict[str, str]:
    return {"models": cell["models"], "server": cell["server"]}


def _times(cell: Results) -> dict[str, str]:
    notes = [f"{count}x {status}" for status, count in cell["other statuses"].items()]
    notes += ["texts differ"] * (cell["different texts"] > 1)
    noted = f" ({', '.join(notes)})" if notes else ""
    return {
        "median": _seconds(cell.get("med")),
        "p95": _seconds(cell.get("p95")),
        "requests": f"{cell['requests']}{noted}",
        "answers/s": f"{cell['rate']:.2f}",
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
