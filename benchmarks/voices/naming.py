"""Measures names by reference clips: right, wrong, and given to strangers.

Clips are cut from stretches of the conversations in which a person speaks alone for long enough. A
clip is first removed from the recording in which names are assigned. Every request also has
everybody else's clips, so most names belong to people who do not speak.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from benchmarks.voices.conversations import Conversation
from tests.support.speech import Samples
from whosaid.audio.decode import AudioLimits
from whosaid.diarization.diarizer import Diarization, Diarizer, Span, Vector
from whosaid.diarization.known_speakers import (
    FindSpeech,
    KnownVoices,
    VoiceEnroller,
    name_speakers,
    spans_alone,
)
from whosaid.errors import InvalidReference
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn

KINDS = SAME, OTHER, STRANGERS = (
    "a clip of the same recording",
    "a clip of another recording",
    "nobody who speaks is known",
)
SHORTEST, LONGEST = 3.0, 10.0  # seconds of a clip
FRAME = 0.01  # seconds
# Seconds of known people, named rightly and wrongly, and of strangers, named or not.
TALLIED = ("known", "right", "wrong", "strangers", "strangers_named")
# A conversation and somebody in it.
Place = tuple[str, str]
Vectors = Mapping[str, Vector | None]
Diarize = Callable[[Samples], Diarization]


@dataclass(frozen=True)
class Heard:
    """A conversation with its samples, and the span of each person's clip in it."""

    conversation: Conversation
    samples: Samples
    clips: Mapping[str, Span]

    @classmethod
    def of(cls, conversation: Conversation) -> Self:
        clips = longest_alone(conversation.turns)
        return cls(conversation, conversation.recording.samples(), clips)

    def clip(self, person: str) -> Samples:
        start, end = (round(each * SAMPLE_RATE) for each in self.clips[person])
        return self.samples[start:end]

    def without(self, span: Span) -> tuple[Samples, tuple[SpeakerTurn, ...]]:
        """Return samples and turns without one span."""
        start, end = (round(each * SAMPLE_RATE) for each in span)
        samples = np.delete(self.samples, slice(start, end))
        return samples, cut_out(self.conversation.turns, span)


def embed_clips(
    diarizer: Diarizer, find_speech: FindSpeech, heard: Heard
) -> Iterator[tuple[str, Vector | None]]:
    """Yield the vector of each person's clip as the endpoint computes it; None if it is refused."""
    for person in heard.clips:
        enrolment = VoiceEnroller(diarizer, find_speech, AudioLimits(60.0, 10**7), SAMPLE_RATE)
        try:
            enrolment.enrol(person, heard.clip(person))
            yield person, enrolment.known.vectors[person][0]
        except InvalidReference as error:
            print(f"refused, {person}: {error}", flush=True)
            yield person, None


def longest_alone(turns: Sequence[SpeakerTurn]) -> dict[str, Span]:
    """Return each person's longest span alone, cut to LONGEST, unless it is below SHORTEST."""
    found = {}
    for person, spans in spans_alone(turns).items():
        start, end = max(spans, key=lambda span: span[1] - span[0])
        if end - start >= SHORTEST:
            found[person] = start, min(end, start + LONGEST)
    return found


def cut_out(turns: Sequence[SpeakerTurn], span: Span) -> tuple[SpeakerTurn, ...]:
    """Return the turns of a recording from which `span` was cut."""
    start, end = span

    def moved(time: float) -> float:
        return min(time, start) + max(time - end, 0.0)

    parts = (SpeakerTurn(each.speaker, moved(each.start), moved(each.end)) for each in turns)
    return tuple(turn for turn in parts if turn.end > turn.start)


def name_everybody(
    heard: Sequence[Heard], vectors: Mapping[Place, Vector | None], diarize: Diarize, same: float
) -> dict[str, dict[str, float]]:
    """Return the tally of each way to know people, with names given from the cosine `same` on.

    `vectors` are everybody's clips by conversation and person.
    """
    tallies = {kind: dict.fromkeys(TALLIED, 0.0) for kind in KINDS}
    for each in heard:
        for kind, turns, found, clips in _cases(each, vectors, diarize):
            given = {name: [vector] for name, vector in clips.items() if vector is not None}
            named = name_speakers(found, KnownVoices(given), same).known_speakers
            names = {each.label: each.name for each in named if each.matched}
            for (person, label), seconds in seconds_of(turns, found).items():
                tally, known, name = tallies[kind], person in clips, names.get(label)
                tally["known" if known else "strangers"] += seconds
                if name is not None:
                    outcome = "right" if name == person else "wrong"
                    tally[outcome if known else "strangers_named"] += seconds
    return tallies


def seconds_of(
    turns: Sequence[SpeakerTurn], found: Diarization
) -> dict[tuple[str, str | None], float]:
    """Return each person's seconds alone in the exclusive turns of each speaker, or of none."""
    frames = np.full(round(max(each.end for each in turns) / FRAME), None, dtype=object)
    for turn in found.exclusive:
        frames[round(turn.start / FRAME) : round(turn.end / FRAME)] = turn.speaker
    count: Counter[tuple[str, str | None]] = Counter()
    for person, spans in spans_alone(turns).items():
        for start, end in spans:
            labels = frames[round(start / FRAME) : round(end / FRAME)]
            count.update((person, label) for label in labels)
    return {pair: FRAME * number for pair, number in count.items()}


def _cases(
    heard: Heard, vectors: Mapping[Place, Vector | None], diarize: Diarize
) -> Iterator[tuple[str, Sequence[SpeakerTurn], Diarization, Vectors]]:
    """Yield the cases in which people of a conversation are known, each with its clips."""
    turns = heard.conversation.turns
    here = {turn.speaker for turn in turns}
    others: dict[str, Vector | None] = {}
    for (conversation, person), vector in vectors.items():
        if conversation != heard.conversation.name:
            others.setdefault(person, vector)
    absent = {person: vector for person, vector in others.items() if person not in here}
    found = diarize(heard.samples)
    if here & others.keys():
        yield OTHER, turns, found, others
    yield STRANGERS, turns, found, absent
    for person, span in heard.clips.items():
        samples, rest = heard.without(span)
        if any(turn.speaker == person for turn in rest):
            vector = vectors[heard.conversation.name, person]
            yield SAME, rest, diarize(samples), {person: vector, **absent}
