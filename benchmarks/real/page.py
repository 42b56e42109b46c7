"""The page about real recordings and its pictures, from the results alone: figures, no texts.

Rates are of all recordings of a kind together. Differences are paired: the same recordings are
drawn for both engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.accuracy.intervals import difference, interval, points, pooled
from benchmarks.accuracy.metrics import Count
from benchmarks.charts import Chart, publish_page
from benchmarks.real.engines import BATCHED, OURS, PIPELINE, Spec
from benchmarks.real.manifest import TRUTH, Recording
from benchmarks.real.results import Cell, Results, cells, recordings, seconds_of_audio, specs
from benchmarks.real.scoring import is_by_character
from benchmarks.report import listed, machine, table

INTRODUCTION = """\
Written by `scripts/bench real` from what it measured; the code is in `benchmarks/real`. Each \
engine runs in a process of its own with the same threads; they take turns recording by recording.

- **ours**: this project's endpoint, sent the file by JSON. **batched**, **sequential**: \
faster-whisper's two forms, the same weights converted. **pipeline**: transformers' as \
insanely-fast-whisper calls it. `-5` is five beams; without a number all are greedy.
- **WER**: word errors by Whisper's own normalisers, all recordings of a column together. \
*Spoken text*: the reference is what was spoken. *All*: also references that a larger model wrote, \
good for comparing and no more.
- **Less theirs**: ours of as many beams less this engine, in points.
- Intervals: 95%, bootstrap over recordings; fewer than six show nothing.
- **Memory**: resident memory of the engine's process at its peak, model included."""
FEWEST = 6

Pick = Callable[[Recording], bool]


def page(results: Results) -> str:
    """The whole page as Markdown, without pictures."""
    heard = recordings(results)
    left_out = len(results["recordings"]) - len(heard)
    minutes = seconds_of_audio(results, heard) / 60
    count = f"{len(heard)} recordings, {minutes:.1f} minutes."
    if left_out:
        count += f" {left_out} more were not heard by every engine and are left out."
    parts = ["# Real recordings", INTRODUCTION, count]
    for title, pick in _kinds(heard):
        parts += [f"## {title}", _errors(results, [each for each in heard if pick(each)])]
    parts += [
        "## Time, memory, and words where nobody speaks",
        _costs(results, heard),
        "## Recording by recording",
        "Errors of the reference's words, or words where nobody speaks; seconds.",
        _each(results, heard),
        "## Settings",
        listed(results["settings"]),
    ]
    return "\n\n".join(parts) + "\n"


def write_page(results: Results) -> None:
    """The page and its pictures into docs/benchmarks."""
    publish_page("real", page(results), charts(results))


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


def _kinds(heard: Sequence[Recording]) -> Iterator[tuple[str, Pick]]:
    """The tables of errors for which there are recordings."""

    def spoken(each: Recording) -> bool:
        return bool(each.text) and each.reference == TRUTH and not is_by_character(each)

    def any_reference(each: Recording) -> bool:
        return bool(each.text) and not is_by_character(each)

    def characters(each: Recording) -> bool:
        return bool(each.text) and is_by_character(each)

    titles = {
        "Spoken text: word errors": spoken,
        "All references: word errors": any_reference,
        "Languages without spaces: character errors": characters,
    }
    return ((title, pick) for title, pick in titles.items() if any(map(pick, heard)))


def _errors(results: Results, some: Sequence[Recording]) -> str:
    rows = []
    known = specs(results)
    for spec in known:
        measured = cells(results, spec, some)
        counts = [cell.score.count for cell in measured]
        rate, beside = interval(counts), _counterpart(spec, known)
        between = ""
        if beside is not None and len(some) > 1:
            ours = [cell.score.count for cell in cells(results, beside, some)]
            between = points(difference(ours, counts), shown=len(some) >= FEWEST)
        kinds = [
            sum(getattr(cell.score, kind) for cell in measured)
            for kind in ("substitutions", "deletions", "insertions")
        ]
        shown = f"{rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%})"
        rows.append((spec.name, shown, *map(str, kinds), between))
    words = sum(cell.score.total for cell in cells(results, known[0], some))
    header = (
        f"{len(some)} recordings, {words} words",
        "error rate",
        "substituted",
        "deleted",
        "inserted",
        "ours less theirs, points",
    )
    return table(header, rows)


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
        invented = sum(cell.score.insertions for cell in cells(results, spec, silent))
        rows.append(
            (
                spec.name,
                f"{seconds:.1f}",
                f"{audio / seconds:.1f}",
                times,
                f"{max((cell.peak for cell in measured), default=0.0):.0f}",
                str(invented) if silent else "",
            )
        )
    header = (
        "engine",
        "seconds",
        "x real time",
        "ours / theirs, seconds",
        "memory, MiB",
        f"words in {len(silent)} recordings without any",
    )
    return table(header, rows)


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
