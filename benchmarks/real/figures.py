"""The tables of the page about real recordings, from the results alone: no texts.

Rates are of all recordings of a kind together. Differences are paired: the same recordings are
drawn for both engines.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.counts import Count, difference, points, pooled
from benchmarks.options import OURS
from benchmarks.real.engines import Spec
from benchmarks.real.manifest import TRUTH, Recording
from benchmarks.real.results import Cell, Results, cells, recordings, seconds_of_audio, specs
from benchmarks.real.scoring import is_by_character
from benchmarks.report import Tables

FEWEST = 6  # recordings; intervals of fewer prove nothing


def figures(results: Results) -> Tables:
    """Return a row for each engine, about the recordings that every engine transcribed."""
    heard, known = recordings(results), specs(results)
    return {"engines": [_engine(results, spec, known, heard) for spec in known]}


def summary(results: Results, recording: Recording) -> str:
    """Return one recording's figures as a line, printed while the next recording is transcribed."""
    found = []
    for spec in specs(results):
        if recording.name in results["answers"][spec.name]:
            (cell,) = cells(results, spec, [recording])
            found.append(f"{spec.name} {_cell(cell)}")
    return f"{recording.name}: {', '.join(found)}"


def _engine(
    results: Results, spec: Spec, known: Sequence[Spec], heard: Sequence[Recording]
) -> dict[str, str]:
    words = [each for each in heard if each.text and not is_by_character(each)]
    spoken = [each for each in words if each.reference == TRUTH]
    kinds = {
        "spoken text": spoken,
        "all": words,
        "characters": [each for each in heard if each.text and is_by_character(each)],
    }
    measured = cells(results, spec, heard)
    seconds = sum(cell.seconds for cell in measured)
    row = {"engine": spec.name}
    for kind, some in kinds.items():
        if some:
            count = pooled(_counts(results, spec, some))
            row[f"{kind}, of {count.total:.0f}"] = f"{count.rate:.1%}"
    return row | {
        "ours less theirs, points": _less(results, spec, known, spoken or words),
        "seconds": f"{seconds:.1f}",
        "x real time": f"{seconds_of_audio(results, heard) / seconds:.1f}" if seconds else "",
        "memory, MiB": f"{max((cell.peak for cell in measured), default=0.0):.0f}",
        "words where nobody speaks": str(
            sum(cell.score.insertions for cell in measured if not cell.recording.text)
        ),
    }


def _less(results: Results, spec: Spec, known: Sequence[Spec], some: Sequence[Recording]) -> str:
    """Return word errors of ours with as many beams, or of the first of ours, less an engine's."""
    ours = [each for each in known if each.form == OURS]
    same = [each for each in ours if each.beams == spec.beams]
    beside = (same or ours or [spec])[0]
    if beside == spec or not some:
        return ""
    less = difference(_counts(results, beside, some), _counts(results, spec, some))
    return points(less) if len(some) >= FEWEST else f"{100 * less.value:+.1f}"


def _cell(cell: Cell) -> str:
    if not cell.recording.text:
        return f"{cell.score.insertions} words; {cell.seconds:.1f} s"
    return f"{cell.score.count.rate:.1%}; {cell.seconds:.1f} s"


def _counts(results: Results, spec: Spec, some: Sequence[Recording]) -> list[Count]:
    return [cell.score.count for cell in cells(results, spec, some)]
