"""The benchmark of people who talk at once: mixtures, and errors counted by hand."""

from itertools import pairwise, permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from benchmarks.voices.mixtures import DEGREES, SingleVoice, conversation, mix, split_of
from benchmarks.voices.overlap import GivenTurns, timed
from benchmarks.voices.overlap_errors import BY_SPEAKER, IN_TIME, TEXT, mark_overlap, word_errors
from tests.support.audio_files import speech, wav_file
from whosaid.diarization.diarizer import Diarization, SpeakerHints
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word

TRUE = (SpeakerTurn("A", 0.0, 3.0), SpeakerTurn("B", 2.0, 5.0))


def words(text, speakers, starts):
    return [
        Word(word, start, start + 0.5, None if speaker == "-" else speaker)
        for word, speaker, start in zip(text, speakers, starts, strict=False)
    ]


REFERENCE = words("abcdef", "AAABBB", (0, 1, 2, 2.5, 3.5, 4))


def counted(found, measure):
    errors = word_errors(REFERENCE, TRUE, found, str.lower)[measure]
    assert {part: count["total"] for part, count in errors.items()} == {"inside": 2, "outside": 4}
    return errors["inside"]["errors"], errors["outside"]["errors"]


def test_word_covered_by_a_fifth_is_inside():
    marked = mark_overlap(REFERENCE, TRUE)
    assert [word.text for word in marked if word.overlap] == ["c", "d"]
    # Of 0.5 s, 0.05 s and then 0.15 s are covered.
    nearly, enough = Word("x", 1.55, 2.05, "A"), Word("x", 1.65, 2.15, "A")
    assert [word.overlap for word in mark_overlap([nearly, enough], TRUE)] == [False, True]
    # A word that was found is inside if two people speak.
    assert [each.overlap for each in mark_overlap(words("xx", "-Z", (1, 2.2)), TRUE)] == [0, 1]


def test_errors_are_those_counted_by_hand():
    """A word of each speaker is wrong or missing, and one has the wrong speaker."""
    found = words("abqde", "xxxxy", (0, 1, 2.4, 2.5, 3.5))
    assert counted(found, TEXT) == (1, 1)  # q for c; no f
    assert counted(found, BY_SPEAKER) == (3, 1)  # x has d, and y lacks it
    assert counted(found, IN_TIME) == (3, 1)
    late = words("abcdef", "xxxyyy", (0, 1, 2, 2.5, 3.5, 20))
    assert counted(late, BY_SPEAKER) == (0, 0)
    assert counted(late, IN_TIME) == (0, 2)
    assert counted([], TEXT) == counted([], BY_SPEAKER) == (2, 4)


def test_the_text_alone_may_have_its_utterances_in_any_order():
    one_after_the_other = words("defabc", "------", (0, 1, 2, 3, 4, 5))
    assert counted(one_after_the_other, TEXT) == (0, 0)
    by_speaker = words("adbecf", "xyxyxy", (0, 1, 2, 3, 4, 5))
    assert counted(by_speaker, TEXT) == (0, 0)
    assert counted(words("abcdef", "-" * 6, range(6)), BY_SPEAKER) == (2, 4)


texts = st.lists(st.sampled_from("abc"), max_size=6).map("".join)
spoken = st.dictionaries(st.sampled_from("ABCD"), texts.filter(bool), min_size=1)


@given(spoken, spoken)
def test_errors_by_speaker_are_those_of_the_definition(said, heard):
    """Every assignment of speakers tried, silent partners filled with nothing."""
    ours, theirs = ([texts.get(name, "") for name in "ABCD"] for texts in (said, heard))
    expected = min(sum(map(Levenshtein.distance, ours, order)) for order in permutations(theirs))
    reference, found = (
        [word for name, text in each.items() for word in words(text, name * 9, range(9))]
        for each in (said, heard)
    )
    turns = [SpeakerTurn(name, 0.0, 9.0) for name in said]
    counted = word_errors(reference, turns, found, str)[BY_SPEAKER]
    assert sum(part["errors"] for part in counted.values()) == expected
    assert sum(part["total"] for part in counted.values()) == len("".join(ours))


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("size", [2, 3])
def test_voices_of_a_mixture_overlap_as_much_as_asked(degree, size):
    cast = [
        SingleVoice(
            name,
            np.ones(SAMPLE_RATE * seconds, np.float32) / 8,
            (SpeakerTurn(name, 0.0, seconds),),
            (Word(name, 0.5, 1.0),),
        )
        for name, seconds in zip("ABC"[:size], (4, 2, 3), strict=False)
    ]
    scene = mix(cast, degree, np.random.default_rng(0))
    turns = {turn.speaker: turn for turn in scene.turns}
    for one, other in ("AB", "BC")[: size - 1]:
        shared = min(turns[one].end, turns[other].end) - max(turns[one].start, turns[other].start)
        shorter = min(turns[each].end - turns[each].start for each in (one, other))
        if degree < 1:
            assert max(shared, 0) == pytest.approx(degree * shorter)
    if degree == 1:
        first, last = turns["A"].start, turns["A"].end + 1e-9
        assert all(first <= turn.start <= turn.end <= last for turn in scene.turns)
    for word in scene.words:
        assert word.start == pytest.approx(turns[word.speaker].start + 0.5)
    loud = np.abs(scene.samples) > 0
    assert loud.sum() / SAMPLE_RATE <= sum(len(each.samples) for each in cast) / SAMPLE_RATE
    assert scene.samples.max() <= 1


def test_voices_of_a_conversation_take_turns(tmp_path):
    for name, seconds in {"A-0": 2.0, "A-1": 3.0, "A-2": 2.0, "B-0": 2.5}.items():
        (tmp_path / name).write_bytes(wav_file(speech(seconds), SAMPLE_RATE))
    scene = conversation(tmp_path, lambda samples: [Word("x", 0.0, len(samples) / SAMPLE_RATE)])
    assert [word.speaker for word in scene.words] == ["A", "B", "A", "A"]
    for one, two in pairwise(scene.words):
        shorter = min(one.end - one.start, two.end - two.start)
        assert one.end - two.start == pytest.approx(shorter / 4, abs=1e-3)


def test_speakers_of_a_split_are_always_the_same():
    names = [str(number) for number in range(1000)]
    shares = {
        split: sum(split_of(name) == split for name in names) for split in ("train", "dev", "test")
    }
    assert sum(shares.values()) == 1000
    assert 550 < shares["train"] < 650
    assert [split_of(name) for name in ("103", "1034", "1081")] == ["train", "train", "test"]


def test_words_that_were_not_found_lie_between_their_neighbours():
    found = [Word(" b", 1.0, 2.0), Word(" x", 2.0, 2.5), Word(" d", 3.0, 4.0)]
    assert timed(["a", "b", "c", "d", "e"], found, 0.0, 8.0) == [
        Word("a", 0.5, 1.0),
        Word("b", 1.0, 2.0),
        Word("c", 2.0, 3.0),
        Word("d", 3.0, 4.0),
        Word("e", 5.5, 6.0),
    ]


def test_a_diarizer_with_a_kept_result_returns_it():
    own, kept = Diarization((), ()), Diarization(TRUE, TRUE)
    diarizer = GivenTurns(SimpleNamespace(diarize=lambda *_: own, embed=len))
    assert diarizer.diarize(None, SpeakerHints()) is own
    diarizer.found = kept
    assert diarizer.diarize(None, SpeakerHints()) is kept
    assert diarizer.embed("ab") == 2
