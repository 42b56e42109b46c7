"""The benchmark of real conversations: a folder is read, errors are those counted by hand, clips
are cut from stretches of one speaker, and the page shows the kept results."""

import json

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import harness
from benchmarks.options import read_bench, run
from benchmarks.real.manifest import Recording
from benchmarks.report import read
from benchmarks.voices import naming
from benchmarks.voices.answers import OURS as OUR_RULE
from benchmarks.voices.answers import WHISPERX, Answer, whisperx_rule
from benchmarks.voices.bench import ENDPOINT, ESTIMATED, OURS, STOCK, TOLD
from benchmarks.voices.conversations import Conversation, load_conversations
from benchmarks.voices.scoring import count_voices, diarization_parts, score_words, spoken_alone
from config import DEMO_MODELS
from tests.support.dialogue import Style, draw_dialogue
from tests.support.sounds import silence
from tests.support.speech import Voice
from whosaid.diarization.diarizer import Diarization
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word

TRUE = (SpeakerTurn("A", 0.0, 4.0), SpeakerTurn("B", 3.0, 8.0))


def rttm(turns):
    line = "SPEAKER x 1 {:.3f} {:.3f} <NA> <NA> {} <NA> <NA>\n"
    return "".join(line.format(turn.start, turn.end - turn.start, turn.speaker) for turn in turns)


def folder_of(folder, **recordings):
    """Write a manifest of these recordings: samples, turns and the other fields of each entry."""
    entries = {}
    for name, (samples, turns, more) in recordings.items():
        soundfile.write(folder / f"{name}.flac", samples, SAMPLE_RATE)
        (folder / f"{name}.rttm").write_text(rttm(turns))
        entries[name] = {"file": f"{name}.flac", "rttm": f"{name}.rttm", **more}
    (folder / "manifest.json").write_text(json.dumps(entries))
    return folder


def test_recordings_without_turns_are_skipped(tmp_path):
    entry = (silence(8), TRUE, {"words": {"A": "a T_V_"}, "language": "de"})
    folder = folder_of(tmp_path, talk=entry, unknown=(silence(1), (), {}))
    (talk,) = load_conversations(folder)
    assert (talk.name, talk.turns, talk.words, talk.speakers) == ("talk", TRUE, {"A": "a TV"}, 2)
    assert talk.recording == Recording(folder / "talk.flac", "de")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "should be an object with recordings by their names"),
        ({"a": {"file": "a.flac"}}, "a should have paths called file and rttm"),
        ({"a": "a.flac"}, "a should have paths called file and rttm"),
        ({"a": {"file": "a.flac", "rttm": "b.rttm"}}, "a: No such file or directory: b.rttm"),
        ({"a": {"file": "b.flac", "rttm": "a.rttm"}}, "there is no b.flac"),
    ],
)
def test_a_wrong_folder_is_one_line(entries, said, tmp_path):
    (tmp_path / "a.rttm").touch()
    (tmp_path / "manifest.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=said) as raised:
        load_conversations(tmp_path)
    assert "\n" not in str(raised.value)


def test_errors_of_turns_are_those_counted_by_hand():
    """Eight seconds hold 9 s of speech, 1 s of which overlaps. The first speaker is confused with
    the second for 1 s, one of the overlapping voices is missed, and half a second after the end is
    invented."""
    found = [SpeakerTurn("X", 0.0, 3.0), SpeakerTurn("Y", 3.0, 8.5)]
    expected = {"missed": 1.0, "false_alarm": 0.5, "confusion": 0.0, "total": 9.0}
    assert diarization_parts(TRUE, found, 9.0) == pytest.approx(expected)
    swapped = [SpeakerTurn("X", 0.0, 8.0)]
    expected = {"missed": 1.0, "false_alarm": 0.0, "confusion": 3.0, "total": 9.0}
    assert diarization_parts(TRUE, swapped, 9.0) == pytest.approx(expected)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 9), st.integers(1, 5))))
def test_a_voice_is_counted_if_it_speaks_alone(drawn):
    turns = [SpeakerTurn(who, start, start + length) for who, start, length in drawn]
    speaking = [{turn.speaker for turn in turns if turn.start <= s < turn.end} for s in range(15)]
    alone = {who for each in speaking if len(each) == 1 for who in each}
    assert count_voices(turns) == len(alone)


TIMES = st.tuples(st.integers(0, 30), st.integers(1, 8))


@given(st.lists(st.tuples(st.sampled_from("AB"), TIMES), max_size=6), st.lists(TIMES, max_size=6))
def test_a_word_belongs_to_its_only_speaker(turns, words):
    turns = [SpeakerTurn(who, start, start + length) for who, (start, length) in turns]
    words = [Word("a", start, start + length) for start, length in words]
    for place, word in enumerate(words):
        seconds = range(int(word.start), int(word.end))
        during = [each for at in seconds for each in turns if each.start <= at < each.end]
        heard = {turn.speaker for turn in during}
        expected = heard.pop() if len(heard) == 1 else None
        assert spoken_alone(words, turns).get(place) == expected


def test_words_are_scored_by_every_rule():
    """Five words; one of them is spoken over another voice, and one has the wrong voice."""
    texts = ["red", "green", "blue", "colour", "grey"]
    words = tuple(
        Word(f" {text}", 0.5 + 1.5 * place, 1.0 + 1.5 * place, "X" if place < 3 else "Y")
        for place, text in enumerate(texts)
    )
    words = (*words[:2], Word(" blue", 3.2, 3.7, "X"), Word(" colour", 5.0, 5.5, "X"), words[4])
    conversation = Conversation("talk", Recording("talk.flac", "en"), TRUE)
    scored = score_words(conversation, Answer(words, TRUE))
    assert scored == {OUR_RULE: {"errors": 1, "total": 4}, WHISPERX: {"errors": 0, "total": 4}}


@pytest.mark.parametrize(
    ("start", "end", "speaker"), [(0.4, 0.7, "A"), (1.8, 2.4, "B"), (1.9, 2.2, None)]
)
def test_whisperx_gives_words_by_summed_overlap(start, end, speaker):
    turns = [SpeakerTurn("A", 0, 0.5), SpeakerTurn("A", 0.6, 1.9), SpeakerTurn("B", 2.2, 3)]
    assert whisperx_rule([Word(" a", start, end)], turns)[0].speaker == speaker


TURN = st.tuples(st.sampled_from("ABC"), st.integers(0, 20), st.integers(1, 14))
TURNS = st.lists(TURN, max_size=6)


@given(TURNS)
def test_clips_are_cut_where_one_person_speaks_alone(drawn):
    turns = [SpeakerTurn(who, start, start + length) for who, start, length in drawn]
    seconds = range(40)
    alone = {at: {each.speaker for each in turns if each.start <= at < each.end} for at in seconds}
    for person, (start, end) in naming.longest_alone(turns).items():
        assert 3 <= end - start <= 10
        assert all(alone[second] == {person} for second in range(int(start), int(end)))


@given(TURNS, st.integers(0, 30), st.integers(1, 6))
def test_a_cut_removes_its_seconds_of_speech(drawn, start, length):
    turns = [SpeakerTurn(who, first, first + more) for who, first, more in drawn]
    end = start + length
    left = sorted(
        second if second < start else second - length
        for turn in turns
        for second in range(int(turn.start), int(turn.end))
        if not start <= second < end
    )
    found = naming.cut_out(turns, (start, end))
    assert sorted(s for turn in found for s in range(int(turn.start), int(turn.end))) == left


def test_clips_name_people_but_no_strangers():
    """Ann and Bob talk in both recordings, Cid in the second alone, Dot in neither. Everybody
    sounds like themselves and like nobody else."""
    axes = dict(zip("abcd", np.eye(4), strict=True))
    first = (SpeakerTurn("a", 0.0, 8.0), SpeakerTurn("b", 8.0, 10.0), SpeakerTurn("b", 11, 15))
    second = (SpeakerTurn("a", 0.0, 6.0), SpeakerTurn("b", 6.0, 9.0), SpeakerTurn("c", 9, 15))
    turns = {"one": first, "two": second}
    heard = []
    for name, spoken in turns.items():
        each = Conversation(name, Recording(name), spoken)
        samples = silence(15) + (name == "two")
        heard.append(naming.Heard(each, samples, naming.longest_alone(spoken)))
    vectors = {(each.conversation.name, who): axes[who] for each in heard for who in each.clips}
    vectors["", "dot"] = axes["d"]

    lengths = []

    def diarize(samples):
        spoken = turns["two" if samples[0] else "one"]
        lengths.append(len(samples) / SAMPLE_RATE)
        return Diarization(spoken, spoken, voices=axes)

    found = naming.name_everybody(heard, vectors, diarize, 0.5)
    assert list(found) == list(naming.KINDS)
    other = found[naming.OTHER]
    assert other["known"] == other["right"] == pytest.approx(8 + 6 + 6 + 3)
    assert other["strangers"] == pytest.approx(6)
    assert found[naming.SAME]["right"] > 0
    for tally in found.values():
        assert tally["wrong"] == tally["strangers_named"] == 0
    # All of it, and without the clip of who speaks elsewhere in it, too.
    assert lengths == [15, 11, 15]


@pytest.mark.reliability
@pytest.mark.slow
def test_the_command_measures_a_folder(tmp_path, monkeypatch, capsys):
    cast = [Voice("espeak", "f2", "en-us", 50, 160), Voice("espeak", "Andy", "en-us", 50, 150)]
    scene = draw_dialogue(cast, 9.0, Style(noise=1e-3), np.random.default_rng(3))
    folder = folder_of(tmp_path, dialogue=(scene.samples, scene.turns, {}))
    results = tmp_path / "build"
    monkeypatch.setattr(harness, "RESULTS", results)
    models = ["--pipeline", str(DEMO_MODELS / "diarization"), "--model", str(DEMO_MODELS / "asr")]
    asked = ["--quick", "--recordings", str(folder), *models]
    assert run(read_bench(["voices", *asked])) == 0
    (measured,) = read(results / "voices-quick.json")["recordings"]
    assert measured["turns"][ESTIMATED][STOCK] == measured["turns"][ESTIMATED][OURS]
    assert measured["turns"][TOLD][ENDPOINT]["strict"]["confusion"] < 1
    (folder / "manifest.json").write_text("{}")
    assert run(read_bench(["voices", *asked])) == 1
    assert "no recording has turns" in capsys.readouterr().err
