"""The values that rooms hand each other: frozen, and a text that is its chunks."""

from __future__ import annotations

import dataclasses

import pytest

from transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

VALUES = [
    Word("yes", 0.0, 0.5),
    Chunk(" yes", 0.0, 0.5),
    SpeakerTurn("SPEAKER_00", 0.0, 0.5),
    SpeakerSegment(None, " yes", 0.0, 0.5),
    Transcript((), None),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_cannot_be_changed(value):
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, "other")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_compare_by_content(value):
    assert dataclasses.replace(value) == value


def test_the_text_is_the_chunks_text_as_the_tokenizer_spaced_it():
    chunks = (Chunk(" Good", 0.0, 0.5), Chunk("-bye,", 0.5, 1.0), Chunk(" all.", 1.0, 2.0))
    assert Transcript(chunks, "en").text == " Good-bye, all."


def test_nothing_said_is_an_empty_text():
    assert Transcript((), None).text == ""
