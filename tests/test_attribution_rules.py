"""The rules that ours is measured beside, on cases worked out by hand from their descriptions,
faults included.
"""

from __future__ import annotations

import math

import pytest

from benchmarks.accuracy.attribution_rules import (
    insanely_fast_rule,
    insanely_fast_rule_on_words,
    whisperx_rule,
)
from whosaid.transcript import Chunk, SpeakerTurn, Word

TURNS = [SpeakerTurn("A", 0, 0.5), SpeakerTurn("A", 0.6, 1.9), SpeakerTurn("B", 2.2, 3)]


def chunks_of(*ends: float) -> list[Chunk]:
    starts = [0.0, *ends[:-1]]
    return [
        Chunk(f" {i}", start, end, words=(Word(f" {i}", start, end),))
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def told(segments) -> list[tuple[str | None, str]]:
    return [(segment.speaker, segment.text) for segment in segments]


def test_a_turn_takes_the_chunks_up_to_the_one_that_ends_nearest_to_where_the_next_begins():
    assert told(insanely_fast_rule(chunks_of(1.0, 2.1, 3.1), TURNS)) == [("A", " 0 1"), ("B", " 2")]
    assert told(insanely_fast_rule(chunks_of(1.0, 2.8, 3.1), TURNS)) == [("A", " 0 1"), ("B", " 2")]
    assert told(insanely_fast_rule(chunks_of(1.0, 3.5, 3.6), TURNS)) == [("A", " 0"), ("B", " 1")]


def test_every_turn_takes_a_chunk_while_one_is_left():
    turns = [SpeakerTurn("A", 0, 1), SpeakerTurn("B", 8, 9), SpeakerTurn("A", 9, 10)]
    assert told(insanely_fast_rule(chunks_of(8.0), turns)) == [("A", " 0")]
    assert told(insanely_fast_rule(chunks_of(8.0, 20.0), turns)) == [("A", " 0"), ("B", " 1")]


def test_chunks_after_the_last_turn_vanish():
    assert told(insanely_fast_rule(chunks_of(2.0, 3.0, 60.0, 61.0), TURNS)) == [
        ("A", " 0"),
        ("B", " 1"),
    ]
    words = [word for chunk in chunks_of(2.0, 3.0, 60.0, 61.0) for word in chunk.words]
    assert [word.speaker for word in insanely_fast_rule_on_words(words, TURNS)] == [
        "A",
        "B",
        None,
        None,
    ]


def test_a_missing_end_is_later_than_every_turn():
    chunks = [*chunks_of(2.0, 3.0), Chunk(" 2", 3.0, math.nan)]
    assert told(insanely_fast_rule(chunks, TURNS)) == [("A", " 0"), ("B", " 1")]


def test_what_crashed_answers_nothing():
    assert insanely_fast_rule([], TURNS) == []
    assert insanely_fast_rule(chunks_of(1.0), []) == []


@pytest.mark.parametrize(
    ("start", "end", "speaker"), [(0.4, 0.7, "A"), (1.8, 2.4, "B"), (1.9, 2.2, None)]
)
def test_a_word_goes_to_the_speaker_with_the_largest_summed_overlap(start, end, speaker):
    assert whisperx_rule([Word(" a", start, end)], TURNS)[0].speaker == speaker


@pytest.mark.parametrize(
    ("start", "end", "speaker"), [(1.95, 2.0, "A"), (2.1, 2.15, "B"), (9, 10, "B")]
)
def test_a_word_without_overlap_may_take_the_nearest_turn(start, end, speaker):
    assert whisperx_rule([Word(" a", start, end)], TURNS)[0].speaker is None
    assert whisperx_rule([Word(" a", start, end)], TURNS, fill_nearest=True)[0].speaker == speaker
    assert whisperx_rule([Word(" a", start, end)], [], fill_nearest=True)[0].speaker is None
