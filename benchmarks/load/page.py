"""The page and the pictures of the load benchmark, made from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.charts import Chart
from benchmarks.load.clients import COLUMNS
from benchmarks.load.servers import HF_SERVE, OURS, SERVERS
from benchmarks.report import listed, machine, table

Figures = Mapping[str, Any]

INTRODUCTION = """# The server under load

Written by `scripts/bench load` from what it measured; the code is in `benchmarks/load`. Two \
servers answer the same bytes on loopback with the same models: **hf-serve** runs this \
repository's handler, one request at a time; **ours** is `python -m server`, one batch for all \
requests. Each has a process of its own and the other one sleeps meanwhile. Bodies are JSON with \
a WAV file in base64; audio is a synthetic dialogue, its language given{speakers}. The client \
shares the machine. Columns are k6's; a request is timed from the moment it was due to the end of \
its answer."""

USERS = """## Users who wait for their answers

Closed loops: each user sends as soon as the last answer came. `answers/s` is what all users got \
together."""

ARRIVALS = """## Arrivals at a fixed rate

Open loops: requests for {short} s of audio come evenly, whatever is answered, at a share of what \
the same server gave its users at best in the table above (unassisted). Above 100% a queue grows \
until arrivals end; what is asked of the two servers differs, as their capacities do."""

BESIDE = """## Short requests beside a long one

One request for {short} s of audio every so often, the same pause for both servers, while requests \
for {long} min come one after another. `long` is the most that one of these took; where it says \
nothing, none was answered before the last of the short ones."""

CROWD = """## Short requests beside many long ones of one client

The same short requests at the same pace, to ours alone: first with nothing beside them, then \
while a client has so many requests for {long} min of Opus at 12 kb/s open at once, of which so \
many were answered before the last short one. A p95 of more than five times that of the first \
line would be a fault."""

PLAGGY = """## The table of plaggy/fast-whisper-server

One user, an A10, large-v3 with distil-large-v3, as its authors printed it; it is here for its \
columns, not to compare.

| | avg | min | med | max | p90 | p95 |
|---|---:|---:|---:|---:|---:|---:|
| 60 s assisted (batch 1) | 4.15 s | 3.84 s | 3.95 s | 6.88 s | 4.03 s | 4.89 s |
| 60 s plain (batch 24) | 3.48 s | 3.42 s | 3.46 s | 3.71 s | 3.56 s | 3.61 s |
| 8 s assisted | 326.96 ms | 313.01 ms | 319.41 ms | 960.75 ms | 325.55 ms | 326.07 ms |
| 8 s plain | 784.35 ms | 736.55 ms | 747.67 ms | 2 s | 772.9 ms | 774.1 ms |"""


def page(results: Figures) -> str:
    """The whole page in Markdown."""
    facts = results["settings"]
    speakers = ", with speakers" if facts["diarization"] else ", without speakers"
    short = min((cell["seconds"] for cell in results["users"]), default=0)
    parts = [INTRODUCTION.format(speakers=speakers), "## Settings", listed(facts), USERS]
    parts += [_users_table(results["users"])]
    if results["arrivals"]:
        parts += [ARRIVALS.format(short=short), _arrivals_table(results["arrivals"])]
    if results["beside"]:
        minutes = f"{results['very long'] / 60:g}"
        parts += [BESIDE.format(short=short, long=minutes), _beside_table(results["beside"])]
    if results.get("crowd"):
        minutes = f"{results['very long'] / 60:g}"
        parts += [CROWD.format(long=minutes), _crowd_table(results["crowd"])]
    return "\n\n".join([*parts, PLAGGY])


def summary(figures: Figures) -> str:
    """One measurement in a line."""
    known = ("models", "server", "seconds", "assisted", "users", "share", "long ones")
    what = ", ".join(f"{name} {figures[name]}" for name in known if name in figures)
    return f"{what}: {' '.join(_cells(figures))} ({figures['requests']}){_others(figures)}"


def charts(results: Figures) -> dict[str, Chart]:
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
    cells: Sequence[Figures], column: str
) -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    """Groups and bars of a chart: models, and a bar for each server."""
    groups = tuple(dict.fromkeys(cell["models"] for cell in cells))
    found = {(cell["models"], cell["server"]): float(cell[column]) for cell in cells}
    return groups, {name: tuple(found[group, name] for group in groups) for name in SERVERS}


def _users_table(cells: Sequence[Figures]) -> str:
    header = (
        "models, audio",
        "users",
        "server",
        *COLUMNS,
        "requests",
        "answers/s",
        "ours : hf-serve",
    )
    best = {(_cell_of(cell), cell["server"]): cell["rate"] for cell in cells}
    rows = []
    for cell in cells:
        where = _cell_of(cell)
        name = f"{where[0]}, {where[1]} s {'assisted' if where[2] else 'plain'}"
        both = cell["server"] == OURS and best.get((where, HF_SERVE))
        gain = f"{cell['rate'] / both:.2f}" if both else ""
        counts = (f"{cell['requests']}{_others(cell)}", f"{cell['rate']:.2f}", gain)
        rows.append((name, str(where[3]), cell["server"], *_cells(cell), *counts))
    return table(header, rows)


def _cell_of(cell: Figures) -> tuple[Any, ...]:
    return cell["models"], cell["seconds"], cell["assisted"], cell["users"]


def _arrivals_table(cells: Sequence[Figures]) -> str:
    header = ("models", "of capacity", "server", "arrivals/s", *COLUMNS, "requests", "answers/s")
    rows = [
        (
            cell["models"],
            f"{cell['share']:.0%}",
            cell["server"],
            f"{cell['asked']:.2f}",
            *_cells(cell),
            f"{cell['requests']}{_others(cell)}",
            f"{cell['rate']:.2f}",
        )
        for cell in cells
    ]
    return table(header, rows)


def _beside_table(cells: Sequence[Figures]) -> str:
    header = ("models", "server", "every", "long", *COLUMNS, "requests")
    rows = [
        (
            cell["models"],
            cell["server"],
            _seconds(cell["pause"]),
            _seconds(cell["long"]),
            *_cells(cell),
            f"{cell['requests']}{_others(cell)}",
        )
        for cell in cells
    ]
    return table(header, rows)


def _crowd_table(cells: Sequence[Figures]) -> str:
    header = ("models", "long ones", "answered", "every", *COLUMNS, "requests")
    rows = [
        (
            cell["models"],
            str(cell["long ones"]),
            str(cell["answered"]),
            _seconds(cell["pause"]),
            *_cells(cell),
            f"{cell['requests']}{_others(cell)}",
        )
        for cell in cells
    ]
    return table(header, rows)


def _cells(figures: Figures) -> list[str]:
    return [_seconds(figures.get(column)) for column in COLUMNS]


def _others(figures: Figures) -> str:
    """What was not answered, by status; and a word where answers differed."""
    others = [f"{count}x {status}" for status, count in figures["other statuses"].items()]
    if figures["different texts"] > 1:
        others.append("texts differ")
    return f" ({', '.join(others)})" if others else ""


def _seconds(value: float | None) -> str:
    """As k6 writes durations: milliseconds below one second."""
    if value is None:
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
