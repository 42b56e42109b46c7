"""Errors of turns and of the speakers of words in one recording, as JSON.

A recognised word's true speaker is whoever speaks during it, if exactly one does; other words are
not scored. If each speaker's words are known, cpWER is scored too, after Whisper's own normaliser.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.real.scoring import normalizer
from benchmarks.voices import metrics
from benchmarks.voices.answers import Answer, attribute_by_rules
from benchmarks.voices.conversations import Conversation
from whosaid.transcript import SpeakerTurn, Word

# The collar of "lenient" scores: 0.25 s on either side, overlapped speech left out, as in the
# field's older papers.
LENIENT = 0.5
Results = dict[str, Any]


def score_turns(
    conversation: Conversation, found: Sequence[SpeakerTurn], duration: float
) -> Results:
    """Return the errors of `found` turns, and how many speakers they have."""
    true = conversation.turns
    lenient = metrics.diarization_parts(true, found, duration, LENIENT, skip_overlap=True)
    return {
        "strict": asdict(metrics.diarization_parts(true, found, duration)),
        "lenient": asdict(lenient),
        "speakers": len({turn.speaker for turn in found}),
    }


def score_words(conversation: Conversation, answer: Answer) -> Results:
    """Return the errors of each rule on the same words, on the turns found and on the true ones."""
    alone = spoken_alone(answer.words, conversation.turns)
    by_turns = {
        "found turns": attribute_by_rules(answer),
        "true turns": attribute_by_rules(answer, conversation.turns),
    }
    return {
        turns: {rule: _errors(conversation, words, alone) for rule, words in rules.items()}
        for turns, rules in by_turns.items()
    }


def spoken_alone(words: Sequence[Word], turns: Sequence[SpeakerTurn]) -> dict[int, str]:
    """Return the speaker of each word (by its index) during which exactly one speaks."""
    speaking = {
        place: {turn.speaker for turn in turns if turn.start < word.end and word.start < turn.end}
        for place, word in enumerate(words)
    }
    return {place: next(iter(each)) for place, each in speaking.items() if len(each) == 1}


def _errors(conversation: Conversation, words: Sequence[Word], alone: Mapping[int, str]) -> Results:
    pairs = [(true, words[place].speaker) for place, true in alone.items()]
    counted: Results = {"speakers": asdict(metrics.speaker_errors(pairs))}
    if conversation.words:
        normalize = normalizer(conversation.recording.language)
        found: dict[str | None, str] = defaultdict(str)
        for word in words:
            found[word.speaker] += word.text
        expected = {speaker: normalize(text) for speaker, text in conversation.words.items()}
        given = {speaker: normalize(text) for speaker, text in found.items()}
        counted["cp"] = asdict(metrics.cp_word_errors(expected, given))
    return counted
