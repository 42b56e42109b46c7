"""Attribution against its definition, counted slowly on a grid of hundredths of a second."""

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarization_utils import (
    CHANGE_COST,
    MAX_DISTANCE,
    MAX_GAP,
    MAX_PAUSE,
    MIN_DURATION,
    MIN_OVERLAP,
    attribute,
    segment_per_chunk,
    speaker_segments,
    with_voices,
)
from whosaid.transcript import Chunk, SpeakerTurn, Word

few = settings(max_examples=40)


@st.composite
def chunk_lists(draw, most_words=4):
    """Chunks in order of time, each word of another text.

    Some words have no duration, some come after long pauses, and some chunks have no words."""
    chunks, clock, number = [], 0, 0
    for count in draw(st.lists(st.integers(0, most_words), max_size=5)):
        begin, words = clock, []
        for _ in range(count):
            start = clock + draw(st.sampled_from([0, 0, 5, 40, 300]))
            clock = start + draw(st.integers(0, 90))
            words.append(Word(f" {number}", start / 100, clock / 100))
            number += 1
        text = "".join(word.text for word in words) or f" {(number := number + 1)}"
        chunks.append(Chunk(text, begin / 100, clock / 100, words=tuple(words)))
    return chunks


def turn_lists(most=8):
    numbers = st.tuples(st.integers(0, 2), st.integers(0, 900), st.integers(1, 300))
    turns = numbers.map(lambda n: SpeakerTurn(f"S{n[0]}", n[1] / 100, (n[1] + n[2]) / 100))
    return st.lists(turns, max_size=most)


def words_of(chunks) -> list[Word]:
    return [word for chunk in chunks for word in chunk.words]


def units_of(chunks) -> list[list[Word]]:
    return [list(chunk.words) or [Word(chunk.text, chunk.start, chunk.end)] for chunk in chunks]


def moments(start: float, end: float) -> set[int]:
    return set(range(round(start * 100), max(round(end * 100), round(start * 100) + 1)))


def speaking(speaker: str, turns) -> set[int]:
    return {at for turn in turns if turn.speaker == speaker for at in range(*spanned(turn))}


def spanned(turn: SpeakerTurn) -> tuple[int, int]:
    return round(turn.start * 100), round(turn.end * 100)


def hundredths_away(word: Word, speaker: str, turns) -> float:
    first, after = round(word.start * 100), max(round(word.end * 100), round(word.start * 100) + 1)
    own = [spanned(turn) for turn in turns if turn.speaker == speaker]
    gaps = [max(0, start - after, first - end) for start, end in own]
    return min(gaps, default=math.inf)


def hundredths_away_from_all(words, turns) -> list[float]:
    names = {turn.speaker for turn in turns}
    away = [[hundredths_away(word, name, turns) for name in names] for word in words]
    return [min(each, default=math.inf) for each in away]


def evidence(word: Word, speaker: str, turns, exclusive) -> float:
    """Seconds of evidence for `speaker`, counted in hundredths one by one."""
    during = moments(word.start, word.end)
    spoken = sum(len(during & speaking(speaker, each)) for each in (turns, exclusive)) / 2
    spoken *= min(1, CHANGE_COST * 100 / len(during))
    away = min(MAX_DISTANCE * 100, hundredths_away(word, speaker, [*turns, *exclusive]))
    return (spoken - away) / 100


def score(speakers, unit, turns, exclusive) -> float:
    """The sum that attribution maximises within a chunk."""
    changes = sum(before != after for before, after in pairwise(speakers))
    pairs = zip(unit, speakers, strict=True)
    gained = sum(evidence(word, speaker, turns, exclusive) for word, speaker in pairs)
    return gained - CHANGE_COST * changes


@few
@given(chunk_lists(), turn_lists(), turn_lists())
def test_attribution_keeps_words_and_treats_chunks_independently(chunks, turns, exclusive):
    attributed = attribute(chunks, turns, exclusive)
    assert attributed == tuple(attribute([chunk], turns, exclusive)[0] for chunk in chunks)
    before, after = ([replace(chunk, words=()) for chunk in each] for each in (chunks, attributed))
    assert after == before
    bare = [[replace(each, speaker=None, overlap=False) for each in it.words] for it in attributed]
    assert bare == units_of(chunks)


@few
@given(chunk_lists(), turn_lists(5), turn_lists(5))
def test_no_other_speakers_of_a_chunk_score_more(chunks, turns, exclusive):
    names = sorted({turn.speaker for turn in (*turns, *exclusive)})
    for unit, chunk in zip(units_of(chunks), attribute(chunks, turns, exclusive), strict=True):
        away = hundredths_away_from_all(unit, [*turns, *exclusive])
        if MAX_DISTANCE * 100 in away:
            continue
        near = [index for index, hundredths in enumerate(away) if hundredths < MAX_DISTANCE * 100]
        said = [unit[index] for index in near]
        assigned = [chunk.words[index].speaker for index in near]
        assert None not in assigned
        best = max(score(who, said, turns, exclusive) for who in product(names, repeat=len(said)))
        assert score(assigned, said, turns, exclusive) == pytest.approx(best, abs=1e-6)


@few
@given(chunk_lists(8), turn_lists(), turn_lists())
def test_distant_word_has_a_speaker_only_in_short_gaps(chunks, turns, exclusive):
    for unit, chunk in zip(units_of(chunks), attribute(chunks, turns, exclusive), strict=True):
        away = hundredths_away_from_all(unit, [*turns, *exclusive])
        near = [index for index, hundredths in enumerate(away) if hundredths <= MAX_DISTANCE * 100]
        for index in set(range(len(unit))).difference(near):
            before = max((each for each in near if each < index), default=None)
            after = min((each for each in near if each > index), default=None)
            expected = None
            if before is not None and after is not None:
                end = max(moments(unit[before].start, unit[before].end))
                gap = round(unit[after].start * 100) - end - 1
                speakers = {chunk.words[before].speaker, chunk.words[after].speaker}
                expected = speakers.pop() if len(speakers) == 1 and gap <= MAX_GAP * 100 else None
                if gap == MAX_GAP * 100:
                    continue
            assert MAX_DISTANCE * 100 in away or chunk.words[index].speaker == expected


@few
@given(chunk_lists(), turn_lists(), turn_lists())
def test_overlapped_words_are_marked(chunks, turns, exclusive):
    names = {turn.speaker for turn in turns}
    for word in words_of(attribute(chunks, turns, exclusive)):
        during = moments(word.start, word.end)
        two = [at for at in during if sum(at in speaking(name, turns) for name in names) >= 2]
        share = len(two) / len(during)
        assert share == pytest.approx(MIN_OVERLAP) or word.overlap == (share > MIN_OVERLAP)


@given(chunk_lists(), st.lists(st.floats(-0.2, 0.2), min_size=8, max_size=8), st.integers(2, 8))
def test_errors_of_turn_ends_move_no_word(chunks, errors, count):
    """Each chunk is one speaker's turn; the turn's ends are those of its words, with errors."""
    worded = [chunk for chunk in chunks if chunk.words]
    spoken = [each for each in worded if each.words[-1].end - each.words[0].start > 1.5][:count]
    bounds = [(chunk.words[0].start, chunk.words[-1].end) for chunk in spoken]
    turns = [(start + errors[i], end + errors[i + 1]) for i, (start, end) in enumerate(bounds)]
    found = [SpeakerTurn(f"S{i % 2}", *turn) for i, turn in enumerate(turns)]
    for i, chunk in enumerate(attribute(spoken, found, found)):
        assert {word.speaker for word in chunk.words} == {f"S{i % 2}"}


@pytest.mark.parametrize(("count", "speaker"), [(2, "S0"), (5, "S1")])
def test_short_turn_within_a_chunk_changes_no_speaker(count, speaker):
    spoken = (("S0", 5), ("S1", count), ("S0", 5))  # words of a fifth of a second
    words, turns = [], []
    for name, number in spoken:
        start = 0.2 * len(words)
        words += [Word(" a", start + 0.2 * i, start + 0.2 * (i + 1)) for i in range(number)]
        turns.append(SpeakerTurn(name, start, 0.2 * len(words)))
    (chunk,) = attribute([Chunk("", 0, 0.2 * len(words), words=tuple(words))], turns, turns)
    assert [word.speaker for word in chunk.words] == ["S0"] * 5 + [speaker] * count + ["S0"] * 5


def test_word_across_turns_stays_with_its_sentence():
    """The word lasts a second, of which the last tenth alone is in its speaker's turn."""
    words = (Word(" And", 0.0, 1.0), Word(" symbols", 1.0, 1.5), Word(" that", 1.5, 1.8))
    turns = [SpeakerTurn("A", 0.0, 0.95), SpeakerTurn("B", 0.9, 4.0)]
    exclusive = [turns[0], SpeakerTurn("B", 0.95, 4.0)]
    (chunk,) = attribute([Chunk("", 0.0, 1.8, words=words)], turns, exclusive)
    assert [word.speaker for word in chunk.words] == ["B", "B", "B"]


@pytest.mark.parametrize(
    ("second", "gap", "speaker"),
    [("S0", MAX_GAP, "S0"), ("S0", MAX_GAP + 0.1, None), ("S1", MAX_GAP - 0.1, None)],
)
def test_word_in_a_gap_gets_the_surrounding_speaker(second, gap, speaker):
    turns = [SpeakerTurn("S0", 0, 1), SpeakerTurn(second, 1 + gap, 5)]
    words = (Word(" a", 0, 1), Word(" b", 1.6, 1.8), Word(" c", 1 + gap, 5))
    (chunk,) = attribute([Chunk(" a b c", 0, 5, words=words)], turns, turns)
    assert [word.speaker for word in chunk.words] == ["S0", speaker, second]
    chunks = [Chunk(word.text, word.start, word.end, words=(word,)) for word in words]
    apart = attribute(chunks, turns, turns)
    assert [word.speaker for word in words_of(apart)] == ["S0", None, second]


@pytest.mark.parametrize(
    ("starts", "speakers"),
    [
        ([math.nan, math.nan, 1], ["S0", "S0", "S0"]),
        ([1, 9, math.nan], ["S0", None, None]),
        ([math.nan, 9], [None, None]),
        ([math.nan, math.nan], [None, None]),
    ],
)
def test_words_without_a_time_are_assigned_like_those_beside_them(starts, speakers):
    words = tuple(Word(" a", start, start + 0.5) for start in starts)
    turns = [SpeakerTurn("S0", 0, 4)]
    (chunk,) = attribute([Chunk("", 0, 10, words=words)], turns, turns)
    assert [word.speaker for word in chunk.words] == speakers


@few
@given(chunk_lists(), turn_lists())
def test_words_of_a_voice_extend_its_turns(chunks, turns):
    spoken = [replace(chunk, voice=f"S{at % 3}") for at, chunk in enumerate(chunks) if at % 4]
    extended = with_voices(turns, spoken)
    for speaker in ("S0", "S1", "S2"):
        every = (word for chunk in spoken if chunk.voice == speaker for word in chunk.words)
        own = [word for word in every if word.end > word.start]
        said = {at for word in own for at in range(round(word.start * 100), round(word.end * 100))}
        pauses = {
            at
            for before, after in pairwise(sorted((word.start, word.end) for word in own))
            if after[0] - before[1] <= MAX_DISTANCE
            for at in range(round(before[1] * 100), round(after[0] * 100))
        }
        assert speaking(speaker, extended) == speaking(speaker, turns) | said | pauses
    assert with_voices(turns, chunks) == sorted(turns, key=lambda turn: (turn.start, turn.end))


@few
@given(chunk_lists(), turn_lists(), turn_lists())
def test_segments_keep_words_and_end_at_changes_or_pauses(chunks, turns, exclusive):
    attributed = attribute(chunks, turns, exclusive)
    segments = speaker_segments(attributed)
    assert words_of(segments) == words_of(attributed)
    assert "".join(segment.text for segment in segments) == "".join(chunk.text for chunk in chunks)
    assert all(word.speaker == segment.speaker for segment in segments for word in segment.words)
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    for before, after in pairwise(segments):
        assert before.speaker != after.speaker or after.start - before.end > MAX_PAUSE


def test_one_speaker_is_split_at_a_long_pause_only():
    chunks = [Chunk(" a", 0, 1), Chunk(" b", 1.5, 2), Chunk(" c", 9, 10)]
    turns = [SpeakerTurn("S0", 0, 10)]
    segments = speaker_segments(attribute(chunks, turns, turns))
    assert [(s.text, s.start, s.end) for s in segments] == [(" a b", 0, 2), (" c", 9, 10)]


@few
@given(chunk_lists(), turn_lists(), turn_lists())
def test_segment_of_a_chunk_has_the_longest_speaker(chunks, turns, exclusive):
    attributed = attribute(chunks, turns, exclusive)
    segments = segment_per_chunk(attributed)
    expected = [(c.text, c.words[0].start, c.words[-1].end, c.words) for c in attributed]
    assert [(s.text, s.start, s.end, s.words) for s in segments] == expected
    for segment in segments:
        said: dict[str, float] = {}
        for word in segment.words:
            if word.speaker is not None:
                length = max(word.end - word.start, MIN_DURATION)
                said[word.speaker] = said.get(word.speaker, 0.0) + length
        assert said.get(segment.speaker, 0.0) == max(said.values(), default=0.0)
        assert (segment.speaker is None) == (not said)
