"""The figures and the pictures of the load benchmark's page, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.charts import Chart
from benchmarks.load.clients import COLUMNS
from benchmarks.load.servers import HF_SERVE, OURS, SERVERS
from benchmarks.report import machine, table_of

# A measurement, or a whole file of results, as JSON has it.
Results = Mapping[str, Any]
# What was measured, in whichever of these a measurement has.
CELL = ("models", "server", "seconds", "assisted", "users", "share", "long ones")


def figures(results: Results) -> dict[str, str]:
    """The tables of users, of arrivals, and of short requests beside long ones."""
    return {
        "users": table_of(_users(results["users"])),
        "arrivals": table_of([_arrivals(cell) for cell in results["arrivals"]]),
        "beside": table_of([_beside(cell) for cell in results["beside"]]),
        "crowd": table_of([_crowd(cell) for cell in results["crowd"]]),
    }


def summary(cell: Results) -> str:
    """One measurement in a line."""
    what = ", ".join(f"{name} {cell[name]}" for name in CELL if name in cell)
    return f"{what}: {' '.join(_times(cell).values())}"


def charts(results: Results) -> dict[str, Chart]:
    """How many answers a second, and how long a short request waits beside a long one."""
    facts = results["settings"]
    note = f"{machine(facts)}; {'with' if facts['diarization'] else 'without'} diarization."
    cells = [cell for cell in results["users"] if not cell["assisted"]]
    most, short = max(cell["users"] for cell in cells), min(cell["seconds"] for cell in cells)
    busiest = [cell for cell in cells if (cell["users"], cell["seconds"]) == (most, short)]
    pictures = {
        "load": Chart(
            f"Answers a second, {most} users with {short} s each",
            "",
            *_bars(busiest, "rate"),
            note,
        )
    }
    if all(cell.get("p95") for cell in results["beside"]):
        minutes = f"{results['very long'] / 60:g}"
        pictures["load-beside"] = Chart(
            f"{short} s of audio beside {minutes} minutes: p95",
            " s",
            *_bars(results["beside"], "p95"),
            note,
        )
    return pictures


def _bars(
    cells: Sequence[Results], column: str
) -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    """Groups and bars of a chart: models, and a bar for each server."""
    groups = tuple(dict.fromkeys(cell["models"] for cell in cells))
    found = {(cell["models"], cell["server"]): float(cell[column]) for cell in cells}
    return groups, {name: tuple(found[group, name] for group in groups) for name in SERVERS}


def _users(cells: Sequence[Results]) -> list[dict[str, str]]:
    best = {(_cell_of(cell), cell["server"]): cell["rate"] for cell in cells}
    rows = []
    for cell in cells:
        theirs = cell["server"] == OURS and best.get((_cell_of(cell), HF_SERVE))
        how = "assisted" if cell["assisted"] else "plain"
        rows.append(
            {
                "models, audio": f"{cell['models']}, {cell['seconds']} s {how}",
                "users": str(cell["users"]),
                "server": cell["server"],
                **_times(cell),
                "answers/s": f"{cell['rate']:.2f}",
                "ours : hf-serve": f"{cell['rate'] / theirs:.2f}" if theirs else "",
            }
        )
    return rows


def _cell_of(cell: Results) -> tuple[Any, ...]:
    return cell["models"], cell["seconds"], cell["assisted"], cell["users"]


def _arrivals(cell: Results) -> dict[str, str]:
    return {
        "models": cell["models"],
        "of capacity": f"{cell['share']:.0%}",
        "server": cell["server"],
        "arrivals/s": f"{cell['asked']:.2f}",
        **_times(cell),
        "answers/s": f"{cell['rate']:.2f}",
    }


def _beside(cell: Results) -> dict[str, str]:
    return {
        "models": cell["models"],
        "server": cell["server"],
        "every": _seconds(cell["pause"]),
        "long": _seconds(cell["long"]),
        **_times(cell),
    }


def _crowd(cell: Results) -> dict[str, str]:
    return {
        "models": cell["models"],
        "long ones": str(cell["long ones"]),
        "answered": str(cell["answered"]),
        "every": _seconds(cell["pause"]),
        **_times(cell),
    }


def _times(cell: Results) -> dict[str, str]:
    times = {column: _seconds(cell.get(column)) for column in COLUMNS}
    return times | {"requests": f"{cell['requests']}{_others(cell)}"}


def _others(cell: Results) -> str:
    """What was not answered, by status; and a word where answers differed."""
    others = [f"{count}x {status}" for status, count in cell["other statuses"].items()]
    if cell["different texts"] > 1:
        others.append("texts differ")
    return f" ({', '.join(others)})" if others else ""


def _seconds(value: float | None) -> str:
    """As k6 writes durations: milliseconds below one second."""
    if value is None:
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
