"""The figures of the archive benchmark's page, from its results alone."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.report import listed, table, table_of
from benchmarks.timing import ratio

BASE = "loop, 1"
# Shares of the recordings after which memory is told.
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


def figures(results: dict[str, Any]) -> dict[str, str]:
    """Work and what comes before it, what a short recording costs, and memory."""
    talks, clips = results["talks"], results["clips"]
    kinds = {"long ones": talks, "short ones": clips}
    heard = {name: f"{kind['files']} of {kind['seconds']} s" for name, kind in kinds.items()}
    return {
        "recordings": listed(heard),
        "long ones": table_of(_talk_rows(talks)),
        "short ones": table(("", "measured"), _overhead(clips)),
        "memory": table_of(_memory_rows(clips)),
    }


def _talk_rows(talks: dict[str, Any]) -> list[dict[str, str]]:
    audio = talks["files"] * talks["seconds"]
    base = [run["work"] for run in talks["runs"][BASE]]
    rows = []
    for name, runs in talks["runs"].items():
        work = [run["work"] for run in runs]
        before = statistics.median(run["whole"] - run["work"] for run in runs)
        rows.append(
            {
                "": _name(name),
                "before, s": f"{before:.1f}",
                "work, s": f"{statistics.median(work):.1f}",
                "x real time": f"{audio / statistics.median(work):.0f}",
                "times the loop with one thread": str(ratio(base, work)),
            }
        )
    return rows


def _name(way: str) -> str:
    kind, count = way.split(", ")
    unit = "thread" if kind == "loop" else "worker"
    return f"{kind}, {count} {unit}{'' if count == '1' else 's'}"


def _overhead(clips: dict[str, Any]) -> list[list[str]]:
    """Return rows with the seconds that a recording costs besides its own computing."""
    alone = clips["loop"] / clips["files"]
    a_worker = 2 * clips["work"] / clips["files"]
    seconds = {
        "the loop with one thread, for a recording": alone,
        "two workers, for a recording and worker": a_worker,
        "of it reading the file and the handler": clips["each"],
        "of it all else: marks, results, records, Ray": a_worker - clips["each"],
    }
    rows = [[name, f"{1e3 * value:.0f} ms"] for name, value in seconds.items()]
    gain = f"{clips['loop'] / clips['work']:.2f}"
    return [*rows, ["the loop / two workers", gain]]


def _memory_rows(clips: dict[str, Any]) -> list[dict[str, str]]:
    """Return the first look after each share of the recordings, and the last one; none if the
    run ended before anybody looked.
    """
    rows = []
    for share in SHARES if clips["memory"] else ():
        after = [each for each in clips["memory"] if each["done"] >= share * clips["files"]]
        look = after[0] if after else clips["memory"][-1]
        rows.append(
            {
                "recordings done": f"{look['done']:.0f}",
                "the run, MiB": f"{look['run']:.0f}",
                "largest worker, MiB": f"{look['worker']:.0f}",
                "Ray's other processes, MiB": f"{look['others']:.0f}",
            }
        )
    return rows
