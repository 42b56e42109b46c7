"""The figures and the pictures of the page about speed, from the results alone.

A target is met or missed by the median ratio. Only "never slower" is held to the lower end of the
interval: two per cent cannot be told from nothing on a machine that varies by five.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.charts import Chart
from benchmarks.report import machine, table_of
from benchmarks.speed.cells import (
    ASSISTED,
    BASE_SIZE,
    COLUMNS,
    CT2,
    DEEP,
    DEMO,
    NOISE,
    OURS,
    OWN,
    PIPELINE,
    PIPELINE_ASSISTED,
)
from benchmarks.timing import Ratio, ratio

SLOWER = 1.01
RATIOS = {
    "pipeline / ours": (PIPELINE, OURS),
    "pipeline assisted / ours assisted": (PIPELINE_ASSISTED, ASSISTED),
    "CTranslate2 / ours": (CT2, OURS),
    "ours / ours assisted": (OURS, ASSISTED),
}

# A cell or a whole file of results, as JSON has it.
Results = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """`slower` over `faster` is to be at least `least` in the cells that `concerns` picks."""

    slower: str
    faster: str
    least: float
    concerns: Callable[[Results], bool]


def _is_demo(cell: Results) -> bool:
    return bool(cell["models"] == DEMO and cell["audio"] >= 50)


def _is_base(cell: Results) -> bool:
    return bool(cell["models"] == BASE_SIZE)


def _is_deep(cell: Results) -> bool:
    return bool(cell["models"].startswith(DEEP) and (cell["acceptance"] or 0) >= 0.8)


TARGETS = (
    Target(PIPELINE, OURS, 2.0, _is_demo),
    Target(PIPELINE, OURS, 1.5, _is_base),
    Target(CT2, OURS, 1.0, _is_base),
    Target(OURS, ASSISTED, 1.8, lambda cell: _is_deep(cell) and cell["batch"] == 1),
    Target(OURS, ASSISTED, 1.5, lambda cell: _is_deep(cell) and cell["batch"] in (8, 24)),
)


def summary(cell: Results) -> str:
    """One cell in a line, printed while the next is measured."""
    times = ", ".join(f"{name} {median(times):.2f} s" for name, times in cell["seconds"].items())
    return f"{_name(cell)}, batch {cell['batch']}: {times}"


def figures(results: Results) -> dict[str, str]:
    """Models, times, ratios, drafting and targets."""
    cells = results["cells"]
    drafted = [cell for cell in cells if ASSISTED in cell["seconds"]]
    return {
        "models": table_of([_models(*each) for each in results["models"].items()]),
        "times": table_of([_times(cell) for cell in cells]),
        "ratios": table_of([_ratios(cell) for cell in cells]),
        "drafting": table_of([_drafting(cell) for cell in drafted]),
        "targets": table_of(list(_targets(cells))),
    }


def charts(results: Results) -> dict[str, Chart]:
    """The pictures for which the cells were measured, by file name."""
    where = f"{machine(results['settings'])}, {results['settings']['dtype']}".replace("torch.", "")
    found = {}
    if (ten_minutes := _find(results, BASE_SIZE, "10 min", 24)) and _has(ten_minutes, PIPELINE):
        seconds = {name: median(times) for name, times in ten_minutes["seconds"].items()}
        found["speed"] = Chart(
            question="Seconds for 10 minutes of audio",
            unit=" s",
            groups=("",),
            bars={
                "this project": (seconds[OURS],),
                "CTranslate2": (seconds[CT2],),
                "transformers' pipeline": (seconds[PIPELINE],),
            },
            note="A model of whisper-base's shape with random weights that writes "
            f"{results['models'][BASE_SIZE]['max tokens']} tokens a window, batch 24, {where}. "
            "CTranslate2 is what faster-whisper runs on.",
        )
    gains = {batch: _gains(results, batch) for batch in (1, 8)}
    if all(gains.values()):
        found["assistant"] = Chart(
            question="How many times faster with an assistant",
            unit="x",
            groups=tuple(f"{acceptance:.0%} accepted" for acceptance in NOISE),
            bars={f"batch {batch}": values for batch, values in gains.items()},
            note="By the share of drafted tokens that were meant to be accepted. The main model "
            f"has 32 decoder layers, the assistant 2; windows of 15 s, {where}.",
            digits=2,
        )
    return found


def _gains(results: Results, batch: int) -> tuple[float, ...]:
    """How many times faster an assistant makes each deep pair; nothing where one is missing."""
    name = f"{4 * batch} windows of 15 s"
    cells = [_find(results, f"{DEEP}, {acceptance}", name, batch) for acceptance in NOISE]
    ratios = [_ratio(cell, *OWN) for cell in cells if cell is not None]
    values = tuple(each.value for each in ratios if each is not None)
    return values if len(values) == len(NOISE) else ()


def _find(results: Results, models: str, name: str, batch: int) -> Results | None:
    for cell in results["cells"]:
        if (cell["models"], cell["cell"], cell["batch"]) == (models, name, batch):
            found: Results = cell
            return found
    return None


def _has(cell: Results, *columns: str) -> bool:
    return all(column in cell["seconds"] for column in columns)


def _name(cell: Results) -> str:
    return f"{cell['models']}: {cell['cell']}"


def _ratio(cell: Results, slower: str, faster: str) -> Ratio | None:
    seconds = cell["seconds"]
    return ratio(seconds[slower], seconds[faster]) if _has(cell, slower, faster) else None


def _models(name: str, facts: Results) -> dict[str, str]:
    main, draft, peaks = facts["main step ms"], facts["draft step ms"], ""
    if memory := facts.get("memory"):
        listing = ", ".join(f"{column} {mib:.0f}" for column, mib in memory["MiB"].items())
        peaks = f"{listing} ({memory['cell']}, batch {memory['batch']})"
    return {
        "models": name,
        "main step, ms": f"{main:.1f}",
        "draft step, ms": f"{draft:.1f}",
        "ratio": f"{main / draft:.1f}",
        "tokens a window": str(facts["max tokens"] or "until the end"),
        "peak memory above the loaded models, MiB": peaks,
    }


def _where(cell: Results) -> dict[str, str]:
    return {"cell": _name(cell), "batch": str(cell["batch"])}


def _times(cell: Results) -> dict[str, str]:
    medians = {name: median(times) for name, times in cell["seconds"].items()}
    shown = {name: f"{medians[name]:.2f}" if name in medians else "" for name in COLUMNS}
    speed = cell["audio"] / min(medians[name] for name in OWN)
    repeats = str(len(cell["seconds"][OURS]))
    return {**_where(cell), "repeats": repeats, **shown, "x real time": f"{speed:.0f}"}


def _ratios(cell: Results) -> dict[str, str]:
    measured = {name: str(_ratio(cell, *columns) or "") for name, columns in RATIOS.items()}
    return _where(cell) | measured


def _drafting(cell: Results) -> dict[str, str]:
    steps = ", ".join(f"{drafts}: {count}" for drafts, count in cell["steps by drafts"].items())
    return {
        **_where(cell),
        "acceptance": "" if cell["acceptance"] is None else f"{cell['acceptance']:.2f}",
        "tokens per step": f"{cell['tokens per step']:.2f}",
        "drafts in a step: steps": steps,
    }


def _targets(cells: Sequence[Results]) -> Iterator[dict[str, str]]:
    for target in TARGETS:
        wanted = f"{target.slower} / {target.faster} at least {target.least}"
        for cell in filter(target.concerns, cells):
            if measured := _ratio(cell, target.slower, target.faster):
                yield _verdict(wanted, cell, measured, measured.value >= target.least)
    for cell in cells:
        if measured := _ratio(cell, ASSISTED, OURS):
            wanted = f"{ASSISTED} / {OURS} at most {SLOWER}"
            yield _verdict(wanted, cell, measured, measured.low <= SLOWER)


def _verdict(wanted: str, cell: Results, measured: Ratio, met: bool) -> dict[str, str]:
    verdict = "met" if met else "MISSED"
    return {"target": wanted, **_where(cell), "measured": str(measured), "": verdict}
