"""What of a live session's events a client is sent, by what its session includes."""

from __future__ import annotations

import pytest

from whosaid.errors import ModelError
from whosaid.live.events import Cadence, Failed, Segment, SpeakersFound, Words
from whosaid.server.realtime.server_events import EventEncoder, error_event
from whosaid.server.realtime.session_config import LOGPROBS, SEGMENTS, WORDS
from whosaid.transcript import KnownSpeaker, Word

WORD = Word(" yes", 1.004, 1.256, probability=0.123456)
FOUND = SpeakersFound((KnownSpeaker("Ann", "A", 0.87654, True),), ("told once",))
OURS = [
    (WORDS, Words("item", (WORD,), " and"), "conversation.item.input_audio_transcription.words"),
    (WORDS, Cadence(0.333), "session.cadence"),
    (SEGMENTS, FOUND, "session.speakers"),
    (
        SEGMENTS,
        Segment("item", "s1", " yes", "A", 1.004, 1.256),
        "conversation.item.input_audio_transcription.segment",
    ),
]


def fields(message):
    assert message.pop("event_id").startswith("event_")
    return message


@pytest.mark.parametrize(("include", "event", "kind"), OURS)
def test_what_was_not_asked_for_is_not_sent(include, event, kind):
    others = {WORDS, SEGMENTS, LOGPROBS} - {include}
    assert EventEncoder(others, None).message(event) is None
    assert EventEncoder({include}, None).message(event)["type"] == kind


def test_times_have_two_decimals_and_probabilities_four():
    told = EventEncoder({WORDS, SEGMENTS}, None)
    words, cadence, speakers, segment = (told.message(event) for _, event, _ in OURS)
    said = {"word": " yes", "start": 1.0, "end": 1.26, "probability": 0.1235, "speaker": None}
    assert words["words"] == [said]
    assert cadence["seconds"] == 0.33
    assert (segment["start"], segment["end"]) == (1.0, 1.26)
    assert speakers["known_speakers"][0]["name"] == "Ann"
    assert speakers["warnings"] == ["told once"]


def test_an_error_is_told_of_the_item_or_of_the_event_that_caused_it():
    of_item = EventEncoder((), None).message(Failed("item", ModelError("not this time")))
    of_event = error_event(ModelError("not this time"), "mine")
    assert of_item["error"]["code"] == of_event["error"]["code"] == "MODEL_ERROR"
    assert (of_item["item_id"], of_event["error"]["event_id"]) == ("item", "mine")
