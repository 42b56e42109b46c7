"""Compares several engines on your recordings: `scripts/bench real --manifest FILE --model MODEL`.

Engines take turns recording by recording, every other time in reverse order, so that a slow minute
of the machine affects all. Their texts are kept with the references in build/bench, so that a
corrected normaliser or a new metric needs no engine. A later run adds to them, and `--render`
computes scores and page again without transcribing.
"""

import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.apart import Apart, EngineFailed
from benchmarks.counts import Count, difference, points, pooled
from benchmarks.options import OURS
from benchmarks.real.converted import convert
from benchmarks.real.engines import BATCH_SIZE, PRECISION, Measured, Setting, Spec
from benchmarks.real.manifest import TRUTH, Recording, load_manifests, recordings_of
from benchmarks.real.scoring import score
from benchmarks.report import Results, Tables, settings
from config import ModelSettings
from whosaid.cli.parser import model as read_model
from whosaid.models.download import with_local_models
from whosaid.timebase import SAMPLE_RATE

PACKAGES = ("torch", "transformers", "ctranslate2", "faster-whisper", "rapidfuzz")
FEWEST = 6  # recordings; intervals of fewer prove nothing
# Scores by engine, and then by recording.
Scores = Mapping[str, Mapping[Recording, Count]]


def measure(options: Namespace, path: Path) -> None:
    """Transcribe every recording by every engine; `path` is written after each recording.

    Raises ValueError if manifest or engines are wrong or no engine is left, and StartError if the
    model is not available.
    """
    specs = [Spec.parse(text) for text in options.engines]
    recordings = load_manifests(options.manifest)
    setting = setting_of(options)
    facts: dict[str, Any] = {"model": Path(options.model).name, "precision": PRECISION}
    facts |= {"batch size": BATCH_SIZE, "word times": True, "repeats": options.repeats}
    facts |= settings(PACKAGES)
    results = Results(path, facts, {"recordings": {}, "answers": {}}, options.fresh)
    seconds = {each: len(each.samples()) / SAMPLE_RATE for each in recordings}
    for each, length in seconds.items():
        add_recording(results.content["recordings"], each, length)
    engines = _start(specs, setting, min(recordings, key=seconds.__getitem__))
    try:
        _transcribe(engines, recordings, options.repeats, results)
    finally:
        for engine in engines:
            engine.close()


def add_recording(kept: dict[str, Any], recording: Recording, seconds: float) -> None:
    """Note a recording of `seconds` that will be transcribed.

    Raises ValueError if the earlier results have another recording of that name.
    """
    facts = recording.facts(seconds)
    before = kept.get(recording.name, facts)
    if before["seconds"] != facts["seconds"]:
        raise ValueError(
            f"{recording.name} lasts {seconds:.3f} s; the earlier results have another recording of"
            f" that name, of {before['seconds']} s: rename it, or drop those results with --fresh"
        )
    kept[recording.name] = facts


def _transcribe(
    engines: Sequence[Apart], recordings: Sequence[Recording], repeats: int, results: Results
) -> None:
    """Transcribe every recording with every engine, by turns, `repeats` times.

    The first answer of a run replaces those of older runs.
    """
    for turn in range(repeats * len(recordings)):
        recording = recordings[turn % len(recordings)]
        forward = (turn + turn // len(recordings)) % 2 == 0
        measured = []
        for engine in engines if forward else reversed(engines):
            text, seconds = engine.call("transcribe", recording)
            measured.append(f"{engine.name} {seconds:.1f} s")
            answers = results.content["answers"].setdefault(engine.name, {})
            if turn < len(recordings):
                answers[recording.name] = {"text": text, "seconds": []}
            answers[recording.name]["seconds"].append(round(seconds, 3))
        results.save(f"{recording.name}: {', '.join(measured)}")


def _start(specs: Sequence[Spec], setting: Setting, recording: Recording) -> list[Apart]:
    """Load the engines one after the other and return those that answer; print the others' names.

    Each engine transcribes the shortest recording once as a warm-up.
    """
    engines: list[Apart] = []
    for spec in specs:
        started = time.perf_counter()
        try:
            engine = Apart(spec.name, Measured, spec, setting)
            engine.call("transcribe", recording)
        except EngineFailed as error:
            print(f"left out: {error}", file=sys.stderr, flush=True)
            continue
        engines.append(engine)
        seconds = time.perf_counter() - started
        print(f"{spec.name} ready after {seconds:.1f} s", file=sys.stderr, flush=True)
    if not engines:
        raise ValueError("no engine is left")
    return engines


def setting_of(options: Namespace) -> Setting:
    """Return the engines' common settings; fetch and convert the model if need be."""
    try:
        chosen = ModelSettings.for_models(read_model(options.model))
    except ArgumentTypeError as error:
        raise ValueError(f"--model={options.model}: {error}") from error
    model = Path(with_local_models(chosen).asr_model.name)
    return Setting(model, convert(model), "cuda" if torch.cuda.is_available() else "cpu")


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
    less = difference(*([scores[name][each] for each in some] for name in (beside, engine)))
    return points(less) if len(some) >= FEWEST else f"{100 * less.value:+.1f}"
