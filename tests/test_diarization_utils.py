"""Chunks to speakers, against definitions written out the slow way."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from diarization_utils import LONGEST_PAUSE, assign_speakers
from transcript import Chunk, SpeakerTurn


@st.composite
def chunk_lists(draw):
    """Chunks in order of time, told apart by their text; some without duration, some after long pauses."""
    steps = draw(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 300)), max_size=12))
    chunks, clock = [], 0
    for number, (pause, length) in enumerate(steps):
        start = clock + pause
        clock = start + length
        chunks.append(Chunk(f" {number}", start / 100, clock / 100))
    return chunks


turn_lists = st.lists(
    st.builds(
        lambda who, start, length: SpeakerTurn(f"S{who}", start / 100, (start + length) / 100),
        st.integers(0, 3),
        st.integers(0, 4000),
        st.integers(1, 500),
    ),
    max_size=12,
)


def seconds_heard(speaker: str, chunk: Chunk, turns: list[SpeakerTurn]) -> int:
    """Hundredths of a second in which `speaker` is heard within `chunk`, counted one by one."""
    first, after = round(chunk.start * 100), max(round(chunk.end * 100), round(chunk.start * 100) + 1)
    return sum(
        any(t.speaker == speaker and round(t.start * 100) <= at < round(t.end * 100) for t in turns)
        for at in range(first, after)
    )


@given(chunk_lists(), turn_lists)
def test_no_chunk_is_lost_doubled_or_moved(chunks, turns):
    segments = assign_speakers(chunks, turns)
    assert "".join(s.text for s in segments) == "".join(c.text for c in chunks)
    times = [time for s in segments for time in (s.start, s.end)]
    assert times == sorted(times)
    assert {s.start for s in segments} <= {c.start for c in chunks}
    assert {s.end for s in segments} <= {c.end for c in chunks}


@given(chunk_lists(), turn_lists)
def test_each_chunk_goes_to_the_speaker_heard_longest(chunks, turns):
    given_to = {text: s.speaker for s in assign_speakers(chunks, turns) for text in s.text.split()}
    for chunk in chunks:
        heard = {turn.speaker: seconds_heard(turn.speaker, chunk, turns) for turn in turns}
        speaker = given_to[chunk.text.strip()]
        assert heard.get(speaker, 0) == max(heard.values(), default=0)
        assert (speaker is None) == (max(heard.values(), default=0) == 0)


@given(chunk_lists(), turn_lists)
def test_neighbours_differ_in_speaker_or_are_far_apart(chunks, turns):
    for before, after in pairwise(assign_speakers(chunks, turns)):
        assert before.speaker != after.speaker or after.start - before.end > LONGEST_PAUSE


def test_one_speaker_is_cut_at_a_long_pause_only():
    chunks = [Chunk(" a", 0, 1), Chunk(" b", 1.5, 2), Chunk(" c", 9, 10)]
    segments = assign_speakers(chunks, [SpeakerTurn("S0", 0, 10)])
    assert [(s.text, s.start, s.end) for s in segments] == [(" a b", 0, 2), (" c", 9, 10)]


def test_overlaps_of_one_speaker_add_up():
    turns = [SpeakerTurn("S0", 0, 3), SpeakerTurn("S1", 3, 7), SpeakerTurn("S0", 7, 10)]
    assert assign_speakers([Chunk(" a", 0, 10)], turns)[0].speaker == "S0"


def test_without_turns_nobody_spoke():
    assert [s.speaker for s in assign_speakers([Chunk(" a", 0, 1)], [])] == [None]
    assert assign_speakers([], [SpeakerTurn("S0", 0, 1)]) == []
