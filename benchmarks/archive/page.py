"""The page of the archive benchmark, made from its results alone."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.report import listed, machine, table
from benchmarks.timing import ratio

BASE = "loop, 1"
# Shares of the recordings after which memory is told.
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


def page(results: dict[str, Any]) -> str:
    """The page in Markdown."""
    talks, clips = results["talks"], results["clips"]
    parts = [
        "# An archive beside a plain loop",
        f"Written by `scripts/bench archive` on {machine(results['settings'])}, demo models, no "
        "assistant, no diarization. Every run is a process of its own, by turns. Work is from the "
        "first recording's beginning to the last one's end; what comes before it is Python, the "
        "cluster, and the models. A worker has one core where the machine has two: one is left "
        "for reading, unless as many workers are asked for.",
        f"## {talks['files']} recordings of {talks['seconds']} s",
        table(
            ["", "before, s", "work, s", "x real time", "times the loop with one thread"],
            _talk_rows(talks),
        ),
        f"## {clips['files']} recordings of {clips['seconds']} s, two workers",
        _overhead(clips),
        *_memory(clips),
    ]
    return "\n\n".join([*parts, "## Settings", listed(results["settings"])])


def _talk_rows(talks: dict[str, Any]) -> list[list[str]]:
    audio = talks["files"] * talks["seconds"]
    base = [run["work"] for run in talks["runs"][BASE]]
    rows = []
    for name, runs in talks["runs"].items():
        work = [run["work"] for run in runs]
        before = statistics.median(run["whole"] - run["work"] for run in runs)
        speed = audio / statistics.median(work)
        rows.append(
            [
                _name(name),
                f"{before:.1f}",
                f"{statistics.median(work):.1f}",
                f"{speed:.0f}",
                str(ratio(base, work)),
            ]
        )
    return rows


def _name(way: str) -> str:
    kind, count = way.split(", ")
    unit = "thread" if kind == "loop" else "worker"
    return f"{kind}, {count} {unit}{'' if count == '1' else 's'}"


def _overhead(clips: dict[str, Any]) -> str:
    """What a recording costs beside its own computing."""
    alone = clips["loop"] / clips["files"]
    a_worker = 2 * clips["work"] / clips["files"]
    beside = a_worker - clips["each"]
    return (
        f"The loop with one thread took {1e3 * alone:.0f} ms a recording. Two workers beside each "
        f"other took {1e3 * a_worker:.0f} ms a recording and worker, of which "
        f"{1e3 * clips['each']:.0f} ms are reading the file and the handler, and "
        f"{1e3 * beside:.0f} ms all else: marks, results, records, Ray. Together they were "
        f"{clips['loop'] / clips['work']:.2f} times as fast as the loop."
    )


def _memory(clips: dict[str, Any]) -> list[str]:
    """What was held; few recordings may be done before anybody looks."""
    if not clips["memory"]:
        return ["The run ended before a look at its memory found a worker."]
    head = ["recordings done", "the run, MiB", "largest worker, MiB", "Ray's other processes, MiB"]
    told = "Resident memory; pages that processes share are counted in each of them."
    return [table(head, _memory_rows(clips)), told]


def _memory_rows(clips: dict[str, Any]) -> list[list[str]]:
    """The first look after each share of the recordings, and the last one."""
    rows = []
    for share in SHARES:
        after = [each for each in clips["memory"] if each["done"] >= share * clips["files"]]
        look = after[0] if after else clips["memory"][-1]
        rows.append(
            [
                f"{look['done']:.0f}",
                f"{look['run']:.0f}",
                f"{look['worker']:.0f}",
                f"{look['others']:.0f}",
            ]
        )
    return rows
