"""How right the endpoint's answers are: words, times, speakers, beside the rules people use today.

The one decision: the reserved voices are for the figures that are published and nothing is tuned on
them; what is looked into is `--development`, the same conditions with other voices and seeds. Run
as `python -m benchmarks.accuracy [--development] [--quick]`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy import metrics
from benchmarks.accuracy.answers import OURS, Heard, ask, attributions
from benchmarks.accuracy.diagnosis import incidents
from benchmarks.accuracy.scenes import Split, Take, load, scene_files
from benchmarks.report import PAGES, RESULTS, save, settings
from config import ModelSettings
from demo.build.dialogue import Scene
from handler import EndpointHandler

PACKAGES = (
    "torch",
    "pyannote.audio",
    "jiwer",
    "meeteval",
    "pyannote.metrics",
    "silero-vad",
    "numpy",
)
Judged = dict[str, Any]


def run(split: Split, quick: bool) -> Path:
    """Ask the endpoint about every scene and judge the answers; returns the JSON file, written
    after every scene.

    The answers are kept beside it, for who wants to try another rule on them.
    """
    name = "accuracy" + ("" if split == "reserved" else f"-{split}") + ("-quick" if quick else "")
    path, files = RESULTS / f"{name}.json", scene_files(split, quick, RESULTS / "scenes")
    endpoint = EndpointHandler(settings=ModelSettings.for_demo())
    content: dict[str, Any] = {
        "split": split,
        "quick": quick,
        "settings": settings(PACKAGES),
        "scenes": [],
    }
    for take, file in files.items():
        started = time.perf_counter()
        heard = ask(endpoint, file)
        seconds = time.perf_counter() - started
        judged = judge(take, load(file), heard) | {"wall": round(seconds, 2)}
        save(RESULTS / "answers" / f"{take.name}.json", asdict(heard))
        content["scenes"].append(judged)
        save(path, content)
        print(f"{take.name}: {_told(judged)}", flush=True)
    return path


def judge(take: Take, scene: Scene, heard: Heard) -> Judged:
    """Everything that is counted about one answer, as JSON."""
    steps = metrics.align(scene.words, heard.words)
    pairs = metrics.recognised(scene.words, heard.words, steps)
    on_found, on_true = attributions(heard), attributions(heard, scene.turns)

    def rules(given: dict[str, Any]) -> Judged:
        return {
            rule: {
                "speakers": asdict(metrics.speaker_errors(scene.words, words, pairs)),
                "cp": asdict(metrics.cp_errors(scene.words, words)),
            }
            for rule, words in given.items()
        }

    return {
        "condition": take.condition,
        "seconds": take.seconds,
        "name": take.name,
        "duration": scene.duration,
        "recognition": asdict(metrics.recognition_errors(scene.words, heard.words)),
        "talked over": sum(
            metrics.talked_over(word.start, word.end, scene.turns) for word in scene.words
        ),
        "in silence": metrics.words_in_silence(scene.words, heard.words),
        "diarization": asdict(metrics.diarization_errors(scene.turns, heard.turns, scene.duration)),
        "speakers": [len({turn.speaker for turn in turns}) for turns in (scene.turns, heard.turns)],
        "late": metrics.boundary_errors(scene.words, heard.words, pairs).round(3).tolist(),
        "found turns": rules(on_found),
        "true turns": rules(on_true),
        "incidents": [
            asdict(each)
            for each in incidents(scene, on_found[OURS], steps, heard.turns, heard.seams)
        ],
    }


def _told(judged: Judged) -> str:
    words, turns = (metrics.Count(**judged[part]) for part in ("recognition", "diarization"))
    given = {
        rule: metrics.Count(**each["speakers"]).rate for rule, each in judged["found turns"].items()
    }
    causes = Counter[str]()
    for each in judged["incidents"]:
        causes[each["cause"]] += each["errors"]
    return (
        f"{judged['wall']:.1f} s, WER {words.rate:.1%} of {words.total}, DER {turns.rate:.1%}, speakers "
        f"{judged['speakers']}, in silence {judged['in silence']}, wrong speaker "
        + ", ".join(f"{rule} {rate:.1%}" for rule, rate in given.items())
        + f"; {dict(causes)}"
    )


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--development", action="store_true", help="the development voices: to look at and tune on"
    )
    parser.add_argument("--quick", action="store_true", help="a few scenes: does it run at all")
    chosen = parser.parse_args()
    path = run("development" if chosen.development else "reserved", chosen.quick)
    published = not (chosen.development or chosen.quick)
    print(accuracy_page.write(path, PAGES if published else RESULTS))


if __name__ == "__main__":
    _main()
