"""Errors of speaker turns and of the speakers of words, by the field's own packages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from meeteval.wer import cp_word_error_rate
from pyannote.core import Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate
from scipy.optimize import linear_sum_assignment

from benchmarks.counts import Count
from tests.support.dialogue import annotation
from whosaid.transcript import SpeakerTurn


@dataclass(frozen=True)
class DiarizationParts:
    """Seconds of each kind of error, and of speech; overlapped speech counts for each voice."""

    missed: float
    false_alarm: float
    confusion: float
    total: float

    @property
    def count(self) -> Count:
        """Return all errors out of the speech, for the diarization error rate."""
        return Count(self.missed + self.false_alarm + self.confusion, self.total)


def diarization_parts(
    reference: Sequence[SpeakerTurn],
    hypothesis: Sequence[SpeakerTurn],
    duration: float,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> DiarizationParts:
    """Return the parts of the diarization error rate of a recording of `duration` seconds.

    `collar` seconds around each true boundary are not scored, half of them on each side, as in
    pyannote.metrics. With `skip_overlap` overlapped speech is not scored.
    """
    metric = DiarizationErrorRate(collar=collar, skip_overlap=skip_overlap)
    uem = Timeline([Segment(0, duration)])
    parts = metric(annotation(reference), annotation(hypothesis), uem=uem, detailed=True)
    names = ("missed detection", "false alarm", "confusion", "total")
    return DiarizationParts(*(float(parts[name]) for name in names))


def cp_word_errors(expected: Mapping[str, str], found: Mapping[str | None, str]) -> Count:
    """Return the word errors of each speaker's text under the best mapping (meeteval's cpWER).

    A word without a speaker (None) counts as missing.
    """
    words = sum(len(text.split()) for text in expected.values())
    given = {speaker: text for speaker, text in found.items() if speaker is not None}
    if not words or not given:
        return Count(sum(len(text.split()) for text in given.values()) or words, words)
    errors = cp_word_error_rate(dict(expected), given, reference_sort=False, hypothesis_sort=False)
    return Count(errors.errors, errors.length)


def speaker_errors(pairs: Sequence[tuple[str, str | None]]) -> Count:
    """Count words with the wrong speaker or none; `pairs` are each word's true and found speaker.

    Found speakers are mapped one-to-one to true ones so that most words are right.
    """
    mapping = _best_mapping(pairs)
    wrong = sum(found is None or mapping.get(found) != true for true, found in pairs)
    return Count(wrong, len(pairs))


def _best_mapping(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for true, found in pairs:
        if found is not None:
            counts[found, true] += 1
    rows, columns = sorted({pair[0] for pair in counts}), sorted({pair[1] for pair in counts})
    table = np.array([[counts[row, column] for column in columns] for row in rows])
    table = table.reshape(len(rows), len(columns))
    assigned = zip(*linear_sum_assignment(table, maximize=True), strict=True)
    return {rows[row]: columns[column] for row, column in assigned}
