"""What is counted about one recording, as JSON: errors of turns, and of the speakers of words.

Where only turns are known, a recognised word's true speaker is whoever speaks during it, if exactly
one does; other words are not scored. Where each speaker's words are known, cpWER tells more: both
texts go through Whisper's own normaliser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.accuracy import metrics
from benchmarks.accuracy.answers import Answer, attribute_by_rules
from benchmarks.real.scoring import normalizer
from benchmarks.voices.conversations import Conversation
from whosaid.transcript import SpeakerTurn, Word

# The collar of "lenient" scores: 0.25 s on either side, overlapped speech left out, as the field's
# older papers have it.
LENIENT = 0.5
Results = dict[str, Any]


def score_turns(
    conversation: Conversation, found: Sequence[SpeakerTurn], duration: float
) -> Results:
    """Errors of `found` turns, and how many speakers they have."""
    true = conversation.turns
    lenient = metrics.diarization_parts(true, found, duration, LENIENT, skip_overlap=True)
    return {
        "strict": asdict(metrics.diarization_parts(true, found, duration)),
        "lenient": asdict(lenient),
        "jaccard": asdict(metrics.jaccard_errors(true, found, duration)),
        "speakers": len({turn.speaker for turn in found}),
    }


def score_words(conversation: Conversation, answer: Answer) -> Results:
    """Errors of each rule on the same words, on the turns found and on the true ones; and of the
    words alone, where it is known what was said and is not too much.
    """
    places = spoken_alone(answer.words, conversation.turns)
    by_turns = {
        "found turns": attribute_by_rules(answer),
        "true turns": attribute_by_rules(answer, conversation.turns),
    }
    scored: Results = {
        turns: {rule: _errors(conversation, words, places) for rule, words in rules.items()}
        for turns, rules in by_turns.items()
    }
    language = conversation.recording.language
    text = {"": "".join(word.text for word in answer.words)}
    expected, found = (list(_tokens(each, language)) for each in (conversation.words, text))
    alone = metrics.fewest_word_errors(expected, found) if expected else None
    return scored if alone is None else scored | {"text alone": asdict(alone)}


def spoken_alone(words: Sequence[Word], turns: Sequence[SpeakerTurn]) -> dict[int, str]:
    """The speaker of each word (by its place) during which exactly one speaks."""
    speaking = {
        place: {turn.speaker for turn in turns if turn.start < word.end and word.start < turn.end}
        for place, word in enumerate(words)
    }
    return {place: next(iter(each)) for place, each in speaking.items() if len(each) == 1}


def _errors(conversation: Conversation, words: Sequence[Word], alone: Mapping[int, str]) -> Results:
    true = [replace(word, speaker=alone.get(place)) for place, word in enumerate(words)]
    counted: Results = {
        "speakers": asdict(metrics.speaker_errors(true, words, [(each, each) for each in alone]))
    }
    if conversation.words:
        language = conversation.recording.language
        spoken = {word.speaker: "" for word in words if word.speaker is not None}
        for word in words:
            if word.speaker is not None:
                spoken[word.speaker] += word.text
        expected = list(_tokens(conversation.words, language))
        counted["cp"] = asdict(metrics.cp_word_errors(expected, list(_tokens(spoken, language))))
    return counted


def _tokens(texts: Mapping[str, str], language: str | None) -> Iterator[Word]:
    """The normalised words of each speaker, in order; they have no time."""
    normalize = normalizer(language)
    for speaker, text in texts.items():
        for token in normalize(text).split():
            yield Word(token, math.nan, math.nan, speaker)
