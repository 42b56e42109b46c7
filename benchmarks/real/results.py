"""The results of a run as JSON: recordings with their references, and every engine's answers.

Texts are kept, scores are not, so that a normaliser that is corrected, or another measure, needs no
engine again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.real.engines import Heard, Spec
from benchmarks.real.manifest import Recording
from benchmarks.real.scoring import Score, score

# A whole file of results, as JSON has it.
Results = dict[str, Any]
EMPTY: Results = {"recordings": {}, "answers": {}}


@dataclass(frozen=True)
class Cell:
    """A recording's score by one engine, the median seconds of its repeats, and MiB at the peak."""

    recording: Recording
    score: Score
    seconds: float
    peak: float


def add_recording(results: Results, recording: Recording, seconds: float) -> None:
    """Note a recording of `seconds` that will be transcribed.

    Raises ValueError if the earlier results have another recording of that name.
    """
    kept = results["recordings"].get(recording.name, {"seconds": round(seconds, 3)})
    if kept["seconds"] != round(seconds, 3):
        raise ValueError(
            f"{recording.name} lasts {seconds:.3f} s; the earlier results have another recording of"
            f" that name, of {kept['seconds']} s: rename it, or drop those results with --fresh"
        )
    results["recordings"][recording.name] = {
        "language": recording.language,
        "text": recording.text,
        "reference": recording.reference,
        "seconds": round(seconds, 3),
    }


def add_answer(
    results: Results, recording: Recording, spec: Spec, heard: Heard, first: bool
) -> None:
    """Note an engine's text of a recording. The `first` one of a run replaces results of older
    runs.
    """
    answers = results["answers"].setdefault(spec.name, {})
    if first:
        answers[recording.name] = {"text": heard.text, "seconds": [], "peak": 0.0}
    answer = answers[recording.name]
    answer["seconds"].append(round(heard.seconds, 3))
    answer["peak"] = round(max(answer["peak"], heard.peak), 1)


def specs(results: Results) -> list[Spec]:
    """Return the engines, in the order of their first results."""
    return [Spec.parse(name) for name in results["answers"]]


def recordings(results: Results) -> list[Recording]:
    """Return the recordings that every engine transcribed."""
    complete = set(results["recordings"]).intersection(*map(set, results["answers"].values()))
    return [
        Recording(Path(name), kept["language"], kept["text"], kept["reference"])
        for name, kept in results["recordings"].items()
        if name in complete
    ]


def seconds_of_audio(results: Results, some: Sequence[Recording]) -> float:
    """Return the sum of the recordings' seconds."""
    return float(sum(results["recordings"][recording.name]["seconds"] for recording in some))


def cells(results: Results, spec: Spec, some: Sequence[Recording]) -> list[Cell]:
    """Return an engine's answers about some recordings, in their order."""
    answers = results["answers"][spec.name]
    kept = [(recording, answers[recording.name]) for recording in some]
    return [
        Cell(
            recording,
            score(recording, answer["text"]),
            median(answer["seconds"]),
            answer["peak"],
        )
        for recording, answer in kept
    ]
