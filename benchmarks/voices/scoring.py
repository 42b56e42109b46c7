"""Counts errors of turns and of words' speakers in one recording, with the field's packages.

A recognised word is scored if exactly one person speaks during it; that person is its true speaker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from pyannote.core import Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate
from scipy.optimize import linear_sum_assignment

from benchmarks.counts import Count
from benchmarks.voices.answers import OURS, WHISPERX, Answer, whisperx_rule
from benchmarks.voices.conversations import Conversation
from tests.support.dialogue import annotation
from whosaid.diarization.known_speakers import spans_alone
from whosaid.transcript import SpeakerTurn, Word

# Kinds of errors, and total speech, in which overlapped speech counts for each voice.
PARTS = {
    "missed": "missed detection",
    "false_alarm": "false alarm",
    "confusion": "confusion",
    "total": "total",
}


def diarization_parts(
    reference: Sequence[SpeakerTurn],
    hypothesis: Sequence[SpeakerTurn],
    duration: float,
) -> dict[str, float]:
    """Return the seconds of PARTS in a recording of `duration` seconds."""
    true, given = annotation(reference), annotation(hypothesis)
    whole = Timeline([Segment(0, duration)])
    found = DiarizationErrorRate()(true, given, uem=whole, detailed=True)
    return {part: float(found[name]) for part, name in PARTS.items()}


def count_voices(turns: Sequence[SpeakerTurn]) -> int:
    """Return the number of speakers who at some time speak alone.

    If clustering finds fewer voices than speak at once, pyannote adds a speaker whom nobody is, who
    only speaks while others do.
    """
    return len(spans_alone(turns))


def errors_of(parts: Mapping[str, float]) -> Count:
    """Return all errors out of the speech, for the diarization error rate."""
    return Count(parts["missed"] + parts["false_alarm"] + parts["confusion"], parts["total"])


def score_words(conversation: Conversation, answer: Answer) -> dict[str, Any]:
    """Return the errors of each rule on the same words."""
    alone = spoken_alone(answer.words, conversation.turns)
    by_rule = {OURS: answer.words, WHISPERX: whisperx_rule(answer.words, answer.turns)}
    return {
        rule: asdict(speaker_errors([(true, words[at].speaker) for at, true in alone.items()]))
        for rule, words in by_rule.items()
    }


def spoken_alone(words: Sequence[Word], turns: Sequence[SpeakerTurn]) -> dict[int, str]:
    """Return the speaker of each word (by its index) during which exactly one speaks."""
    speaking = {
        place: {turn.speaker for turn in turns if turn.start < word.end and word.start < turn.end}
        for place, word in enumerate(words)
    }
    return {place: next(iter(each)) for place, each in speaking.items() if len(each) == 1}


def speaker_errors(pairs: Sequence[tuple[str, str | None]]) -> Count:
    """Count words with the wrong speaker or none; `pairs` are each word's true and found speaker.

    Found speakers are mapped one-to-one to true ones so that most words are right.
    """
    counts = Counter(pairs)
    people = sorted({true for true, _ in pairs})
    found = sorted({label for _, label in pairs if label is not None})
    table = np.array([[counts[person, label] for label in found] for person in people])
    table = table.reshape(len(people), len(found))
    right = table[linear_sum_assignment(table, maximize=True)].sum()
    return Count(len(pairs) - int(right), len(pairs))
