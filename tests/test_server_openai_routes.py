"""OpenAI's own client against the server: bodies by the SDK's types, streams, errors."""

from __future__ import annotations

import dataclasses
import json
import re

import openai
import pytest
from openai.types.audio import (
    Transcription,
    TranscriptionDiarized,
    TranscriptionStreamEvent,
    TranscriptionVerbose,
    Translation,
    TranslationVerbose,
)
from openai_answers import SILENT, SPOKEN, KnownAnswers, openai_client
from pydantic import TypeAdapter
from renamed import renamed

from tests.support.audio_files import speech
from whosaid.errors import InvalidAudio, ModelError, OutOfMemory
from whosaid.server.errors import Kind, Refusal
from whosaid.transcript import KnownSpeaker, Unspoken

SOUND = ("talk.wav", b"never decoded", "audio/wav")
TEXT = "Good morning. Yes! Hm."
TYPES = {
    "json": Transcription,
    "verbose_json": TranscriptionVerbose,
    "diarized_json": TranscriptionDiarized,
}
STREAMED = TypeAdapter(TranscriptionStreamEvent)


@pytest.fixture(scope="module")
def endpoint(tiny_endpoint) -> KnownAnswers:
    return KnownAnswers(tiny_endpoint, speakers=True)


@pytest.fixture(scope="module")
def client(endpoint):
    with openai_client(endpoint) as client:
        yield client


@pytest.fixture(autouse=True)
def an_answer(endpoint):
    endpoint.give()


def ask(client, **fields):
    return client.audio.transcriptions.create(file=SOUND, model="whisper-1", **fields)


def raw(client, response_format, **fields):
    asked = {"response_format": response_format, **fields}
    return client.audio.transcriptions.with_raw_response.create(
        file=SOUND, model="whisper-1", **asked
    )


def streamed(client, **fields):
    """The events, each checked by the SDK's types, which the SDK itself does not do."""
    events = [event.to_dict() for event in ask(client, stream=True, **fields)]
    for event in events:
        STREAMED.validate_python(event, strict=True)
    return events


def joined(entries):
    """The text of tokens; the SDK types their bytes as floats."""
    raw = bytes(int(byte) for each in entries for byte in each.bytes)
    return raw.decode(errors="replace")


@pytest.mark.parametrize("answer", [SPOKEN, SILENT], ids=["speech", "silence"])
@pytest.mark.parametrize("response_format", TYPES)
def test_a_json_body_is_of_the_sdks_type(client, endpoint, response_format, answer):
    endpoint.give(answer)
    granularities = ["word", "segment"] if response_format == "verbose_json" else openai.omit
    given = raw(client, response_format, timestamp_granularities=granularities)
    assert given.headers["content-type"] == "application/json"
    TYPES[response_format].model_validate_json(given.text, strict=True)
    assert isinstance(given.parse(), TYPES[response_format])
    assert None not in json.loads(given.text).values()


@pytest.mark.parametrize("response_format", ["text", "srt", "vtt"])
def test_text_formats_are_no_json(client, endpoint, response_format):
    endpoint.give(dataclasses.replace(SPOKEN, segments=None, turns=None))
    given = raw(client, response_format)
    kind = "text/vtt" if response_format == "vtt" else "text/plain"
    assert given.headers["content-type"] == f"{kind}; charset=utf-8"
    assert given.parse() == given.text
    lines = re.sub(r"^(WEBVTT|.* --> .*|\d+)$", "", given.text, flags=re.MULTILINE)
    assert lines.split() == TEXT.split()


def test_subtitles_name_speakers_where_they_are_asked_for(client, endpoint):
    assert "A: Good morning." in ask(client, response_format="srt", extra_body={"diarize": True})
    assert endpoint.asked.config.diarize
    assert "<v B>Yes!" in ask(client, response_format="vtt", extra_body={"num_speakers": 2})
    assert endpoint.asked.config.num_speakers == 2
    endpoint.give()
    ask(client, response_format="srt")
    assert not endpoint.asked.config.diarize


def test_verbose_json(client, endpoint):
    given = ask(client, response_format="verbose_json").to_dict()
    assert "words" not in given
    segments = given.pop("segments")
    assert given == {
        "task": "transcribe",
        "language": "english",
        "duration": 31.5,
        "text": TEXT,
        "usage": {"type": "duration", "seconds": 31.5},
        "unwritten": [],
    }
    assert segments[2] == {
        "id": 2,
        "seek": 3002,
        "start": 30.5,
        "end": 31.2,
        "text": " Hm.",
        "tokens": [304],
        "temperature": 0.5,
        "avg_logprob": -0.5,
        "compression_ratio": 0.0,
        "no_speech_prob": 0.25,
    }


def test_every_diarized_segment_has_a_speaker_by_letter(client, endpoint):
    given = ask(client, response_format="diarized_json")
    assert (given.task, given.duration, given.text) == ("transcribe", 31.5, TEXT)
    assert [
        (each.id, each.speaker, each.text, each.start, each.end) for each in given.segments
    ] == [
        ("seg_000", "A", " Good morning.", 0.1, 1.0),
        ("seg_001", "B", " Yes!", 1.5, 2.0),
        ("seg_002", "B", " Hm.", 30.5, 31.0),
    ]
    assert endpoint.asked.config.diarize


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_translations(client, endpoint):
    ask_for = client.audio.translations.with_raw_response.create
    given = ask_for(file=SOUND, model="whisper-1", prompt="A talk.")
    assert json.loads(given.text) == {"text": TEXT}
    Translation.model_validate_json(given.text, strict=True)
    assert (endpoint.asked.config.task, endpoint.asked.config.prompt) == ("translate", "A talk.")
    verbose = ask_for(file=SOUND, model="whisper-1", response_format="verbose_json")
    TranslationVerbose.model_validate_json(verbose.text, strict=True)
    assert {*json.loads(verbose.text)} == {
        "task",
        "language",
        "duration",
        "text",
        "segments",
        "unwritten",
    }
    assert verbose.parse().language == "english"
    with pytest.raises(openai.BadRequestError) as refused:
        ask_for(file=SOUND, model="whisper-1", response_format="diarized_json")
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("response_format", ["json", "text", "srt", "vtt", "verbose_json"])
def test_a_stream_is_deltas_and_the_whole(client, response_format):
    events = streamed(client, response_format=response_format)
    *deltas, done = events
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert [each["delta"] for each in deltas] == ["Good morning.", " Yes!", " Hm."]
    assert (done["type"], done["text"]) == ("transcript.text.done", TEXT)
    assert done["usage"]["output_tokens"] == 4
    if response_format in ("srt", "vtt"):
        assert done[response_format] == ask(client, response_format=response_format)
    if response_format == "verbose_json":
        whole = ask(client, response_format=response_format).to_dict()
        assert done["segments"] == whole["segments"]


def test_a_diarized_stream_has_its_segments_before_the_whole(client):
    events = streamed(client, response_format="diarized_json")
    kinds = [event["type"].removeprefix("transcript.text.") for event in events]
    assert kinds == ["delta"] * 3 + ["segment"] * 3 + ["done"]
    segments = ask(client, response_format="diarized_json").to_dict()["segments"]
    assert events[3:6] == segments


def test_log_probabilities_are_streamed(client):
    *deltas, done = streamed(client, include=["logprobs"])
    assert [entry for each in deltas for entry in each["logprobs"]] == done["logprobs"]
    assert done["logprobs"] == ask(client, include=["logprobs"]).to_dict()["logprobs"]


def test_silence_streams_an_empty_delta_and_an_empty_text(client, endpoint):
    endpoint.give(SILENT)
    delta, done = streamed(client)
    assert (delta["delta"], done["text"], done["languages"]) == ("", "", [])


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_wrong_before_the_answer_begins_has_its_status(client, endpoint, stream):
    endpoint.give(error=InvalidAudio("no sound"), decodes=False)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, stream=stream)
    error = refused.value
    assert (error.code, error.param, error.type) == (
        "INVALID_AUDIO",
        "file",
        "invalid_request_error",
    )
    assert error.request_id
    assert error.body["message"] == "INVALID_AUDIO: no sound"


def test_what_goes_wrong_midway_is_raised_by_the_stream(client, endpoint):
    endpoint.give(error=ModelError("the model failed"))
    stream = iter(ask(client, stream=True))
    assert next(stream).delta == "Good morning."
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert (raised.value.message, raised.value.code, raised.value.type) == (
        "MODEL_ERROR: the model failed",
        "MODEL_ERROR",
        "server_error",
    )


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Refusal(Kind.BUSY, "full", retry_after=3), openai.RateLimitError, "BUSY"),
        (OutOfMemory("too large"), openai.InternalServerError, "OUT_OF_MEMORY"),
        (ValueError("/a/secret/path"), openai.InternalServerError, "MODEL_ERROR"),
    ],
)
def test_errors_are_the_sdks(client, endpoint, error, kind, code):
    endpoint.give(error=error, decodes=False)
    with pytest.raises(kind) as raised:
        ask(client)
    assert raised.value.code == code
    assert "secret" not in str(raised.value)


def test_warnings_reach_the_client_in_every_format(client, endpoint):
    fields = {"extra_body": {"assisted": True, "num_beams": 2}}
    endpoint.give(dataclasses.replace(SPOKEN, warnings=("careful: \u00fc",)))
    assert ask(client, **fields).to_dict()["warnings"] == ["careful: \u00fc"]
    assert raw(client, "text").headers["x-warnings"] == r"careful: \xfc"
    assert streamed(client)[-1]["warnings"] == ["careful: \u00fc"]
    assert endpoint.asked.options.decode.num_beams == 1


@pytest.mark.parametrize("response_format", [*TYPES, "text", "srt", "vtt"])
def test_what_nobody_says_of_a_text_is_told_in_every_format(client, endpoint, response_format):
    transcript = dataclasses.replace(SPOKEN.transcript, unspoken=(Unspoken((" So",), 3),))
    endpoint.give(dataclasses.replace(SPOKEN, transcript=transcript))
    told = [{"text": " So", "words_before": 3, "timestamp": [2.0, 30.5]}]
    fields = {"extra_body": {"text": "Good morning. Yes! So Hm."}}
    given = raw(client, response_format, **fields)
    if response_format in TYPES:
        assert json.loads(given.text)["unspoken"] == told
        assert "unspoken" not in json.loads(raw(client, response_format).text)
    else:
        warning = "text: not all is spoken; json lists 1 as unspoken"
        assert given.headers["x-warnings"] == warning
    events = streamed(client, response_format=response_format, **fields)
    assert events[-1]["unspoken"] == told


def test_models(client, endpoint):
    (only,) = client.models.list().data
    assert (only.object, only.owned_by, type(only.created)) == ("model", "local", int)
    assert client.models.retrieve(only.id) == client.models.retrieve("whisper-1") == only
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("owner/another")
    assert (refused.value.code, refused.value.param) == ("MODEL_NOT_FOUND", "model")
    told = refused.value.body["message"]
    assert "owner/another is not loaded; this server has" in told
    assert "send that name, whisper-1, or none" in told


@pytest.fixture(scope="module")
def true_client(tiny_endpoint):
    with openai_client(tiny_endpoint) as client:
        yield client


def test_every_format_tells_what_the_model_said(true_client, tiny_handler, wav):
    sound = wav(speech(4.0))
    config = {"language": "en"}
    truth = tiny_handler({"inputs": sound, "parameters": config})

    def create(**fields):
        return true_client.audio.transcriptions.create(
            file=sound, model="whisper-1", language="en", **fields
        )

    assert truth["text"].strip()
    assert create().text == create(response_format="text") == truth["text"].strip()
    verbose = create(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    TranscriptionVerbose.model_validate(verbose.to_dict(), strict=True)
    assert [each.text for each in verbose.segments] == [each["text"] for each in truth["chunks"]]
    assert {each.seek for each in verbose.segments} > {0}
    tokenizer = tiny_handler.endpoint.recogniser.transcriber.models.tokenizer
    for segment in verbose.segments:
        assert tokenizer.decode(segment.tokens) == segment.text
    *deltas, done = create(stream=True)
    assert "".join(each.delta for each in deltas) == done.text == truth["text"].strip()
    assert joined(create(include=["logprobs"]).logprobs) == truth["text"]


def test_the_sdks_clips_reach_the_service_and_names_the_client(client, endpoint):
    told = (KnownSpeaker("Anna", "SPEAKER_01", 0.9, True), KnownSpeaker("Eve", "SPEAKER_00", 0.1))
    named = renamed(dataclasses.replace(SPOKEN, known_speakers=told), {"SPEAKER_01": "Anna"})
    endpoint.give(named)
    asked = {
        "response_format": "diarized_json",
        "known_speaker_names": ["Anna", "Eve"],
        "known_speaker_references": ["data:audio/wav;base64,AAAA", "data:audio/wav;base64,BBBB"],
    }
    answer = ask(client, **asked)
    assert [each.speaker for each in answer.segments] == ["Anna", "A", "A"]
    assert [each["label"] for each in answer.known_speakers] == ["Anna", "A"]
    clips = endpoint.asked.config.known_speakers
    assert [(clip.name, clip.reference[-4:]) for clip in clips] == [
        ("Anna", "AAAA"),
        ("Eve", "BBBB"),
    ]
    *_, done = streamed(client, **asked)
    assert [each["matched"] for each in done["known_speakers"]] == [True, False]
