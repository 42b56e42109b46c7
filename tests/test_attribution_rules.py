"""Other projects' rules on cases worked out by hand from their descriptions, faults included."""

from __future__ import annotations

import math

import pytest

from benchmarks.voices.attribution_rules import insanely_fast_rule, whisperx_rule
from whosaid.transcript import Chunk, SpeakerTurn, Word

TURNS = [SpeakerTurn("A", 0, 0.5), SpeakerTurn("A", 0.6, 1.9), SpeakerTurn("B", 2.2, 3)]


def given_to(turns, *ends: float) -> str:
    """The speakers of chunks with these ends; "-" for a chunk that gets none."""
    starts = [0.0, *ends][: len(ends)]
    chunks = [
        Chunk(f" {i}", start, end, words=(Word(f" {i}", start, end),))
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    words = insanely_fast_rule(chunks, turns)
    assert [word.text for word in words] == [chunk.text for chunk in chunks]
    return "".join(word.speaker or "-" for word in words)


@pytest.mark.parametrize(
    ("ends", "speakers"),
    [
        ((1.0, 2.1, 3.1), "AAB"),
        ((1.0, 2.8, 3.1), "AAB"),
        ((1.0, 3.5, 3.6), "AB-"),
        ((2.0, 3.0, 60.0, 61.0), "AB--"),
        ((2.0, 3.0, math.nan), "AB-"),
        ((), ""),
    ],
)
def test_a_turn_takes_the_chunks_up_to_the_one_that_ends_nearest_to_where_the_next_begins(
    ends, speakers
):
    assert given_to(TURNS, *ends) == speakers


def test_every_turn_takes_a_chunk_while_one_is_left():
    turns = [SpeakerTurn("A", 0, 1), SpeakerTurn("B", 8, 9), SpeakerTurn("A", 9, 10)]
    assert given_to(turns, 8.0) == "A"
    assert given_to(turns, 8.0, 20.0) == "AB"
    assert given_to([], 1.0) == "-"


@pytest.mark.parametrize(
    ("start", "end", "speaker"), [(0.4, 0.7, "A"), (1.8, 2.4, "B"), (1.9, 2.2, None)]
)
def test_a_word_goes_to_the_speaker_with_the_largest_summed_overlap(start, end, speaker):
    assert whisperx_rule([Word(" a", start, end)], TURNS)[0].speaker == speaker
