"""Diarization error rate of the demo's pipeline on voices that it was not trained on.

Thresholds are chosen on dialogues of one seed and figures reported on those of another, both of the
development voices. The recorded voice among them (flite's rms) is reported separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import torch
from pyannote.core import Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate

from config import DEMO_MODELS
from tests.support.dialogue import Scene, annotation, draw_dialogues
from tests.support.speech import espeak_speakers, recorded_speakers
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Diarizer, SpeakerHints
from whosaid.transcript import SpeakerTurn

TUNING_SEED, REPORT_SEED = 1, 2
COLLAR = 0.25


def casts() -> dict[str, list[tuple[str, ...]]]:
    """Return the reported groups of casts: pairs and triples of espeak voices, flite's pairs."""
    espeak = espeak_speakers("development")
    recorded = recorded_speakers("development")
    return {
        "two espeak voices": list(combinations(espeak, 2)),
        "three espeak voices": list(combinations(espeak, 3)),
        "one espeak, one recorded": [(name, other) for name in espeak for other in recorded],
    }


def error_rate(diarizer: Diarizer, scenes: Sequence[Scene]) -> tuple[float, float]:
    """Diarization error rate over all scenes, and the share with the right number of speakers.

    Not counted are overlapped speech and COLLAR seconds around each reference boundary
    (pyannote.metrics: half on each side).
    """
    metric = DiarizationErrorRate(collar=COLLAR, skip_overlap=True)
    right = 0
    for scene in scenes:
        found = diarizer.diarize(scene.samples, SpeakerHints()).turns
        metric(
            annotation(scene.turns), annotation(found), uem=Timeline([Segment(0, scene.duration)])
        )
        right += _count_speakers(found) == _count_speakers(scene.turns)
    return abs(metric), right / len(scenes)


def _count_speakers(turns: Sequence[SpeakerTurn]) -> int:
    return len({turn.speaker for turn in turns})


def report(folder: Path) -> None:
    """Print the figures of the model card for the pipeline in `folder`."""
    diarizer = load_diarizer(str(folder), None, None, torch.device("cpu"))
    for name, group in casts().items():
        scenes = draw_dialogues(group, REPORT_SEED)
        rate, right = error_rate(diarizer, scenes)
        print(
            f"{name}: DER {rate:.1%}, right number of speakers in {right:.0%} of {len(scenes)}",
            flush=True,
        )


if __name__ == "__main__":
    report(DEMO_MODELS / "diarization")
