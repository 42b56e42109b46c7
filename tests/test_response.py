"""The response against the contract, whatever the models returned."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import InferenceConfig
from diarization_utils import speaker_segments
from whosaid.answer.attribution import attributed
from whosaid.answer.formats import FORMATS
from whosaid.answer.response import Answer, clamp_times, response
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.transcript import (
    Chunk,
    SpeakerMatch,
    SpeakerSegment,
    SpeakerTurn,
    Transcript,
    Unspoken,
    Unwritten,
    Word,
)

MORNING = Word(" morning", 0.2, 0.4, "SPEAKER_00", 0.75)
YES = Word(" yes", 0.5, 0.9, "SPEAKER_01", 0.5, overlap=True)
WORDS = (Word(" good", 0.0, 0.2, "SPEAKER_00", 0.9), MORNING, YES)
GREETING = Chunk(" good morning", 0.0, 0.4, -0.12345, 0.01, WORDS[:2])
CHUNKS = (GREETING, Chunk(" yes", 0.5, 0.9, -0.5, 0.25, WORDS[2:]))
FIRST = SpeakerSegment("SPEAKER_00", " good morning", 0.0, 0.4, WORDS[:2])
SEGMENTS = (FIRST, SpeakerSegment("SPEAKER_01", " yes", 0.5, 0.9, WORDS[2:]))
TURNS = (SpeakerTurn("SPEAKER_00", 0.0, 0.45), SpeakerTurn("SPEAKER_01", 0.45, 1.0))
TRANSCRIPT = Transcript(CHUNKS, "en", language_probability=0.98765)
WITH_SPEAKERS = Answer(1.0, TRANSCRIPT, SEGMENTS, TURNS, ("careful",))


def answered(answer: Answer = WITH_SPEAKERS, **parameters: object) -> dict[str, object]:
    return response(answer, InferenceConfig.read(parameters))


def test_the_answer_has_the_documented_form():
    assert answered() == {
        "speakers": [
            {"speaker": "SPEAKER_00", "text": " good morning", "timestamp": [0.0, 0.4]},
            {"speaker": "SPEAKER_01", "text": " yes", "timestamp": [0.5, 0.9]},
        ],
        "chunks": [
            {
                "text": " good morning",
                "timestamp": [0.0, 0.4],
                "avg_logprob": -0.1235,
                "no_speech_prob": 0.01,
            },
            {"text": " yes", "timestamp": [0.5, 0.9], "avg_logprob": -0.5, "no_speech_prob": 0.25},
        ],
        "text": " good morning yes",
        "language": "en",
        "language_probability": 0.9877,
        "duration": 1.0,
        "warnings": ["careful"],
        "unwritten": [],
    }


def test_words_are_listed_under_their_speakers():
    answer = answered(return_timestamps="word")
    good, morning, yes = (
        {
            "word": word.text,
            "timestamp": [word.start, word.end],
            "probability": word.probability,
            "speaker": word.speaker,
            "overlap": word.overlap,
        }
        for word in WORDS
    )
    assert answer["words"] == [good, morning, yes]
    assert [segment["words"] for segment in answer["speakers"]] == [[good, morning], [yes]]
    assert "".join(word["word"] for word in answer["words"]) == answer["text"]


def test_words_have_no_speaker_without_diarization():
    answer = answered(Answer(1.0, TRANSCRIPT), return_timestamps="word")
    assert [set(word) for word in answer["words"]] == [{"word", "timestamp", "probability"}] * 3
    assert answer["speakers"] == []


@pytest.mark.parametrize(("wanted", "chunks"), [(True, 2), ("segment", 2), ("word", 2), (False, 0)])
def test_chunks_are_empty_without_timestamps(wanted, chunks):
    answer = answered(return_timestamps=wanted)
    assert len(answer["chunks"]) == chunks
    assert ("words" in answer) == (wanted == "word")


def test_every_requested_output_is_a_text():
    answer = answered(output=list(FORMATS))
    assert set(answer["output"]) == set(FORMATS)
    assert answer["output"]["txt"] == "SPEAKER_00: good morning\nSPEAKER_01: yes\n"
    # The last cue appears before its first word, or it could not be read before the audio ends.
    assert "00:00:00,400 --> 00:00:01,000" in answer["output"]["srt"]
    assert answer["output"]["rttm"].count("\n") == len(TURNS)


def test_only_multilingual_answers_have_languages():
    german = Word(" ja", 0.5, 0.9, "SPEAKER_00", 0.5, language="de")
    words = [Word(" good", 0.0, 0.2, "SPEAKER_00", 0.9, language="en"), german]
    chunks = tuple(
        Chunk(word.text, word.start, word.end, words=(word,), language=word.language)
        for word in words
    )
    both = Answer(1.0, Transcript(chunks, "en"), speaker_segments(chunks), ())
    told = answered(both, multilingual=True, return_timestamps="word")
    for key in ("chunks", "words", "speakers"):
        assert [entry["language"] for entry in told[key]] == ["en", "de"], key
    assert [entry["words"][0]["language"] for entry in told["speakers"]] == ["en", "de"]
    untold = answered(both, return_timestamps="word")
    for key in ("chunks", "words", "speakers"):
        for entry, without in zip(told[key], untold[key], strict=True):
            entry.pop("language")
            for word in entry.get("words", ()):
                word.pop("language")
            assert entry == without


def test_unspoken_text_is_answered_with_its_place():
    unspoken = (Unspoken((" Oh,", " a"), 0), Unspoken((" rainy",), 1), Unspoken((" sir.",), 3))
    answer = replace(WITH_SPEAKERS, transcript=replace(TRANSCRIPT, unspoken=unspoken))
    for wanted in (True, False, "word"):
        assert answered(answer, text="Oh, ...", return_timestamps=wanted)["unspoken"] == [
            {"text": " Oh, a", "words_before": 0, "timestamp": [0.0, 0.0]},
            {"text": " rainy", "words_before": 1, "timestamp": [0.2, 0.2]},
            {"text": " sir.", "words_before": 3, "timestamp": [0.9, 1.0]},
        ]
    assert answered(text="good morning yes")["unspoken"] == []
    assert "unspoken" not in answered()


def test_known_speakers_are_answered_if_given():
    told = (SpeakerMatch("Anna", "SPEAKER_00", 0.123456, True), SpeakerMatch("Bob"))
    body = answered(replace(WITH_SPEAKERS, known_speakers=told))
    anna = {"name": "Anna", "label": "SPEAKER_00", "similarity": 0.1235, "matched": True}
    bob = {"name": "Bob", "label": None, "similarity": None, "matched": False}
    assert body["known_speakers"] == [anna, bob]
    assert "known_speakers" not in answered()


def test_silence_is_an_empty_response():
    silence = Answer(2.0, Transcript((), None), (), ())
    expected = {key: [] for key in ("speakers", "chunks", "words", "warnings", "unwritten")}
    expected |= dict.fromkeys(("language", "language_probability"))
    expected |= {"text": "", "output": {"srt": ""}, "duration": 2.0}
    assert answered(silence, return_timestamps="word", output=["srt"]) == expected


def test_speech_without_words_has_its_channel():
    unwritten = (Unwritten(1.004, 2.5), Unwritten(3.0, 4.2, channel=1))
    answer = answered(Answer(4.1, Transcript((), "en", unwritten=unwritten)))
    channels = [{"start": 1.0, "end": 2.5}, {"start": 3.0, "end": 4.1, "channel": 1}]
    assert answer["unwritten"] == channels


spans = st.lists(st.tuples(st.floats(), st.floats()), max_size=20)
durations = st.floats(0, 1e5).map(lambda seconds: round(seconds, 2))


@given(spans, spans, durations, st.sampled_from(["word", True]))
def test_times_are_finite_monotone_rounded_and_within_the_audio(outer, inner, duration, wanted):
    words = tuple(Word(" a", *span, "S") for span in inner)
    chunks = tuple(Chunk(" a" * len(words) * (not at), *span) for at, span in enumerate(outer))
    segments = tuple(
        SpeakerSegment("S", " a", *span, words=words if place == 0 else ())
        for place, span in enumerate(outer)
    )
    given = Answer(duration, Transcript(chunks, "en"), segments, ())
    answer = answered(given, return_timestamps=wanted, output=["srt"])
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for entries in (answer["speakers"], answer["chunks"], answer.get("words", [])):
        times = [time for entry in entries for time in entry["timestamp"]]
        assert all(math.isfinite(time) and 0 <= time <= duration for time in times)
        assert times == sorted(round(time, 2) for time in times)
        shortest = min(0.02, math.floor(100 * duration / max(1, len(entries))) / 100)
        for start, end in (entry["timestamp"] for entry in entries):
            assert round(end - start, 2) >= shortest


@given(
    spans,
    st.lists(st.tuples(st.sampled_from("AB"), st.floats(), st.floats()), max_size=20),
    durations,
)
def test_times_in_files_are_within_the_audio(inner, spoken, duration):
    words = tuple(Word(" a.", *span, "S") for span in inner)
    segments = (SpeakerSegment("S", " a." * len(words), 0.0, duration, words),) if words else ()
    turns = tuple(SpeakerTurn(*turn) for turn in spoken)
    answer = Answer(duration, Transcript((), "en"), segments, turns)
    files = answered(answer, output=["srt", "vtt", "rttm"])["output"]
    for form in ("srt", "vtt"):
        clocks = re.findall(r"(\d+):(\d\d):(\d\d)[,.](\d{3})", files[form])
        times = [((int(h) * 60 + int(m)) * 60 + int(s)) * 1000 + int(ms) for h, m, s, ms in clocks]
        assert files[form].count("a.") == len(words)
        assert times == sorted(times)
        assert all(time <= round(duration * 1000) for time in times)
    for line in files["rttm"].splitlines():
        start, length = (float(field) for field in line.split()[3:5])
        assert 0 <= start < start + length <= duration + 1e-6
        assert (start, length) == (round(start, 2), round(length, 2))


def test_words_without_duration_get_a_step():
    words = tuple(Word(" a", *span) for span in [(0.5, 0.5), (0.5, 0.5), (0.5, 0.8), (1.0, 1.0)])
    (chunk,) = clamp_times([Chunk(" a a a a", 0.5, 1.0, words=words)], 1.0)
    times = [(word.start, word.end) for word in chunk.words]
    assert times == [(0.5, 0.52), (0.52, 0.54), (0.54, 0.8), (0.98, 1.0)]


def test_turns_are_rounded_as_all_times_are():
    own = SpeakerTurn("A", 0.1234, 0.5678)
    turns = (own, SpeakerTurn("B", 0.2, 0.204), SpeakerTurn("B", 0.9, math.inf))
    answer = answered(Answer(1.004, TRANSCRIPT, SEGMENTS, turns), output=["rttm"])
    times = [line.split()[3:5] for line in answer["output"]["rttm"].splitlines()]
    assert times == [["0.120", "0.450"], ["0.900", "0.100"]]


@given(st.lists(st.integers(0, 9_900), max_size=20, unique=True).map(sorted))
def test_times_in_order_are_not_changed(hundredths):
    hundredths = [moment + 2 * place for place, moment in enumerate(hundredths)]
    moments = [moment / 100 for moment in hundredths]
    spans = zip(moments[::2], moments[1::2], strict=False)
    chunks = [Chunk("", *span, words=(Word("", *span),)) for span in spans]
    assert clamp_times(chunks, 100.0) == chunks


lengths = st.floats(0, 1.2)
uttered = st.lists(st.tuples(lengths, lengths), max_size=6)


@given(st.lists(uttered, min_size=2, max_size=3), st.floats(0.1, 1), st.booleans())
def test_text_of_channels_follows_the_order_of_chunks(channels, duration, by_speaker):
    """Times beyond the end of the audio become earlier ones."""
    heard = []
    for place, said in enumerate(channels):
        moments = sorted(moment for each in said for moment in each)
        times = zip(moments[::2], moments[1::2], strict=True)
        chunks = [Chunk(f" {place}-{n}", *each) for n, each in enumerate(times)]
        heard.append(Transcript(tuple(chunks), "en"))
    asked = {"return_timestamps": "word", "group_by_speaker": by_speaker}
    config = InferenceConfig.read({"channels": "separate", **asked})
    found = attributed(duration, heard, [None] * len(heard), KnownVoices(), config)
    answer = response(found, config)
    assert "".join(chunk["text"] for chunk in answer["chunks"]) == answer["text"]
    assert len(answer["text"].split()) == sum(map(len, channels))
    for key in ("chunks", "words", "speakers"):
        starts = [entry["timestamp"][0] for entry in answer[key]]
        assert starts == sorted(starts), key


def test_turn_of_a_channel_spans_short_pauses():
    words = (Word(" a", 1.0, 2.0), Word(" b", 2.5, 3.0), Word(" c", 3.51, 4.0))
    heard = Transcript((Chunk(" a b c", 1.0, 4.0, words=words),), "en")
    config = InferenceConfig.read({"channels": "separate"})
    found = attributed(5.0, [heard], [None], KnownVoices(()), config)
    assert [(each.start, each.end) for each in found.turns] == [(1.0, 3.0), (3.51, 4.0)]


def test_times_of_voices_may_overlap():
    chunks = [
        Chunk(" a b", 1.0, 3.0, words=(Word(" a", 1.0, 2.0), Word(" b", 2.0, 3.0)), voice="A"),
        Chunk(" c", 1.5, 2.5, words=(Word(" c", 1.5, 2.5),), voice="B"),
        Chunk(" d", 2.5, 3.5, words=(Word(" d", 2.5, 3.5),), voice="A"),
    ]
    *kept, last = clamp_times(chunks, 10.0)
    assert kept == chunks[:2]
    assert (last.start, last.words[0].start) == (3.0, 3.0)  # after what the same voice said
