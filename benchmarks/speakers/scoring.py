"""Counts seconds that are named rightly, wrongly, or though a stranger speaks them.

Naming is judged apart from diarization. How many seconds of each person lie in turns of each
speaker is counted once; a naming only says which speakers have which name. Seconds in which one
person speaks alone count, since in others two names can be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyannote.core import Segment, Timeline
from pyannote.metrics.identification import IdentificationErrorRate

from benchmarks.speakers.scenes import NAMES, SPEAKERS, Dialogue
from tests.support.dialogue import annotation
from whosaid.diarization.diarizer import Diarization, Vector
from whosaid.diarization.known_speakers import (
    MIN_SECONDS_ALONE,
    Similarities,
    assign,
    seconds_alone,
    similarities,
    spans_alone,
    unit,
)
from whosaid.transcript import SpeakerTurn

COLLAR = 0.25  # seconds around each true boundary that errors do not count in, half on each side
FRAME = 0.01  # seconds
UNKNOWN = "unknown"

Names = Mapping[str, str]  # from a speaker's label


@dataclass
class Tally:
    """Seconds; and speakers found of whom most is a stranger's, by whether they were named."""

    known: float = 0.0
    right: float = 0.0
    wrong: float = 0.0
    strangers: float = 0.0
    strangers_named: float = 0.0
    stranger_speakers: int = 0
    stranger_speakers_named: int = 0

    def rates(self) -> dict[str, float]:
        """Shares, by the names of the page's columns."""
        return {
            "right": self.right / max(self.known, FRAME),
            "wrong": self.wrong / max(self.known, FRAME),
            "strangers": self.strangers_named / max(self.strangers, FRAME),
            "stranger speakers": self.stranger_speakers_named / max(self.stranger_speakers, 1),
        }


@dataclass
class Case:
    """A dialogue as it was diarized, and which voices are known: some speak, some do not."""

    dialogue: Dialogue
    found: Diarization
    names: tuple[str, ...]
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    labels: Sequence[str] = ()

    def similar(self, clips: Mapping[str, Vector | None]) -> Similarities:
        """Cosines of speakers and names, as `name_speakers` compares them."""
        speakers = [unit(self.found.voices[label]) for label in self.labels]
        return similarities(speakers, [clips[name] for name in self.names])

    def by_threshold(self, similar: Similarities, threshold: float) -> Names:
        """The names that are given by this project's rule."""
        pairs = assign(similar, threshold)
        return {self.labels[row]: self.names[column] for row, column in pairs.items()}

    def nearest(self, similar: Similarities) -> Names:
        """The names that are given by speaches' rule: the nearest, whoever it is."""
        best = similar.argmax(axis=1).tolist() if similar.size else []
        return {label: self.names[column] for label, column in zip(self.labels, best, strict=True)}

    def tally(self, names: Names, tally: Tally) -> None:
        """Add the seconds of this case under a naming."""
        for (true, label), seconds in self.seconds.items():
            named = names.get(label)
            if true in self.names:
                tally.known += seconds
                tally.right += seconds * (named == true)
                tally.wrong += seconds * (named is not None and named != true)
            else:
                tally.strangers += seconds
                tally.strangers_named += seconds * (named is not None)
        for label in self.labels:
            own = {true: each for (true, other), each in self.seconds.items() if other == label}
            if own and max(own, key=lambda true: own[true]) not in self.names:
                tally.stranger_speakers += 1
                tally.stranger_speakers_named += label in names

    def identification(self, names: Names, metric: IdentificationErrorRate) -> None:
        """Add this case to pyannote's rate: strangers and speakers without a name are one."""
        known = {name: name for name in self.names}
        turns = self.dialogue.scene.turns
        metric(
            annotation(_renamed(turns, known)),
            annotation(_renamed(self.found.turns, names)),
            uem=Timeline([Segment(0, self.dialogue.scene.duration)]),
        )


def cases(dialogue: Dialogue, found: Diarization) -> list[Case]:
    """The dialogue with none, some and all of its people known, each time so many names."""
    return [
        case_of(dialogue, found, dialogue.cast[:present] + dialogue.strangers[: NAMES - present])
        for present in range(SPEAKERS + 1)
    ]


def case_of(dialogue: Dialogue, found: Diarization, names: tuple[str, ...]) -> Case:
    """The dialogue with voices known by these names."""
    alone = seconds_alone(found.turns)
    labels = [
        label
        for label in sorted(alone, key=lambda each: -alone[each])
        if alone[label] >= MIN_SECONDS_ALONE and unit(found.voices.get(label, ())) is not None
    ]
    return Case(dialogue, found, names, _confusion(dialogue, found), labels)


def identification_metric() -> IdentificationErrorRate:
    """Rates of pyannote.metrics, overlapped speech scored."""
    return IdentificationErrorRate(collar=COLLAR, skip_overlap=False)


def _confusion(dialogue: Dialogue, found: Diarization) -> dict[tuple[str, str], float]:
    """Seconds of each person, alone, in the exclusive turns of each speaker, or in none: ""."""
    frames = np.full(round(dialogue.scene.duration / FRAME), "", dtype=object)
    for turn in found.exclusive:
        frames[round(turn.start / FRAME) : round(turn.end / FRAME)] = turn.speaker
    seconds: dict[tuple[str, str], float] = {}
    for true, spans in spans_alone(dialogue.scene.turns).items():
        for start, end in spans:
            labels, counts = np.unique(
                frames[round(start / FRAME) : round(end / FRAME)].astype(str), return_counts=True
            )
            for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
                seconds[true, label] = seconds.get((true, label), 0.0) + count * FRAME
    return seconds


def _renamed(turns: Sequence[SpeakerTurn], names: Names) -> list[SpeakerTurn]:
    return [SpeakerTurn(names.get(turn.speaker, UNKNOWN), turn.start, turn.end) for turn in turns]
