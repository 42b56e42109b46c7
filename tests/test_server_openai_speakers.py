"""Labels of speakers."""

from __future__ import annotations

import itertools
from string import ascii_uppercase

import pytest
from openai_answers import SILENT, SPOKEN

from server.openai_api.speakers import everyone_labelled, label, with_labels
from transcript import SpeakerSegment


def test_labels_count_as_spreadsheets_do():
    letters = [*ascii_uppercase]
    pairs = ["".join(pair) for pair in itertools.product(letters, repeat=2)]
    assert [label(place) for place in range(26 + 26 * 26)] == letters + pairs
    assert label(26 + 26 * 26) == "AAA"


def test_speakers_are_labelled_in_order_of_appearance():
    labelled = with_labels(SPOKEN)
    assert [each.speaker for each in labelled.segments] == ["A", "B", None]
    words = [word for each in labelled.segments for word in each.words]
    assert [word.speaker for word in words] == ["A", "A", "B", None]
    assert [word for chunk in labelled.transcript.chunks for word in chunk.words] == words


def test_without_speakers_nothing_changes():
    assert with_labels(SILENT) == SILENT


@pytest.mark.parametrize(
    ("speakers", "labels"),
    [
        ([], []),
        ([None, "A", None, "B"], ["A", "A", "A", "B"]),
        ([None, "B"], ["B", "B"]),
        ([None], ["A"]),
    ],
)
def test_everyone_has_a_label(speakers, labels):
    segments = [SpeakerSegment(each, "", 0, 0) for each in speakers]
    assert everyone_labelled(segments) == labels
