"""What speakers are called: diarization numbers them, and whoever listens knows their names.

The one decision: names are put into the `Answer`, before anything is made of it, so that the
transcript, the timeline and every download agree. Colours stay with the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from response import Answer
from subtitles import display_width
from transcript import SpeakerSegment, SpeakerTurn, Word

MAX_NAME_COLUMNS = 24  # a cue of subtitles has 42 columns a line, name included

Spoken = TypeVar("Spoken", Word, SpeakerSegment, SpeakerTurn)


def speakers_of(answer: Answer) -> list[str]:
    """The speakers, in the order in which they first speak."""
    entries = [(turn.start, turn.speaker) for turn in answer.turns or ()]
    entries += [(each.start, each.speaker) for each in answer.segments or () if each.speaker]
    return list(dict.fromkeys(speaker for _, speaker in sorted(entries)))


def clean_name(text: str) -> str:
    """One line of printable characters that fits beside a subtitle."""
    # Far more than a name, and little enough to be measured again and again.
    text = text[: 10 * MAX_NAME_COLUMNS]
    name = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    while display_width(name) > MAX_NAME_COLUMNS:
        name = name[:-1].rstrip()
    return name


def rename(answer: Answer, names: Mapping[str, str]) -> Answer:
    """The answer with the speakers that `names` has called by those names."""

    def renamed(items: Iterable[Spoken]) -> tuple[Spoken, ...]:
        return tuple(
            replace(item, speaker=names.get(item.speaker, item.speaker)) if item.speaker else item
            for item in items
        )

    chunks = tuple(replace(each, words=renamed(each.words)) for each in answer.transcript.chunks)
    segments = [replace(each, words=renamed(each.words)) for each in answer.segments or ()]
    return replace(
        answer,
        transcript=replace(answer.transcript, chunks=chunks),
        segments=None if answer.segments is None else renamed(segments),
        turns=None if answer.turns is None else renamed(answer.turns),
    )
