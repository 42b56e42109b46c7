"""Whether known speakers get their names and strangers none: `scripts/bench speakers`.

Open set: of each dialogue none, some or all people are known, and names of people who are silent
are given too. Everything is diarized and embedded once; thresholds are tried on the similarities.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from pyannote.core import Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate

from benchmarks.pages import write_page
from benchmarks.report import RESULTS, read, save, settings
from benchmarks.speakers.clips import embed_clips
from benchmarks.speakers.figures import chart, figures
from benchmarks.speakers.scenes import (
    CHANNELS,
    Dialogue,
    draw_dialogues,
    draw_people,
    draw_reference,
    tell_apart,
)
from benchmarks.speakers.scoring import COLLAR, Case, Tally, cases, identification_metric
from config import DEMO_MODELS
from tests.support.dialogue import annotation
from tests.support.speech import Voice
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Diarization, Diarizer, SpeakerHints, Vector

PACKAGES = ("torch", "pyannote.audio", "pyannote.metrics", "numpy")
LENGTHS = (1.0, 3.0, 10.0)  # seconds of speech in a clip
THRESHOLDS = [round(0.02 * step, 2) for step in range(51)]
DIALOGUES, DRAWS = 24, 2
# Channels of dialogue and clip.
PAIRS = [("clean", "clean"), ("noisy", "noisy"), ("telephone", "telephone")]
PAIRS += [("noisy", "clean"), ("telephone", "clean")]
Results = dict[str, Any]


def main(options: Namespace) -> None:
    """Measure, and write the page or, if not asked to, a copy of it beside the results."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="pyannote")
    path = RESULTS / f"speakers{'-quick' if options.quick else ''}.json"
    if not options.render:
        count, draws = (2, 1) if options.quick else (DIALOGUES, DRAWS)
        save(path, run(count, draws, options.seed))
    results = read(path)
    copy = None if options.publish else path.with_suffix(".md")
    write_page("speakers", results, figures(results), {"known-speakers": chart(results)}, copy)


def run(count: int, draws: int, seed: int) -> Results:
    """Diarize `count` dialogues in every channel and name their speakers by clips."""
    diarizer = load_diarizer(str(DEMO_MODELS / "diarization"), None, None, torch.device("cpu"))
    threshold = diarizer.capabilities.same_voice
    assert threshold is not None  # it is the demo's own
    people, taken = tell_apart(draw_people(seed), diarizer, seed)
    dialogues = draw_dialogues(people, count, seed)
    clips = {
        (channel, seconds, draw): dict(_clips(diarizer, people, channel, seconds, [seed, 3, draw]))
        for channel in CHANNELS
        for seconds in LENGTHS
        for draw in range(draws)
    }
    rows, errors = [], {}
    for channel in CHANNELS:
        found = [_diarize(diarizer, dialogue, channel, seed) for dialogue in dialogues]
        errors[channel] = _diarization_error(dialogues, found)
        made = [case for pair in zip(dialogues, found, strict=True) for case in cases(*pair)]
        for of_clips in (clip for dialogue, clip in PAIRS if dialogue == channel):
            for seconds in LENGTHS:
                drawn = [clips[of_clips, seconds, draw] for draw in range(draws)]
                row = {"dialogue": channel, "clips": of_clips, "seconds": seconds}
                rows.append(row | _score(made, drawn, threshold) | {"refused": _refused(drawn)})
                print(f"{channel}, clips {of_clips}, {seconds:g} s", flush=True)
    return {
        "settings": settings(PACKAGES)
        | {"dialogues": count, "clips of each person": draws, "seed": seed},
        "people": list(people),
        "taken for another": taken,
        "diarization error": errors,
        "threshold": threshold,
        "rows": rows,
    }


def _clips(
    diarizer: Diarizer,
    people: Mapping[str, Voice],
    channel: str,
    seconds: float,
    draw: list[int],
) -> Iterator[tuple[str, Vector | None]]:
    """Every person's clip, embedded as the endpoint does; None for one that is refused."""
    references = {}
    for place, (name, voice) in enumerate(people.items()):
        seed = [*draw[:2], list(CHANNELS).index(channel), round(seconds), *draw[2:], place]
        references[name] = draw_reference(voice, seconds, CHANNELS[channel], seed)
    return embed_clips(diarizer, references.items())


def _diarize(diarizer: Diarizer, dialogue: Dialogue, channel: str, seed: int) -> Diarization:
    samples = CHANNELS[channel](dialogue.scene.samples, np.random.default_rng([seed, 4]))
    return diarizer.diarize(samples, SpeakerHints())


def _diarization_error(dialogues: list[Dialogue], found: list[Diarization]) -> float:
    metric = DiarizationErrorRate(collar=COLLAR, skip_overlap=False)
    for dialogue, each in zip(dialogues, found, strict=True):
        scene = dialogue.scene
        uem = Timeline([Segment(0, scene.duration)])
        metric(annotation(scene.turns), annotation(each.turns), uem=uem)
    return float(abs(metric))


def _score(made: list[Case], drawn: list[dict[str, Vector | None]], default: float) -> Results:
    """Rates over thresholds, and of the nearest name; identification errors of that and at the
    default, by the last clips drawn.
    """
    tallies = {threshold: Tally() for threshold in THRESHOLDS}
    nearest = Tally()
    errors = {"ours": identification_metric(), "nearest": identification_metric()}
    for case in made:
        for clips in drawn:
            similar = case.similar(clips)
            for threshold, tally in tallies.items():
                case.tally(case.by_threshold(similar, threshold), tally)
            case.tally(case.nearest(similar), nearest)
        case.identification(case.by_threshold(similar, default), errors["ours"])
        case.identification(case.nearest(similar), errors["nearest"])
    return {
        "by threshold": {f"{key:.2f}": tally.rates() for key, tally in tallies.items()},
        "nearest": nearest.rates() | {"error": float(abs(errors["nearest"]))},
        "error": float(abs(errors["ours"])),
    }


def _refused(drawn: list[dict[str, Vector | None]]) -> int:
    return sum(vector is None for clips in drawn for vector in clips.values())
