"""The figures and the pictures of the page about real recordings, from the results alone: no texts.

Rates are of all recordings of a kind together. Differences are paired: the same recordings are
drawn for both engines.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy.intervals import difference, interval, points, pooled
from benchmarks.accuracy.metrics import Count
from benchmarks.charts import Chart
from benchmarks.options import BATCHED, OURS, PIPELINE
from benchmarks.real.engines import Spec
from benchmarks.real.manifest import TRUTH, Recording
from benchmarks.real.results import Cell, Results, cells, recordings, seconds_of_audio, specs
from benchmarks.real.scoring import is_by_character
from benchmarks.report import listed, machine, table, table_of

FEWEST = 6  # recordings; intervals of fewer prove nothing and are left out


def figures(results: Results) -> dict[str, str]:
    """What was heard, errors by kind of recording, costs, and every recording."""
    heard = recordings(results)
    facts = {
        "recordings": len(heard),
        "minutes": f"{seconds_of_audio(results, heard) / 60:.1f}",
        "recordings left out, not heard by every engine": len(results["recordings"]) - len(heard),
    }
    words = [each for each in heard if each.text and not is_by_character(each)]
    spoken = [each for each in words if each.reference == TRUTH]
    characters = [each for each in heard if each.text and is_by_character(each)]
    return {
        "heard": listed(facts),
        "spoken text": _errors(results, spoken),
        "all references": _errors(results, words),
        "characters": _errors(results, characters),
        "costs": _costs(results, heard),
        "recordings": _each(results, heard),
    }


def summary(results: Results, recording: Recording) -> str:
    """One recording in a line, printed while the next is heard."""
    found = []
    for spec in specs(results):
        if recording.name in results["answers"][spec.name]:
            (cell,) = cells(results, spec, [recording])
            found.append(f"{spec.name} {_cell(cell)}")
    return f"{recording.name}: {', '.join(found)}"


def charts(results: Results) -> dict[str, Chart]:
    """Word errors and seconds of three engines: the most beams that ours and batched were both
    measured with, and transformers' pipeline.
    """
    known = specs(results)
    plain = {spec.name: spec for spec in known if spec.name in _PLAIN}
    beams = "-5" if {f"{OURS}-5", f"{BATCHED}-5"} <= plain.keys() else ""
    bars = {
        "this project": plain.get(OURS + beams),
        "faster-whisper": plain.get(BATCHED + beams),
        "transformers' pipeline": plain.get(PIPELINE),
    }
    named = {name: spec for name, spec in bars.items() if spec is not None}
    if OURS + beams not in plain or len(named) < 2:
        return {}
    return _charts(results, named, "5 beams" if beams else "greedy")


_PLAIN = (OURS, f"{OURS}-5", BATCHED, f"{BATCHED}-5", PIPELINE)


def _charts(results: Results, named: dict[str, Spec], beams: str) -> dict[str, Chart]:
    heard = [each for each in recordings(results) if not is_by_character(each)]
    spoken = [each for each in heard if each.text]
    kinds = {
        "spoken text": [each for each in spoken if each.reference == TRUTH],
        "all": spoken,
    }
    facts = results["settings"]
    note = (
        f"{facts['model']}, {facts['precision']}, {machine(facts)}, batch {facts['batch size']}; "
        f"this project and faster-whisper (batched) with {beams}, the pipeline greedy. "
        f"{len(heard)} recordings, {seconds_of_audio(results, heard) / 60:.0f} minutes."
    )
    errors: dict[str, tuple[float, ...]] = {
        name: tuple(100 * _pooled(results, spec, some).rate for some in kinds.values())
        for name, spec in named.items()
    }
    seconds: dict[str, tuple[float, ...]] = {
        name: (_seconds(cells(results, spec, heard)),) for name, spec in named.items()
    }
    return {
        "real": Chart("Word errors on real recordings", "%", tuple(kinds), errors, note),
        "real-seconds": Chart("Seconds for all recordings", " s", ("",), seconds, note),
    }


def _errors(results: Results, some: Sequence[Recording]) -> str:
    """A row for each engine; nothing without recordings."""
    rows = []
    known = specs(results) if some else []
    for spec in known:
        scores = [cell.score for cell in cells(results, spec, some)]
        counts = [score.count for score in scores]
        rate, beside = interval(counts), _counterpart(spec, known)
        shown, between = f"{rate.value:.1%}", ""
        if len(some) >= FEWEST:
            shown += f" ({rate.low:.1%} to {rate.high:.1%})"
        if beside is not None:
            ours = [cell.score.count for cell in cells(results, beside, some)]
            less = difference(ours, counts)
            between = points(less) if len(some) >= FEWEST else f"{100 * less.value:+.1f}"
        words = sum(score.total for score in scores)
        rows.append(
            {
                f"{len(some)} recording{'s' * (len(some) > 1)}, {words} words": spec.name,
                "error rate": shown,
                "substituted": str(sum(score.substitutions for score in scores)),
                "deleted": str(sum(score.deletions for score in scores)),
                "inserted": str(sum(score.insertions for score in scores)),
                "ours less theirs, points": between,
            }
        )
    return table_of(rows)


def _counterpart(spec: Spec, known: Sequence[Spec]) -> Spec | None:
    """Ours of as many beams, or the first of ours; None beside itself and where there is none."""
    ours = [each for each in known if each.form == OURS]
    same = [each for each in ours if each.beams == spec.beams]
    found = (same or ours or [spec])[0]
    return None if found == spec else found


def _costs(results: Results, heard: Sequence[Recording]) -> str:
    known, audio = specs(results), seconds_of_audio(results, heard)
    silent = [each for each in heard if not each.text]
    rows = []
    for spec in known:
        measured, beside = cells(results, spec, heard), _counterpart(spec, known)
        seconds = _seconds(measured)
        times = ""
        if beside is not None:
            times = f"{_seconds(cells(results, beside, heard)) / seconds:.2f}"
        row = {
            "engine": spec.name,
            "seconds": f"{seconds:.1f}",
            "x real time": f"{audio / seconds:.1f}",
            "ours / theirs, seconds": times,
            "memory, MiB": f"{max((cell.peak for cell in measured), default=0.0):.0f}",
        }
        if silent:
            invented = sum(cell.score.insertions for cell in cells(results, spec, silent))
            row[f"words in {len(silent)} recordings without any"] = str(invented)
        rows.append(row)
    return table_of(rows)


def _each(results: Results, heard: Sequence[Recording]) -> str:
    known = specs(results)
    columns = {spec.name: cells(results, spec, heard) for spec in known}
    rows = []
    for place, recording in enumerate(heard):
        audio = seconds_of_audio(results, [recording])
        language = recording.language or "detected"
        about = f"{recording.name} ({language}, {audio:.0f} s, {recording.reference})"
        rows.append((about, *(_cell(measured[place]) for measured in columns.values())))
    return table(("recording", *columns), rows)


def _cell(cell: Cell) -> str:
    if not cell.recording.text:
        return f"{cell.score.insertions} words; {cell.seconds:.1f}"
    return f"{cell.score.count.rate:.1%}; {cell.seconds:.1f}"


def _pooled(results: Results, spec: Spec, some: Sequence[Recording]) -> Count:
    return pooled([cell.score.count for cell in cells(results, spec, some)])


def _seconds(measured: Sequence[Cell]) -> float:
    return sum(cell.seconds for cell in measured)
