"""Whether people are known by clips of them: rightly named, wrongly named, strangers named.

Clips are cut from the conversations themselves, where a person speaks alone for long enough. A clip
of the recording in which names are looked for is cut out of it first, so that nothing is compared
with itself. Everybody else's clips are given too: most names belong to people who are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.real.engines import decoded
from benchmarks.speakers.clips import encode_clip
from benchmarks.speakers.scenes import Dialogue
from benchmarks.speakers.scoring import Case, Tally, case_of
from benchmarks.voices.conversations import Conversation
from tests.support.dialogue import Scene
from tests.support.speech import Samples
from whosaid.diarization.diarizer import Diarization, Span, Vector
from whosaid.diarization.known_speakers import spans_alone
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn

SAME, OTHER, STRANGERS = (
    "a clip of the same recording",
    "a clip of another recording",
    "nobody who speaks is known",
)
SHORTEST, LONGEST = 3.0, 10.0  # seconds of a clip
THRESHOLDS = [step / 100 for step in range(101)]
Results = dict[str, Any]
# A conversation and somebody in it.
Place = tuple[str, str]
Diarize = Callable[[Samples], Diarization]


@dataclass(frozen=True)
class Heard:
    """A conversation with its samples, and where a clip of each person can be cut from it."""

    conversation: Conversation
    samples: Samples
    clips: Mapping[str, Span]

    @classmethod
    def of(cls, conversation: Conversation) -> Heard:
        """The conversation, decoded."""
        samples = decoded(conversation.recording)
        return cls(conversation, samples, longest_alone(conversation.turns))

    def clip(self, person: str) -> str:
        """A person's clip, in base64."""
        start, end = (round(each * SAMPLE_RATE) for each in self.clips[person])
        return encode_clip(self.samples[start:end])

    def dialogue(self, without: Span | None = None) -> Dialogue:
        """All of it, or all but one span."""
        samples, turns = self.samples, self.conversation.turns
        if without is not None:
            start, end = (round(each * SAMPLE_RATE) for each in without)
            samples, turns = np.delete(samples, slice(start, end)), cut_out(turns, without)
        return Dialogue(Scene(samples, (), turns), tuple({turn.speaker for turn in turns}), ())


def longest_alone(turns: Sequence[SpeakerTurn]) -> dict[str, Span]:
    """Of each person the longest span alone, shortened to LONGEST, if it is not below SHORTEST."""
    found = {}
    for person, spans in spans_alone(turns).items():
        start, end = max(spans, key=lambda span: span[1] - span[0])
        if end - start >= SHORTEST:
            found[person] = start, min(end, start + LONGEST)
    return found


def cut_out(turns: Sequence[SpeakerTurn], span: Span) -> tuple[SpeakerTurn, ...]:
    """The turns of a recording that lacks `span`."""
    start, end = span

    def moved(time: float) -> float:
        return min(time, start) + max(time - end, 0.0)

    parts = (SpeakerTurn(each.speaker, moved(each.start), moved(each.end)) for each in turns)
    return tuple(turn for turn in parts if turn.end > turn.start)


def name_everybody(
    heard: Sequence[Heard], vectors: Mapping[Place, Vector | None], diarize: Diarize
) -> Results:
    """Rates over thresholds of each way to know people, and the cosines of right and wrong pairs.

    `vectors` has the clips of everybody by conversation and person; those of people who are in none
    have any conversation's name.
    """
    tallies = {kind: {threshold: Tally() for threshold in THRESHOLDS} for kind in KINDS}
    cosines: dict[str, dict[str, list[float]]] = {
        kind: {"right": [], "wrong": []} for kind in KINDS
    }
    for each in heard:
        for kind, case, clips in _cases(each, vectors, diarize):
            similar = case.similar(clips)
            for threshold, tally in tallies[kind].items():
                case.tally(case.by_threshold(similar, threshold), tally)
            for row, person in enumerate(_main_speakers(case)):
                for column, name in enumerate(case.names):
                    pair = "right" if name == person else "wrong"
                    cosines[kind][pair].append(round(float(similar[row, column]), 3))
        print(f"names, {each.conversation.name}", flush=True)
    return {
        kind: {
            "by threshold": {f"{key:.2f}": tally.rates() for key, tally in by_threshold.items()},
            "seconds": [by_threshold[THRESHOLDS[0]].known, by_threshold[THRESHOLDS[0]].strangers],
            "cosines": cosines[kind],
        }
        for kind, by_threshold in tallies.items()
    }


KINDS = (SAME, OTHER, STRANGERS)


def _cases(
    heard: Heard, vectors: Mapping[Place, Vector | None], diarize: Diarize
) -> Iterator[tuple[str, Case, Mapping[str, Vector | None]]]:
    """The ways to know who speaks in a conversation, each with the clips that are given."""
    here = {turn.speaker for turn in heard.conversation.turns}
    others: dict[str, Vector | None] = {}
    for (conversation, person), vector in vectors.items():
        if conversation != heard.conversation.name:
            others.setdefault(person, vector)
    absent = {person: vector for person, vector in others.items() if person not in here}
    whole = heard.dialogue()
    found = diarize(whole.scene.samples)
    if here & others.keys():
        yield OTHER, case_of(whole, found, tuple(others)), others
    yield STRANGERS, case_of(whole, found, tuple(absent)), absent
    for person, span in heard.clips.items():
        rest = heard.dialogue(without=span)
        clips = {person: vectors[heard.conversation.name, person], **absent}
        if person in rest.cast:
            yield SAME, case_of(rest, diarize(rest.scene.samples), tuple(clips)), clips


def _main_speakers(case: Case) -> Iterator[str | None]:
    """Of each speaker found the person to whom most of its seconds belong."""
    for label in case.labels:
        own = {person: each for (person, other), each in case.seconds.items() if other == label}
        yield max(own, key=lambda person: own[person], default=None)
