"""Makes the tables of the page about real recordings from the results, without texts.

Rates are over all recordings of a kind together. Differences are paired: the same recordings are
drawn for both engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.counts import Count, difference, points, pooled
from benchmarks.options import OURS
from benchmarks.real.engines import Spec
from benchmarks.real.manifest import TRUTH, Recording, recordings_of
from benchmarks.real.scoring import score
from benchmarks.report import Tables

FEWEST = 6  # recordings; intervals of fewer prove nothing
# Scores by engine, and then by recording.
Scores = Mapping[str, Mapping[Recording, Count]]


def figures(results: dict[str, Any]) -> Tables:
    """Return a row for each engine, about the recordings that every engine transcribed."""
    answers = results["answers"]
    heard = recordings_of(results, answers)
    scores = {
        engine: {each: score(each, texts[each.name]["text"]) for each in heard}
        for engine, texts in answers.items()
    }
    words = [each for each in heard if each.text]
    spoken = [each for each in words if each.reference == TRUTH]
    rows = []
    for engine, texts in answers.items():
        row = {"engine": engine}
        for kind, some in {"spoken text": spoken, "all": words}.items():
            if some:
                count = pooled([scores[engine][each] for each in some])
                row[f"{kind}, of {count.total:.0f}"] = f"{count.rate:.1%}"
        seconds = sum(median(texts[each.name]["seconds"]) for each in heard)
        invented = (scores[engine][each].errors for each in heard if not each.text)
        row |= {
            "ours less theirs, points": _less(engine, scores, spoken or words),
            "seconds": f"{seconds:.1f}",
            "words where nobody speaks": f"{sum(invented):.0f}",
        }
        rows.append(row)
    return {"engines": rows}


def _less(engine: str, scores: Scores, some: Sequence[Recording]) -> str:
    """Return word errors of ours with as many beams, or of the first of ours, less an engine's."""
    ours = [spec for spec in map(Spec.parse, scores) if spec.form == OURS]
    same = [spec for spec in ours if spec.beams == Spec.parse(engine).beams]
    if not some or not ours or (beside := (same or ours)[0].name) == engine:
        return ""
    less = difference(
        [scores[beside][each] for each in some], [scores[engine][each] for each in some]
    )
    return points(less) if len(some) >= FEWEST else f"{100 * less.value:+.1f}"
