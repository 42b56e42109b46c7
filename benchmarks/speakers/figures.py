"""The figures and the picture of the page about known speakers, from the results alone."""

from __future__ import annotations

from typing import Any

from benchmarks.charts import Curves
from benchmarks.report import listed, table, table_of

Results = dict[str, Any]
# Set before any result, of clean dialogues with clean clips of 3 s.
MAX_STRANGERS, MIN_RIGHT, TARGET_SECONDS = 0.01, 0.90, 3.0


def figures(results: Results) -> dict[str, str]:
    """Who speaks, the targets, and who got which name by which rule."""
    threshold, rows = f"{results['threshold']:.2f}", results["rows"]
    taken = [
        f"{one} ({cosine:.2f} to {other})" for one, other, cosine in results["taken for another"]
    ]
    people = {
        "people": ", ".join(results["people"]),
        "left out, because the diarization takes them for another": ", ".join(taken) or "nobody",
        "default threshold": threshold,
    }
    return {
        "people": listed(people),
        "targets": table(("target", "measured", ""), _targets(results)),
        "default": table_of([_by_threshold(row, threshold, results) for row in rows]),
        "nearest": table_of([_named(row, row["nearest"], row["nearest"]["error"]) for row in rows]),
        "thresholds": table_of(_over_thresholds(results)),
    }


def chart(results: Results) -> Curves:
    """Known people's seconds named rightly and strangers' named, over thresholds, clips of 3 s."""
    lines: dict[str, tuple[float, ...]] = {}
    for row in results["rows"]:
        if row["seconds"] == TARGET_SECONDS and row["dialogue"] == row["clips"]:
            for rate, what in (("right", "known, rightly"), ("strangers", "strangers")):
                values = [100 * rates[rate] for rates in row["by threshold"].values()]
                lines[f"{row['dialogue']}: {what}"] = tuple(round(value, 2) for value in values)
    return Curves(
        question="Seconds that get a name",
        unit="% of the seconds of known people, of strangers",
        axis="threshold of similarity; the line is the default",
        places=tuple(map(float, _clean(results)["by threshold"])),
        lines=lines,
        chosen=results["threshold"],
        note="Clips of 3 s from the same channel as the dialogue. Synthetic voices, the demo's "
        "diarization.",
    )


def _targets(results: Results) -> list[tuple[str, str, str]]:
    rates = _clean(results)["by threshold"][f"{results['threshold']:.2f}"]
    strangers, right = rates["strangers"], rates["right"]
    return [
        (
            f"clean, clips of 3 s: strangers' seconds named, at most {MAX_STRANGERS:.0%}",
            f"{strangers:.1%}",
            _verdict(strangers <= MAX_STRANGERS),
        ),
        (
            f"clean, clips of 3 s: known people's seconds named rightly, at least {MIN_RIGHT:.0%}",
            f"{right:.1%}",
            _verdict(right >= MIN_RIGHT),
        ),
    ]


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _clean(results: Results) -> Results:
    """The row that the targets are about."""
    rows: list[Results] = results["rows"]
    wanted = ("clean", "clean", TARGET_SECONDS)
    return next(row for row in rows if (row["dialogue"], row["clips"], row["seconds"]) == wanted)


def _by_threshold(row: Results, threshold: str, results: Results) -> dict[str, str]:
    return {
        **_named(row, row["by threshold"][threshold], row["error"]),
        "DER": f"{results['diarization error'][row['dialogue']]:.1%}",
        "refused clips": str(row["refused"]),
    }


def _named(row: Results, rates: dict[str, float], error: float) -> dict[str, str]:
    return {"dialogue, clips": _name(row), **_shares(rates), "IER": f"{error:.1%}"}


def _over_thresholds(results: Results) -> list[dict[str, str]]:
    """Every fifth threshold."""
    by_threshold = _clean(results)["by threshold"]
    return [
        {"threshold": name, **_shares(by_threshold[name])}
        for name in by_threshold
        if round(100 * float(name)) % 10 == 0
    ]


def _shares(rates: dict[str, float]) -> dict[str, str]:
    return {
        "rightly": f"{rates['right']:.1%}",
        "wrongly": f"{rates['wrong']:.1%}",
        "strangers": f"{rates['strangers']:.1%} ({rates['stranger speakers']:.1%})",
    }


def _name(row: Results) -> str:
    clips = "" if row["clips"] == row["dialogue"] else f" {row['clips']}"
    return f"{row['dialogue']},{clips} {row['seconds']:g} s"
