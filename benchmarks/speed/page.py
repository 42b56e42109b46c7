"""The page about decoding: what was measured, beside what was aimed at.

The one decision: a target is met or missed by the median ratio, except that "never slower" holds
while the lower end of the interval allows it: two per cent cannot be told apart on a machine that
varies by five.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.report import PAGES, Bar, listed, plot_ratios, table
from benchmarks.timing import Ratio, ratio

PIPELINE, PIPELINE_ASSISTED, CT2, GREEDY, ASSISTED = (
    "pipeline",
    "pipeline assisted",
    "CTranslate2",
    "ours",
    "assisted",
)
COLUMNS = (PIPELINE, PIPELINE_ASSISTED, CT2, GREEDY, ASSISTED)
SLOWER = 1.02
Measured = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """`slower` over `faster` is to be at least `least` in the cells that `concerns` picks."""

    slower: str
    faster: str
    least: float
    concerns: Callable[[Measured], bool]


def _is_long(cell: Measured) -> bool:
    return bool(cell["audio"] >= 50)


TARGETS = (
    Target(PIPELINE, GREEDY, 2.0, lambda cell: cell["row"].startswith("demo") and _is_long(cell)),
    Target(PIPELINE, GREEDY, 1.5, lambda cell: cell["row"].startswith("base")),
    Target(CT2, GREEDY, 1.0, lambda cell: cell["row"].startswith("base")),
    Target(GREEDY, ASSISTED, 1.8, lambda cell: _is_deep(cell, 0.8) and cell["batch"] == 1),
    Target(GREEDY, ASSISTED, 1.5, lambda cell: _is_deep(cell, 0.8) and cell["batch"] in (8, 24)),
)


def _is_deep(cell: Measured, acceptance: float) -> bool:
    return bool(cell["row"].startswith("deep") and (cell["acceptance"] or 0) >= acceptance)


def summary(cell: Measured) -> str:
    """One cell in a line, for who waits."""
    times = ", ".join(f"{name} {median(turns):.2f} s" for name, turns in cell["seconds"].items())
    return f"{cell['row']}, {cell['cell']}, batch {cell['batch']}: {times}"


def page(results: Measured) -> str:
    """The whole page as Markdown."""
    parts = [
        "# How fast decoding is",
        "Written by `scripts/bench` from what it measured; `benchmarks/decoding.py` says how. Seconds are medians "
        "of turns in one process (CTranslate2 in one beside it); ratios have a 95% bootstrap interval over the "
        "turns. Real-time factors are seconds of audio a second. The pipeline is transformers' as "
        "insanely-fast-whisper calls it: strided chunks of 30 s, language detected, one beam. CTranslate2 is what "
        "faster-whisper runs on, given the same windows. A deep pair is named after the acceptance it was made for; "
        "what was measured stands under Drafting.",
        "## Settings",
        listed(results["settings"]),
        "## Models",
        _models(results["rows"]),
        "## Times",
        table(
            ("cell", "batch", "turns", *COLUMNS, "x real time"),
            [_times(cell) for cell in results["cells"]],
        ),
        "## Ratios",
        table(("cell", "batch", *RATIOS), [_ratios(cell) for cell in results["cells"]]),
        "## Drafting",
        table(
            ("cell", "batch", "acceptance", "tokens a round", "drafts a round: rounds"),
            [_drafting(cell) for cell in results["cells"] if ASSISTED in cell["seconds"]],
        ),
        "## Targets",
        table(("target", "cell", "batch", "measured", ""), list(_targets(results["cells"]))),
    ]
    return "\n\n".join(parts) + "\n"


RATIOS = {
    "pipeline / ours": (PIPELINE, GREEDY),
    "pipeline assisted / assisted": (PIPELINE_ASSISTED, ASSISTED),
    "CTranslate2 / ours": (CT2, GREEDY),
    "ours / assisted": (GREEDY, ASSISTED),
}


def write_page(results: Measured) -> None:
    """The page and its plot into docs/benchmarks."""
    panels = {title: _bars(results["cells"], *pair) for title, pair in RATIOS.items()}
    plot_ratios(
        PAGES / "decoding.svg",
        {title: bars for title, bars in panels.items() if bars},
        "times as fast",
    )
    text = page(results).replace(
        "## Ratios\n", "## Ratios\n\n![The ratios with their intervals](decoding.svg)\n"
    )
    (PAGES / "decoding.md").write_text(text, encoding="utf-8")


def _name(cell: Measured) -> str:
    return f"{cell['row']}: {cell['cell']}"


def _ratio(cell: Measured, slower: str, faster: str) -> Ratio | None:
    seconds = cell["seconds"]
    return ratio(seconds[slower], seconds[faster]) if {slower, faster} <= seconds.keys() else None


def _bars(cells: Sequence[Measured], slower: str, faster: str) -> list[Bar]:
    pairs = [
        (f"{_name(cell)}, batch {cell['batch']}", _ratio(cell, slower, faster)) for cell in cells
    ]
    return [(name, measured) for name, measured in pairs if measured]


def _models(rows: Measured) -> str:
    lines = []
    for name, facts in rows.items():
        main, draft = facts["main step ms"], facts["draft step ms"]
        memory = facts.get("memory")
        peaks = (
            ""
            if memory is None
            else ", ".join(f"{column} {mib:.0f}" for column, mib in memory["MiB"].items())
        )
        where = "" if memory is None else f"{peaks} ({memory['cell']}, batch {memory['batch']})"
        tokens = "as they come" if facts["most tokens"] is None else str(facts["most tokens"])
        lines.append((name, f"{main:.1f}", f"{draft:.1f}", f"{main / draft:.1f}", tokens, where))
    steps = ("main step, ms", "draft step, ms", "ratio")
    return table(
        ("models", *steps, "tokens a window", "peak memory above the loaded models, MiB"), lines
    )


def _times(cell: Measured) -> list[str]:
    seconds = cell["seconds"]
    times = [f"{median(seconds[name]):.2f}" if name in seconds else "" for name in COLUMNS]
    fastest = min(median(seconds[name]) for name in (GREEDY, ASSISTED))
    return [
        _name(cell),
        str(cell["batch"]),
        str(len(seconds[GREEDY])),
        *times,
        f"{cell['audio'] / fastest:.0f}",
    ]


def _ratios(cell: Measured) -> list[str]:
    return [
        _name(cell),
        str(cell["batch"]),
        *(str(_ratio(cell, *pair) or "") for pair in RATIOS.values()),
    ]


def _drafting(cell: Measured) -> list[str]:
    acceptance = "" if cell["acceptance"] is None else f"{cell['acceptance']:.2f}"
    drafts = ", ".join(f"{drafts}: {rounds}" for drafts, rounds in cell["drafts"].items())
    return [_name(cell), str(cell["batch"]), acceptance, f"{cell['tokens a round']:.2f}", drafts]


def _targets(cells: Sequence[Measured]) -> Iterator[list[str]]:
    for target in TARGETS:
        for cell in cells:
            measured = _ratio(cell, target.slower, target.faster) if target.concerns(cell) else None
            if measured:
                wanted = f"{target.slower} / {target.faster} at least {target.least}"
                yield [wanted, *_verdict(cell, measured, measured.value >= target.least)]
    for cell in cells:
        measured = _ratio(cell, ASSISTED, GREEDY)
        if measured:
            wanted = f"{ASSISTED} / {GREEDY} at most {SLOWER}"
            yield [wanted, *_verdict(cell, measured, measured.low <= SLOWER)]


def _verdict(cell: Measured, measured: Ratio, met: bool) -> list[str]:
    return [_name(cell), str(cell["batch"]), str(measured), "met" if met else "MISSED"]
