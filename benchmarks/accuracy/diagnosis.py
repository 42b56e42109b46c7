"""What happened where an answer is wrong, told so that nobody has to listen.

The one decision: errors close in time are one incident, and an incident gets one cause by what the
truth says about that moment: nothing said (silence), two voices at once (overlap), a turn's edge
(boundary), a voice taken for another (diarization), a seam of windows (seam), or plain mishearing
(recognition).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.metrics import Step, best_mapping, plain, talked_over
from demo.build.dialogue import Scene
from transcript import SpeakerTurn, Word

# Errors that lie no further apart than this, in seconds, are one incident; and how much around it
# is told.
APART, AROUND = 1.0, 0.7
# Nearer than this, in seconds, a change of speaker or a seam of windows may be the cause.
AT_BOUNDARY, AT_SEAM = 0.4, 0.8
# From this share of wrong turns on it is not their edge that is wrong but who they are.
CONFUSED = 0.3
FRAME = 0.01  # seconds


@dataclass(frozen=True)
class Error:
    """One wrong word; `kind` is missed, extra, misheard or speaker."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Incident:
    """Errors that belong together: `errors` of them between `start` and `end` seconds, and what is
    known about it.

    `overlap` tells that most of its words are talked over; `boundary` and `seam` are seconds to the
    nearest end of a true turn and to the nearest seam of two windows, the scene's length where
    there is none; `turns_wrong` is the share of time in which the turns found are not the true
    ones.
    """

    cause: str
    errors: int
    start: float
    end: float
    said: str
    heard: str
    overlap: bool
    boundary: float
    seam: float
    turns_wrong: float


def incidents(
    scene: Scene,
    given: Sequence[Word],
    steps: Sequence[Step],
    turns: Sequence[SpeakerTurn],
    seams: Sequence[float],
) -> list[Incident]:
    """All incidents of a scene in order; `given` are the words heard with the speakers they were
    given to.
    """
    mapping = best_mapping(
        (scene.words[a].speaker, given[b].speaker)
        for a, b in steps
        if a is not None and b is not None
    )
    groups: list[list[Error]] = []
    for error in sorted(_errors(scene, given, steps, mapping), key=lambda error: error.start):
        if groups and error.start - max(each.end for each in groups[-1]) <= APART:
            groups[-1].append(error)
        else:
            groups.append([error])
    return [_incident(group, scene, given, mapping, turns, seams) for group in groups]


def _errors(
    scene: Scene, given: Sequence[Word], steps: Sequence[Step], mapping: dict[str, str]
) -> list[Error]:
    found = []
    for here, there in steps:
        said = None if here is None else scene.words[here]
        heard = None if there is None else given[there]
        kind = _kind(said, heard, mapping)
        if kind and (word := said or heard):
            found.append(Error(kind, word.start, word.end))
    return found


def _kind(said: Word | None, heard: Word | None, mapping: dict[str, str]) -> str | None:
    if said is None:
        return "extra"
    if heard is None:
        return "missed"
    if plain(said.text) != plain(heard.text):
        return "misheard"
    return None if mapping.get(heard.speaker or "") == said.speaker else "speaker"


def _incident(
    group: Sequence[Error],
    scene: Scene,
    given: Sequence[Word],
    mapping: dict[str, str],
    turns: Sequence[SpeakerTurn],
    seams: Sequence[float],
) -> Incident:
    start, end = group[0].start, max(error.end for error in group)
    overlap = 2 * sum(talked_over(error.start, error.end, scene.turns) for error in group) >= len(
        group
    )
    boundary = min(
        (_distance(change, group) for change in _changes(scene.turns)), default=scene.duration
    )
    seam = min((_distance(each, group) for each in seams), default=scene.duration)
    wrong = _share_wrong(scene.turns, turns, mapping, start - AROUND, end + AROUND)
    said = [word for word in scene.words if _between(word, start, end)]
    return Incident(
        _cause(group, overlap, boundary, seam, wrong) if said else "silence",
        len(group),
        start,
        end,
        _told(said, {}),
        _told([word for word in given if _between(word, start, end)], mapping),
        overlap,
        boundary,
        seam,
        wrong,
    )


def _cause(
    group: Sequence[Error], overlap: bool, boundary: float, seam: float, wrong: float
) -> str:
    """What most of the words suffer from: another voice at the same time, a wrong speaker, or a
    wrong text.
    """
    if overlap:
        return "overlap"
    if 2 * sum(error.kind == "speaker" for error in group) >= len(group):
        return "diarization" if wrong >= CONFUSED or boundary > AT_BOUNDARY else "boundary"
    return "seam" if seam <= AT_SEAM else "recognition"


def _changes(turns: Sequence[SpeakerTurn]) -> list[float]:
    """Moments at which a turn begins or ends."""
    return [moment for turn in turns for moment in (turn.start, turn.end)]


def _distance(moment: float, group: Sequence[Error]) -> float:
    """Seconds from a moment to the nearest wrong word."""
    return min(max(error.start - moment, moment - error.end, 0.0) for error in group)


def _between(word: Word, start: float, end: float) -> bool:
    return word.end > start - AROUND and word.start < end + AROUND


def _told(words: Sequence[Word], mapping: dict[str, str]) -> str:
    """`0: good morning 1: hello`: the words with a speaker's number before each change."""
    told, last = [], ""
    for word in words:
        speaker = (
            mapping.get(word.speaker or "", word.speaker or "?") if mapping else word.speaker or "?"
        )
        if speaker != last:
            told.append(f"{speaker.removeprefix('SPEAKER_0')}:")
        told.append(plain(word.text))
        last = speaker
    return " ".join(told)


def _share_wrong(
    truth: Sequence[SpeakerTurn],
    found: Sequence[SpeakerTurn],
    mapping: dict[str, str],
    start: float,
    end: float,
) -> float:
    """The share of moments at which other speakers are found than speak."""
    moments = np.arange(start, end, FRAME)
    renamed = [SpeakerTurn(mapping.get(turn.speaker, "?"), turn.start, turn.end) for turn in found]
    wrong = [_speaking(truth, moment) != _speaking(renamed, moment) for moment in moments]
    return float(np.mean(wrong))


def _speaking(turns: Sequence[SpeakerTurn], moment: float) -> set[str]:
    return {turn.speaker for turn in turns if turn.start <= moment < turn.end}
