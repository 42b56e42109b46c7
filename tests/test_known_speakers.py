"""Names for speakers against properties: permutations, strangers, and what cannot be compared."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whosaid.diarization.diarizer import Diarization
from whosaid.diarization.known_speakers import (
    MARGIN,
    MIN_SECONDS_ALONE,
    NO_THRESHOLD,
    KnownVoices,
    alike,
    assign,
    name_speakers,
    seconds_alone,
    unit,
)
from whosaid.transcript import SpeakerMatch, SpeakerTurn

AXES = np.eye(6)
SAME = 0.78


def diarization(**voices):
    """Speakers S0, S1, ... who each speak for ten seconds, with these embeddings."""
    turns = tuple(SpeakerTurn(name, 10.0 * at, 10.0 * at + 10) for at, name in enumerate(voices))
    return Diarization(turns, turns, voices=voices)


def known(same_voice=SAME, **vectors):
    units = {name: [unit(row)] for name, row in vectors.items()}
    return KnownVoices(units, same_voice=same_voice)


def named(naming):
    return [turn.speaker for turn in naming.diarization.turns]


def similarity_matrices(least=-1.0):
    sizes = st.tuples(st.integers(0, 4), st.integers(1, 4))
    numbers = st.floats(least, 1, allow_nan=False).map(lambda number: round(number, 2))
    return sizes.flatmap(
        lambda size: st.lists(
            st.lists(numbers, min_size=size[1], max_size=size[1]),
            min_size=size[0],
            max_size=size[0],
        ).map(lambda rows: np.array(rows, float).reshape(size))
    )


def best_sum(similar, threshold):
    """The largest sum over all ways to give names or nobody, by trying them."""
    speakers, names = similar.shape
    choices = [*range(names), *[None] * speakers]
    return max(
        sum(threshold if name is None else similar[row, name] for row, name in enumerate(each))
        for each in permutations(choices, speakers)
    )


@given(similarity_matrices(), st.floats(0, 1))
def test_names_go_one_to_one_and_only_above_the_threshold(similar, threshold):
    pairs = assign(similar, threshold)
    assert len(set(pairs.values())) == len(pairs)
    for row, column in pairs.items():
        assert similar[row, column] >= threshold
        others = np.delete(similar[row], column)
        assert not len(others) or similar[row, column] - others.max() >= MARGIN


@given(similarity_matrices(), st.sampled_from([0.3, 0.6]))
def test_the_assignment_is_the_best_of_all(similar, threshold):
    """Without a margin the pairs have the best sum; the margin only removes some."""
    pairs = assign(similar, threshold)
    got = sum(similar[pair] for pair in pairs.items())
    got += threshold * (len(similar) - len(pairs))
    best = best_sum(similar, threshold)
    assert got <= best + 1e-9
    if similar.shape[1] == 1:  # nothing to keep a margin to
        assert got == pytest.approx(best)


def test_a_pair_that_fails_displaces_none():
    """An assignment without nobody would give Bob to the second speaker, whose name is Anna."""
    assert assign(np.array([[0.5, 0.1], [0.9, 0.45]]), 0.6) == {1: 0}


def test_permuted_names_name_the_same_speakers():
    rng = np.random.default_rng(0)
    voices = {f"SPEAKER_0{place}": AXES[place] for place in range(4)}
    clips = {name: AXES[place] + rng.normal(0, 0.2, 6) for place, name in enumerate("abc")}
    expected = named(name_speakers(diarization(**voices), known(**clips)))
    assert expected == ["a", "b", "c", "SPEAKER_03"]
    for order in permutations(clips):
        naming = name_speakers(diarization(**voices), known(**{it: clips[it] for it in order}))
        assert named(naming) == expected
        assert [each.name for each in naming.known_speakers] == list(order)


def test_a_strangers_clip_names_nobody_and_shows_the_nearest():
    voices = {"SPEAKER_00": AXES[0], "SPEAKER_01": AXES[1] + AXES[0]}
    naming = name_speakers(diarization(**voices), known(Eve=AXES[0] * 0.5 + AXES[2]))
    assert named(naming) == list(voices)
    (told,) = naming.known_speakers
    assert (told.label, told.matched) == ("SPEAKER_00", False)
    assert 0 < told.similarity < SAME


def test_the_threshold_of_the_request_decides():
    voices, similarity = diarization(S=AXES[0]), 1 / np.hypot(1, 0.8)
    for same_voice in (None, 0.0, 1.0):
        clip = known(same_voice, Anna=AXES[0] + 0.8 * AXES[1])
        for threshold, matched in ((similarity - 0.01, True), (similarity + 0.01, False)):
            naming = name_speakers(voices, clip, threshold)
            match = SpeakerMatch("Anna", "S", pytest.approx(similarity), matched)
            assert naming.known_speakers == (match,)
            assert naming.warnings == ()


def test_threshold_of_the_embedding_model_decides_by_default():
    voices, row, similarity = diarization(S=AXES[0]), AXES[0] + 0.8 * AXES[1], 1 / np.hypot(1, 0.8)
    for same_voice in (similarity - 0.01, similarity + 0.01, None):
        naming = name_speakers(voices, known(same_voice, Anna=row))
        matched = same_voice is not None and same_voice < similarity
        match = SpeakerMatch("Anna", "S", pytest.approx(similarity), matched)
        assert naming.known_speakers == (match,)
        assert naming.warnings == (() if same_voice else (NO_THRESHOLD,))
        assert named(naming) == (["Anna"] if matched else ["S"])


def test_two_names_that_fit_as_well_are_both_kept_back():
    clips = known(Anna=AXES[0] + 0.01 * AXES[1], Bob=AXES[0])
    assert named(name_speakers(diarization(S=AXES[0]), clips)) == ["S"]


@pytest.mark.parametrize("row", [np.zeros(6), np.full(6, np.nan), np.array([])])
def test_speaker_without_embedding_stays_unnamed(row):
    naming = name_speakers(diarization(A=row, B=AXES[1]), known(Anna=AXES[0], Bob=AXES[1]))
    assert named(naming) == ["A", "Bob"]
    assert len(naming.warnings) == 1
    assert "compare A," in naming.warnings[0]
    alone = name_speakers(diarization(A=row), known(Anna=AXES[0]))
    assert alone.known_speakers == (SpeakerMatch("Anna"),)


def test_speaker_with_little_clear_speech_stays_unnamed():
    turns = (SpeakerTurn("A", 0, 10), SpeakerTurn("B", 7, 9.9 + MIN_SECONDS_ALONE))
    found = Diarization(turns, turns, voices={"A": AXES[0], "B": AXES[1]})
    naming = name_speakers(found, known(Anna=AXES[0], Bob=AXES[1]))
    assert {turn.speaker for turn in naming.diarization.turns} == {"Anna", "B"}
    assert "compare B," in naming.warnings[0]


def test_labels_decide_and_not_places():
    """Speech detection may drop the turns of a speaker who has an embedding."""
    turns = (SpeakerTurn("A", 0, 10), SpeakerTurn("B", 10, 20))
    found = Diarization(turns, turns, voices={"A": AXES[0], "B": AXES[1]})
    assert named(name_speakers(found.touching([(10.5, 20)]), known(Bob=AXES[1]))) == ["Bob"]


def test_several_clips_of_a_name_count_as_one_voice():
    clips = KnownVoices({"Anna": [AXES[0], AXES[1]]}, same_voice=SAME)
    naming = name_speakers(diarization(S=AXES[0] + AXES[1]), clips)
    assert naming.known_speakers[0].similarity == pytest.approx(1)


def test_clips_as_similar_as_one_voice_sound_alike():
    vectors = {"a": [AXES[0]], "b": [AXES[1]], "c": [unit(AXES[0] + 0.8 * AXES[2])]}
    similarity = 1 / np.hypot(1, 0.8)
    assert alike(vectors, similarity - 0.01) == [(0, 2)]
    assert alike(vectors, similarity + 0.01) == []


def test_exclusive_turns_are_named_and_voices_dropped():
    turns, exclusive = (SpeakerTurn("A", 0, 10),), (SpeakerTurn("A", 0, 9),)
    found = Diarization(turns, exclusive, voices={"A": AXES[0]})
    naming = name_speakers(found, known(Anna=AXES[0]))
    assert naming.diarization.exclusive == (SpeakerTurn("Anna", 0, 9),)
    assert naming.diarization.voices == {}
    assert "array" not in repr(found) + repr(known(Anna=AXES[0]))


def test_nothing_changes_where_nobody_is_known_or_speaks():
    found = diarization(A=AXES[0])
    assert name_speakers(found, KnownVoices()).diarization is found
    assert name_speakers(None, known(Anna=AXES[0])).known_speakers == (SpeakerMatch("Anna"),)
    silent = name_speakers(Diarization((), ()), known(Anna=AXES[0]))
    assert silent.known_speakers == (SpeakerMatch("Anna"),)


TURN = st.tuples(st.sampled_from("ABC"), st.integers(0, 20), st.integers(0, 8))
TURNS = st.lists(TURN, max_size=8)


@given(TURNS)
def test_seconds_alone_are_those_of_one_speaker_on_a_grid(drawn):
    turns = [SpeakerTurn(who, start, start + length) for who, start, length in drawn]
    spans = [(who, range(start, start + length)) for who, start, length in drawn]
    grid = [{who for who, span in spans if second in span} for second in range(30)]
    expected = {who: sum(each == {who} for each in grid) for who, *_ in drawn}
    assert seconds_alone(turns) == expected
