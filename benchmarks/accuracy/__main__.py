"""How right the answers are, beside the rules people use today: `scripts/bench accuracy`.

The reserved voices are for published figures and nothing is tuned on them. `--development` has the
same conditions with other voices and seeds: to look into and to tune on.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy import metrics
from benchmarks.accuracy.answers import OURS, Answer, ask, attribute_by_rules
from benchmarks.accuracy.diagnosis import Diagnosis
from benchmarks.accuracy.figures import chart, figures
from benchmarks.accuracy.scenes import SceneKey, Split, load, scene_files
from benchmarks.pages import write_page
from benchmarks.report import RESULTS, read, save, settings
from config import ModelSettings
from handler import EndpointHandler
from tests.support.dialogue import Scene

PACKAGES = (
    "torch",
    "pyannote.audio",
    "jiwer",
    "meeteval",
    "pyannote.metrics",
    "silero-vad",
    "numpy",
)
Results = dict[str, Any]


def main(options: Namespace) -> None:
    """Measure what is asked for and write the page."""
    split: Split = "development" if options.development else "reserved"
    path = _path(split, options.quick)
    if not options.render:
        run(split, options.quick, path)
    results = read(path)
    pictures = {"speakers": chart(results["scenes"])}
    copy = None if options.publish else path.with_suffix(".md")
    write_page("accuracy", results, figures(results), pictures, copy)


def run(split: Split, quick: bool, path: Path) -> None:
    """Ask the endpoint about every scene and judge its answers; `path` is written after each.

    The answers are kept beside it, so that another rule can be tried on them.
    """
    files = scene_files(split, quick, RESULTS / "scenes")
    endpoint = EndpointHandler(settings=ModelSettings.for_demo())
    facts = settings(PACKAGES)
    results: Results = {"split": split, "quick": quick, "settings": facts, "scenes": []}
    for key, file in files.items():
        started = time.perf_counter()
        answer = ask(endpoint, file)
        seconds = round(time.perf_counter() - started, 2)
        judged = judge(key, load(file), answer) | {"seconds to answer": seconds}
        save(RESULTS / "answers" / f"{key.name}.json", asdict(answer))
        results["scenes"].append(judged)
        save(path, results)
        print(f"{key.name}: {_summary(judged)}", flush=True)


def judge(key: SceneKey, scene: Scene, answer: Answer) -> Results:
    """Everything that is counted about one answer, as JSON."""
    steps = metrics.align(scene.words, answer.words)
    pairs = metrics.correct_words(scene.words, answer.words, steps)
    on_found, on_true = attribute_by_rules(answer), attribute_by_rules(answer, scene.turns)

    def rules(attributed: dict[str, Any]) -> Results:
        counts = {}
        for rule, words in attributed.items():
            wrong = metrics.speaker_errors(scene.words, words, pairs)
            cp = metrics.cp_word_errors(scene.words, words)
            counts[rule] = {"speakers": asdict(wrong), "cp": asdict(cp)}
        return counts

    overlapped = [metrics.is_overlapped(word.start, word.end, scene.turns) for word in scene.words]
    boundaries = metrics.boundary_errors(scene.words, answer.words, pairs)
    diagnosis = Diagnosis(scene, on_found[OURS], steps, answer.turns, answer.window_boundaries)
    return {
        "condition": key.condition,
        "seconds": key.seconds,
        "name": key.name,
        "duration": scene.duration,
        "words": asdict(metrics.word_errors(scene.words, answer.words)),
        "overlapped words": sum(overlapped),
        "words in silence": metrics.count_words_in_silence(scene.words, answer.words),
        "diarization": asdict(
            metrics.diarization_errors(scene.turns, answer.turns, scene.duration)
        ),
        "speakers": [
            len({turn.speaker for turn in turns}) for turns in (scene.turns, answer.turns)
        ],
        "boundary errors": boundaries.round(3).tolist(),
        "found turns": rules(on_found),
        "true turns": rules(on_true),
        "incidents": [asdict(incident) for incident in diagnosis.incidents()],
    }


def _summary(judged: Results) -> str:
    """One scene in a line, printed while the next is answered."""
    words, turns = (metrics.Count(**judged[part]) for part in ("words", "diarization"))
    rates = [
        f"{rule} {metrics.Count(**counts['speakers']).rate:.1%}"
        for rule, counts in judged["found turns"].items()
    ]
    causes = Counter[str]()
    for incident in judged["incidents"]:
        causes[incident["cause"]] += incident["errors"]
    true, found = judged["speakers"]
    return (
        f"{judged['seconds to answer']:.1f} s, WER {words.rate:.1%} of {words.total}, "
        f"DER {turns.rate:.1%}, {found} of {true} speakers, "
        f"{judged['words in silence']} words in silence, "
        f"wrong speaker {', '.join(rates)}; {dict(causes)}"
    )


def _path(split: Split, quick: bool) -> Path:
    name = "accuracy" if split == "reserved" else f"accuracy-{split}"
    return RESULTS / f"{name}-quick.json" if quick else RESULTS / f"{name}.json"
