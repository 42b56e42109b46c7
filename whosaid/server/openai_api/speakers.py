"""Speakers by OpenAI's labels: A, B, ... in the order in which they first speak, or by name.

In OpenAI's format every segment has a speaker. If diarization has none, the segment gets the
speaker before it, or else after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from string import ascii_uppercase

from whosaid.answer.response import Answer
from whosaid.transcript import SpeakerSegment, Word


def with_labels(answer: Answer) -> Answer:
    """Return the answer with OpenAI's labels, or known names, in `known_speakers` too."""
    segments = answer.segments or ()
    found = [each.speaker for each in segments]
    found += [word.speaker for each in segments for word in each.words]
    labels = _labels(filter(None, dict.fromkeys(found)), answer)
    named = {each.label: each.name for each in answer.known_speakers if each.matched}

    def relabel(words: Iterable[Word]) -> tuple[Word, ...]:
        return tuple(replace(word, speaker=labels.get(word.speaker or "")) for word in words)

    def relabel_segment(segment: SpeakerSegment) -> SpeakerSegment:
        speaker = labels.get(segment.speaker or "")
        voice = None if segment.voice is None else speaker or ""
        return replace(segment, speaker=speaker, voice=voice, words=relabel(segment.words))

    chunks = tuple(replace(each, words=relabel(each.words)) for each in answer.transcript.chunks)
    told = tuple(
        replace(each, label=named.get(each.label) or labels.get(each.label or ""))
        for each in answer.known_speakers
    )
    return replace(
        answer,
        known_speakers=told,
        voices={labels[label]: each for label, each in answer.voices.items() if label in labels},
        transcript=replace(answer.transcript, chunks=chunks),
        segments=None if answer.segments is None else [*map(relabel_segment, segments)],
    )


def _labels(speakers: Iterable[str], answer: Answer) -> dict[str, str]:
    """Return labels: the name of a known speaker or channel, or letters that are no name."""
    channels = {each.name for each in answer.channels}
    names = channels | {each.name for each in answer.known_speakers}
    letters = (letter for letter in map(label, count()) if letter not in names)
    kept = channels | {each.name for each in answer.known_speakers if each.matched}
    return {each: each if each in kept else next(letters) for each in speakers}


def everyone_labelled(segments: Sequence[SpeakerSegment]) -> list[str]:
    """Return a label for each segment, including segments without a speaker."""
    first = next((each.speaker for each in segments if each.speaker), label(0))
    found: list[str] = []
    for each in segments:
        found.append(each.speaker or (found[-1] if found else first))
    return found


def label(place: int) -> str:
    """Return a label by number: A to Z, then AA, AB and so on, like a spreadsheet's columns."""
    letters = ""
    while place >= 0:
        place, letter = divmod(place, len(ascii_uppercase))
        letters = ascii_uppercase[letter] + letters
        place -= 1
    return letters
