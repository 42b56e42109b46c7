"""What happened where an answer is wrong, in a form that can be read without the audio.

Errors close in time are one incident, and an incident has one cause, by what the reference says
about that moment: nothing spoken (silence), two voices at once (overlap), the edge of a turn
(boundary), one voice taken for another (diarization), the boundary of two windows (window), or
simply other words (recognition).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.metrics import Step, best_mapping, is_overlapped, normalize
from tests.support.dialogue import Scene
from whosaid.transcript import SpeakerTurn, Word

# Errors no further apart than this, in seconds, are one incident; and how much around it is told.
APART, AROUND = 1.0, 0.7
# Nearer than this, in seconds, a change of speaker or the boundary of windows may be the cause.
NEAR_TURN, NEAR_WINDOW = 0.4, 0.8
# From this share of wrong turns on it is not their edge that is wrong but their speaker.
CONFUSED = 0.3
FRAME = 0.01  # seconds


@dataclass(frozen=True)
class Error:
    """One wrong word; `kind` is missing, extra, text or speaker."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Incident:
    """Errors that belong together: `errors` of them between `start` and `end` seconds.

    `expected` and `found` are what was said and recognised around it. `overlap` is whether most of
    its words are overlapped. `turn_distance` and `window_distance` are seconds to the nearest end
    of a true turn and to the nearest boundary of two windows, the scene's length where there is
    none. `wrong_turns` is the share of time in which other speakers were found than spoke.
    """

    cause: str
    errors: int
    start: float
    end: float
    expected: str
    found: str
    overlap: bool
    turn_distance: float
    window_distance: float
    wrong_turns: float


@dataclass(frozen=True)
class Diagnosis:
    """A scene beside what was recognised in it.

    `words` have the speakers they were given, `steps` align them with the scene's, `turns` are
    those found, `window_boundaries` in seconds.
    """

    scene: Scene
    words: Sequence[Word]
    steps: Sequence[Step]
    turns: Sequence[SpeakerTurn]
    window_boundaries: Sequence[float]

    def incidents(self) -> list[Incident]:
        """All incidents in order of time."""
        pairs = [(a, b) for a, b in self.steps if a is not None and b is not None]
        mapping = best_mapping(
            (self.scene.words[a].speaker, self.words[b].speaker) for a, b in pairs
        )
        groups: list[list[Error]] = []
        for error in sorted(self._errors(mapping), key=lambda error: error.start):
            if groups and error.start - max(each.end for each in groups[-1]) <= APART:
                groups[-1].append(error)
            else:
                groups.append([error])
        return [self._incident(group, mapping) for group in groups]

    def _errors(self, mapping: dict[str, str]) -> list[Error]:
        errors = []
        for here, there in self.steps:
            true = None if here is None else self.scene.words[here]
            found = None if there is None else self.words[there]
            kind = _kind(true, found, mapping)
            if kind and (word := true or found):
                errors.append(Error(kind, word.start, word.end))
        return errors

    def _incident(self, group: Sequence[Error], mapping: dict[str, str]) -> Incident:
        start, end = group[0].start, max(error.end for error in group)
        scene = self.scene
        overlapped = [is_overlapped(error.start, error.end, scene.turns) for error in group]
        overlap = 2 * sum(overlapped) >= len(group)
        edges = [edge for turn in scene.turns for edge in (turn.start, turn.end)]
        turn_distance = _nearest(edges, group, scene.duration)
        window_distance = _nearest(self.window_boundaries, group, scene.duration)
        wrong = _share_wrong(scene.turns, self.turns, mapping, start - AROUND, end + AROUND)
        expected = [word for word in scene.words if _is_around(word, start, end)]
        found = [word for word in self.words if _is_around(word, start, end)]
        cause = "silence"
        if expected:
            cause = _cause(group, overlap, turn_distance, window_distance, wrong)
        return Incident(
            cause=cause,
            errors=len(group),
            start=start,
            end=end,
            expected=_write(expected, {}),
            found=_write(found, mapping),
            overlap=overlap,
            turn_distance=turn_distance,
            window_distance=window_distance,
            wrong_turns=wrong,
        )


def _kind(true: Word | None, found: Word | None, mapping: dict[str, str]) -> str | None:
    """What is wrong with an aligned pair; None for nothing."""
    if true is None:
        return "extra"
    if found is None:
        return "missing"
    if normalize(true.text) != normalize(found.text):
        return "text"
    return None if mapping.get(found.speaker or "") == true.speaker else "speaker"


def _cause(
    group: Sequence[Error],
    overlap: bool,
    turn_distance: float,
    window_distance: float,
    wrong: float,
) -> str:
    """What most of the words have: another voice at the same time, a wrong speaker, or a wrong
    text.
    """
    if overlap:
        return "overlap"
    if 2 * sum(error.kind == "speaker" for error in group) >= len(group):
        far = turn_distance > NEAR_TURN
        return "diarization" if wrong >= CONFUSED or far else "boundary"
    return "window" if window_distance <= NEAR_WINDOW else "recognition"


def _nearest(times: Sequence[float], group: Sequence[Error], otherwise: float) -> float:
    """Seconds from the nearest of some times to the nearest wrong word."""
    distances = [
        max(error.start - time, time - error.end, 0.0) for time in times for error in group
    ]
    return min(distances, default=otherwise)


def _is_around(word: Word, start: float, end: float) -> bool:
    return word.end > start - AROUND and word.start < end + AROUND


def _write(words: Sequence[Word], mapping: dict[str, str]) -> str:
    """`0: good morning 1: hello`: the words with a speaker's number before each change."""
    parts, last = [], ""
    for word in words:
        speaker = word.speaker or "?"
        speaker = mapping.get(speaker, speaker)
        if speaker != last:
            parts.append(f"{speaker.removeprefix('SPEAKER_0')}:")
        parts.append(normalize(word.text))
        last = speaker
    return " ".join(parts)


def _share_wrong(
    reference: Sequence[SpeakerTurn],
    found: Sequence[SpeakerTurn],
    mapping: dict[str, str],
    start: float,
    end: float,
) -> float:
    """The share of time in which other speakers were found than spoke."""
    renamed = [SpeakerTurn(mapping.get(turn.speaker, "?"), turn.start, turn.end) for turn in found]
    times = np.arange(start, end, FRAME)
    return float(np.mean([_active(reference, time) != _active(renamed, time) for time in times]))


def _active(turns: Sequence[SpeakerTurn], time: float) -> set[str]:
    return {turn.speaker for turn in turns if turn.start <= time < turn.end}
