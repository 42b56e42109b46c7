"""The figures and the picture of the live benchmark's page, from its results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.intervals import pooled
from benchmarks.accuracy.metrics import Count
from benchmarks.charts import Chart
from benchmarks.live.replay import SILENCE_MS
from benchmarks.real.manifest import TRUTH, Recording
from benchmarks.real.scoring import score
from benchmarks.report import listed, machine, table, table_of

# A measurement, or a whole file of results, as JSON has it.
Results = Mapping[str, Any]
OURS, THEIRS = "this project", "faster-whisper, LocalAgreement"
# What issue and targets promise: seconds, points and times.
MOST_TOLD, MOST_COMPLETED, MOST_POINTS, MOST_BESIDE = 2.0, 1.0, 1.0, 1.5
STREAMS = 4


def figures(results: Results) -> dict[str, str]:
    """Every table of the page."""
    return {
        "heard": _heard(results),
        "bounds": table(("", "bound", "measured", ""), _bounds(results)),
        "delays": table_of([_delays(name, cell) for name, cell in _cells(results)]),
        "errors": _errors(results),
        "faults": table_of([_faults(name, cell) for name, cell in _cells(results)]),
        "each": _each(results),
        "memory": _memory(results),
    }


def summary(part: str, cell: Results) -> str:
    """One measurement in a line."""
    if part == "long":
        return f"long: {cell['memory'][-1][1]} MiB, said twice {cell['said twice']}"
    sessions = cell.get("sessions", [cell])
    named = cell.get("recording") or _name(cell)
    told = _quantiles(_all(sessions, "told"))
    waits = _quantiles(_all(sessions, "waits"))
    failures = sum(bool(each["failure"]) for each in sessions)
    return f"{part}, {named}: final {told}, completed {waits}, failures {failures}"


def charts(results: Results) -> dict[str, Chart]:
    """How late words are; nothing where the other engine was not measured."""
    cells = [(name, cell) for name, cell in _cells(results) if _is_alone(cell)]
    if len(cells) < 2 or any(not _all(cell["sessions"], "told") for _, cell in cells):
        return {}
    bars = {
        who: tuple(float(each) for each in np.percentile(_all(cell["sessions"], "told"), [50, 95]))
        for (_, cell), who in zip(cells, (OURS, "LocalAgreement"), strict=True)
    }
    facts = results["settings"]
    note = (
        f"{facts['model']}, {facts['precision']}; {machine(facts)}; one speaker at a time. "
        f"LocalAgreement: faster-whisper driven as whisper_streaming does."
    )
    question = "Seconds from a word's end until it is final"
    return {"live": Chart(question, " s", ("median", "p95"), bars, note)}


def _cells(results: Results) -> list[tuple[str, Results]]:
    """All measurements: ours alone, theirs, then the others."""
    first, *others = results["ours"] or [{}]
    theirs = {"clients": 1, "beside": False, "sessions": results["theirs"], "files": []}
    found = [(_name(first), first)] if first else []
    if results["theirs"]:
        found.append((THEIRS, theirs))
    return [*found, *((_name(cell), cell) for cell in others)]


def _name(cell: Results) -> str:
    beside = ", beside a file" if cell["beside"] else ""
    return f"{cell['clients']} client{'s' * (cell['clients'] > 1)}{beside}"


def _is_alone(cell: Results) -> bool:
    return bool(cell["clients"] == 1 and not cell["beside"])


def _heard(results: Results) -> str:
    known = results["recordings"].values()
    return listed(
        {
            "recordings": len(known),
            "of them without speech": sum(not each["text"] for each in known),
            "minutes": f"{sum(each['seconds'] for each in known) / 60:.1f}",
        }
    )


def _delays(name: str, cell: Results) -> dict[str, str]:
    sessions = cell["sessions"]
    after = [each + SILENCE_MS / 1000 for each in _all(sessions, "waits")]
    return {
        "": name,
        "words": str(len(_all(sessions, "told"))),
        "first shown": _quantiles(_all(sessions, "shown")),
        "final": _quantiles(_all(sessions, "told")),
        "items": str(len(after)),
        "completed": _quantiles(_all(sessions, "waits")),
        "with the detector's wait": _quantiles(after),
        "cadence": _quantiles(_all(sessions, "gaps")),
        "behind at the end": _largest(each["behind"] for each in sessions),
        "the file": " ".join(f"{each:.0f} s" for each in cell["files"][:3]),
    }


def _faults(name: str, cell: Results) -> dict[str, str]:
    sessions = cell["sessions"]
    failures = sorted({each["failure"] for each in sessions if each["failure"]})
    return {
        "": name,
        "sessions": str(len(sessions)),
        "words taken back": str(sum(each["retracted"] for each in sessions)),
        "words said twice": str(sum(each["said twice"] for each in sessions)),
        "error events": str(sum(each["errors"] for each in sessions)),
        "sessions that failed": str(sum(bool(each["failure"]) for each in sessions)),
        "because": "; ".join(failures),
    }


class Scores:
    """Word errors of the recordings that were heard whole by one client, by who wrote what."""

    def __init__(self, results: Results) -> None:
        self.recordings = {
            name: Recording(Path(name), each["language"], each["text"], each["reference"])
            for name, each in results["recordings"].items()
        }
        alone: list[Results] = [
            each for cell in results["ours"] if _is_alone(cell) for each in cell["sessions"]
        ]
        ours = {each["recording"]: each for each in alone if each["whole"]}
        theirs = {each["recording"]: each for each in results["theirs"]}
        files = {name: each["file"] for name, each in results["recordings"].items()}
        self.texts: dict[str, dict[str, str]] = {
            "the file": files,
            "completed": {name: each["completed"] for name, each in ours.items()},
            "deltas": {name: each["deltas"] for name, each in ours.items()},
        }
        if theirs:
            self.texts[THEIRS] = {name: each["deltas"] for name, each in theirs.items()}
        self.heard = [
            each
            for name, each in self.recordings.items()
            if all(name in texts for texts in self.texts.values())
        ]

    def count(self, who: str, fits: Callable[[Recording], bool]) -> Count:
        """Errors of all recordings with a text that `fits`."""
        some = [each for each in self.heard if each.text and fits(each)]
        return pooled([score(each, self.texts[who][each.name]).count for each in some])

    def invented(self, who: str) -> int:
        """Words where nobody speaks."""
        silent = [each for each in self.heard if not each.text]
        return sum(score(each, self.texts[who][each.name]).insertions for each in silent)

    def beyond_file(self, who: str) -> float:
        """Points of word errors more than the endpoint's answer for the files has."""
        ours, file = (self.count(each, _any).rate for each in (who, "the file"))
        return 100 * (ours - file)


def _any(_: Recording) -> bool:
    return True


def _spoken(each: Recording) -> bool:
    return each.reference == TRUTH


def _errors(results: Results) -> str:
    scores = Scores(results)
    if not any(each.text for each in scores.heard):
        return ""
    rows = []
    for who in scores.texts:
        spoken, every = scores.count(who, _spoken), scores.count(who, _any)
        rows.append(
            {
                "": who,
                "spoken text": _rate(spoken),
                "all references": _rate(every),
                "more than the file, points": f"{scores.beyond_file(who):+.1f}",
                "words where nobody speaks": str(scores.invented(who)),
            }
        )
    return table_of(rows)


def _rate(count: Count) -> str:
    return f"{count.rate:.1%} of {count.total}" if count.total else ""


def _each(results: Results) -> str:
    scores = Scores(results)
    alone = {name: cell for name, cell in _cells(results) if _is_alone(cell)}
    columns = {
        name: {each["recording"]: each for each in cell["sessions"]} for name, cell in alone.items()
    }
    rows = []
    for each in scores.heard:
        kept = results["recordings"][each.name]
        about = f"{each.name} ({each.language or 'detected'}, {kept['seconds']:.0f} s)"
        errors = [_cell(each, texts[each.name]) for texts in scores.texts.values()]
        told = [_quantiles(sessions[each.name]["told"]) for sessions in columns.values()]
        rows.append((about, *errors, *told))
    header = ("recording", *scores.texts, *(f"{name}: final" for name in columns))
    return table(header, rows)


def _cell(recording: Recording, text: str) -> str:
    found = score(recording, text)
    return f"{found.count.rate:.1%}" if recording.text else f"{found.insertions} words"


def _memory(results: Results) -> str:
    if "long" not in results:
        return ""
    long = results["long"]
    rows = [(f"{second / 60:.0f}", f"{held:.0f}") for second, held in long["memory"]]
    kept = [row for place, row in enumerate(rows) if place % 5 == 0 or place == len(rows) - 1]
    said = {
        "words": long["words"],
        "words taken back": long["retracted"],
        "words said twice": long["said twice"],
        "error events": long["errors"],
        "behind at the end": f"{long['behind']:.1f} s",
        **({"failed": long["failure"]} if long["failure"] else {}),
    }
    return table(("minute", "MiB"), kept) + "\n\n" + listed(said)


def _bounds(results: Results) -> list[tuple[str, ...]]:
    """What is promised, what was measured, and whether it is met."""
    cells = dict(_cells(results))
    alone, beside = _p50(cells, "1 client"), _p50(cells, "1 client, beside a file")
    theirs, several = _p50(cells, THEIRS), _p50(cells, f"{STREAMS} clients")
    scores = Scores(results)
    sessions = [each for cell in results["ours"] for each in cell["sessions"]]
    taken_back = sum(each["retracted"] for each in sessions)
    twice = sum(each["said twice"] for each in sessions)
    invented = max(scores.invented("deltas"), scores.invented("completed"))
    measured = [
        ("words final, p50", MOST_TOLD, alone, " s"),
        ("`completed`, p50", MOST_COMPLETED, _p50(cells, "1 client", "waits"), " s"),
        (f"words final of {STREAMS} clients, p50", MOST_TOLD, several, " s"),
        ("words final beside a file / alone, p50", MOST_BESIDE, _ratio(beside, alone), ""),
        ("words final / LocalAgreement's, p50", 1, _ratio(alone, theirs), ""),
        ("errors of deltas over the file's", MOST_POINTS, scores.beyond_file("deltas"), " points"),
        ("errors of `completed` over the file's", 0, scores.beyond_file("completed"), " points"),
        ("words taken back", 0, taken_back, ""),
        ("words said twice", 0, twice, ""),
        ("words where nobody speaks", 0, invented, ""),
    ]
    if theirs is not None:
        more = scores.beyond_file("deltas") - scores.beyond_file(THEIRS)
        measured.append(("errors of deltas over LocalAgreement's", 0, more, " points"))
    return [_bound(*each) for each in measured]


def _bound(what: str, bound: float, measured: float | None, unit: str) -> tuple[str, ...]:
    if measured is None:
        return what, f"{bound:g}{unit}", "", ""
    met = "met" if round(measured, 2) <= bound else "MISSED"
    return what, f"{bound:g}{unit}", f"{round(measured, 2):g}{unit}", met


def _p50(cells: Mapping[str, Results], name: str, column: str = "told") -> float | None:
    values = _all(cells[name]["sessions"], column) if name in cells else []
    return float(np.median(values)) if values else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _all(sessions: Sequence[Results], column: str) -> list[float]:
    return list(chain.from_iterable(each[column] for each in sessions))


def _largest(seconds: Iterable[float]) -> str:
    return f"{max(seconds, default=0.0):.1f} s"


def _quantiles(seconds: Sequence[float]) -> str:
    """Median and p95."""
    if not seconds:
        return "-"
    return " / ".join(f"{each:.2f}" for each in np.percentile(seconds, [50, 95]))
