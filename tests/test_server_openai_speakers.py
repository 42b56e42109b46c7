"""Labels of speakers."""

import itertools
from dataclasses import replace
from string import ascii_uppercase
from types import SimpleNamespace

import pytest

from config import InferenceConfig
from tests.helpers.openai_answers import SPOKEN
from tests.helpers.renamed import renamed
from whosaid.answer.response import response
from whosaid.payload.parameters import Voice
from whosaid.server.openai_api.bodies import extras, json_body
from whosaid.server.openai_api.form import AudioRequest
from whosaid.server.openai_api.speakers import everyone_labelled, label, with_labels
from whosaid.transcript import Channel, SpeakerMatch, SpeakerSegment


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


def test_known_speakers_keep_names_and_others_get_letters():
    """The second speaker is called A by a client: the first one is B then."""
    told = (
        SpeakerMatch("A", "SPEAKER_00", 0.9, True),
        SpeakerMatch("Eve", "SPEAKER_01", 0.3, False),
        SpeakerMatch("Bob", "SPEAKER_00", 0.2, False),
        SpeakerMatch("Ann"),
    )
    named = renamed(replace(SPOKEN, known_speakers=told), {"SPEAKER_00": "A"})
    labelled = with_labels(named)
    assert [each.speaker for each in labelled.segments] == ["B", "A", None]
    assert [each.label for each in labelled.known_speakers] == ["A", "B", "A", None]
    asked = AudioRequest(SimpleNamespace(config=InferenceConfig()), "diarized_json")
    entries = extras(labelled, asked)["known_speakers"]
    assert entries[0] == {"name": "A", "label": "A", "similarity": 0.9, "matched": True}
    assert extras(SPOKEN, asked) == {}


def test_labels_do_not_change_the_cuts_of_subtitles():
    """A speaker's segments begin cues, also if nobody else speaks between them."""
    segments = [replace(each, speaker="S", voice="S") for each in SPOKEN.segments[:2]]
    transcript = replace(SPOKEN.transcript, chunks=SPOKEN.transcript.chunks[:2])
    answer = replace(SPOKEN, segments=segments, transcript=transcript)
    answer = renamed(answer, dict.fromkeys(("SPEAKER_00", "SPEAKER_01"), "S"))
    config = InferenceConfig.read({"output": ["srt"], "max_line_width": 40})
    files = [response(each, config)["output"]["srt"] for each in (answer, with_labels(answer))]
    assert files[0].count("S: ") == 2
    assert files[1] == files[0].replace("S: ", "A: ")


def test_voices_have_the_labels_of_the_answer():
    voice = Voice(model="Net-0", seconds=2.0, embedding="AAAAAA==")
    answer = replace(SPOKEN, voices={"SPEAKER_01": voice, "SILENT": voice})
    for wanted in ("verbose_json", "diarized_json"):
        asked = AudioRequest(SimpleNamespace(config=InferenceConfig(voices=True)), wanted)
        assert json_body(with_labels(answer), asked)["voices"] == {"A": voice.model_dump()}
    asked = AudioRequest(SimpleNamespace(config=InferenceConfig()), "diarized_json")
    assert "voices" not in json_body(answer, asked)
    assert "AAAA" not in repr(answer)


def test_channels_keep_their_names():
    named = renamed(SPOKEN, {"SPEAKER_01": "B"})
    labelled = with_labels(replace(named, channels=(Channel("B", "en", 1.0),)))
    assert [each.speaker for each in labelled.segments] == ["B", "A", None]


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
    assert everyone_labelled([SpeakerSegment(each, "", 0, 0) for each in speakers]) == labels
