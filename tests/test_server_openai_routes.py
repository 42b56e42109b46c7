"""OpenAI's own client against the server: bodies by the SDK's types, streams, errors."""

import dataclasses
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import openai
import pytest
from openai.types import audio
from pydantic import TypeAdapter
from tokenizers.pre_tokenizers import ByteLevel

from tests.helpers.live_app import serving
from tests.helpers.openai_answers import CHUNKS, SILENT, SPOKEN, KnownAnswers, openai_client
from tests.helpers.oracle import models_of
from tests.helpers.renamed import renamed
from tests.support.audio_files import speech
from tests.support.tiny_whispers import SMALL
from whosaid.errors import (
    InvalidAudio,
    InvalidParameter,
    InvalidReference,
    ModelError,
    OutOfMemory,
    Unsupported,
)
from whosaid.server.error_response import openai_error
from whosaid.server.errors import Kind, Refusal
from whosaid.server.openai_api.logprobs import token_logprobs
from whosaid.transcript import SpeakerMatch, Unspoken

SOUND = ("talk.wav", b"never decoded", "audio/wav")
TEXT = "Good morning. Yes! Hm."
TYPES = {"json": audio.Transcription, "verbose_json": audio.TranscriptionVerbose}
TYPES["diarized_json"] = audio.TranscriptionDiarized
STREAMED = TypeAdapter(audio.TranscriptionStreamEvent)
MODELS = models_of(SMALL)


@pytest.fixture(scope="module")
def endpoint() -> KnownAnswers:
    return KnownAnswers(speakers=True)


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
    create = client.audio.transcriptions.with_raw_response.create
    return create(file=SOUND, model="whisper-1", **asked)


def streamed(client, **fields):
    """Return the events, each checked by the SDK's types, which the SDK itself does not do."""
    events = [event.to_dict() for event in ask(client, stream=True, **fields)]
    for event in events:
        STREAMED.validate_python(event, strict=True)
    return events


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


def test_verbose_json(client):
    given = ask(client, response_format="verbose_json").to_dict()
    assert "words" not in given
    segments = given.pop("segments")
    usage = {"type": "duration", "seconds": 31.5}
    about = {"task": "transcribe", "language": "english", "duration": 31.5, "text": TEXT}
    assert given == about | {"usage": usage, "unwritten": []}
    said = {"id": 2, "seek": 3002, "start": 30.5, "end": 31.2, "text": " Hm.", "tokens": [304]}
    scores = {"temperature": 0.5, "avg_logprob": -0.5, "compression_ratio": 0.0}
    assert segments[2] == said | scores | {"no_speech_prob": 0.25}


def test_every_diarized_segment_has_a_speaker_by_letter(client, endpoint):
    given = ask(client, response_format="diarized_json")
    assert (given.task, given.duration, given.text) == ("transcribe", 31.5, TEXT)
    found = [(each.id, each.speaker, each.text, each.start, each.end) for each in given.segments]
    first = ("seg_000", "A", " Good morning.", 0.1, 1.0)
    second = ("seg_001", "B", " Yes!", 1.5, 2.0)
    assert found == [first, second, ("seg_002", "B", " Hm.", 30.5, 31.0)]
    assert endpoint.asked.config.diarize


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_translations(client, endpoint):
    ask_for = client.audio.translations.with_raw_response.create
    given = ask_for(file=SOUND, model="whisper-1", prompt="A talk.")
    assert json.loads(given.text) == {"text": TEXT}
    audio.Translation.model_validate_json(given.text, strict=True)
    assert (endpoint.asked.config.task, endpoint.asked.config.prompt) == ("translate", "A talk.")
    verbose = ask_for(file=SOUND, model="whisper-1", response_format="verbose_json")
    audio.TranslationVerbose.model_validate_json(verbose.text, strict=True)
    fields = "task language duration text segments unwritten"
    assert json.loads(verbose.text).keys() == {*fields.split()}
    assert verbose.parse().language == "english"
    with pytest.raises(openai.BadRequestError) as refused:
        ask_for(file=SOUND, model="whisper-1", response_format="diarized_json")
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("response_format", ["json", "text", "srt", "vtt", "verbose_json"])
def test_a_stream_is_deltas_and_the_whole(client, response_format):
    *deltas, done = streamed(client, response_format=response_format)
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert [each["delta"] for each in deltas] == ["Good morning.", " Yes!", " Hm."]
    assert (done["type"], done["text"]) == ("transcript.text.done", TEXT)
    assert done["usage"]["output_tokens"] == 4
    if response_format in ("srt", "vtt"):
        assert done[response_format] == ask(client, response_format=response_format)
    if response_format == "verbose_json":
        whole = ask(client, response_format=response_format).to_dict()
        assert done["segments"] == whole["segments"]


def test_a_diarized_stream_sends_segments_before_the_whole(client):
    events = streamed(client, response_format="diarized_json")
    kinds = [event["type"].removeprefix("transcript.text.") for event in events]
    assert kinds == ["delta"] * 3 + ["segment"] * 3 + ["done"]
    assert events[3:6] == ask(client, response_format="diarized_json").to_dict()["segments"]


def test_log_probabilities_are_streamed(client):
    *deltas, done = streamed(client, include=["logprobs"])
    assert [entry for each in deltas for entry in each["logprobs"]] == done["logprobs"]
    assert done["logprobs"] == ask(client, include=["logprobs"]).to_dict()["logprobs"]


@pytest.mark.parametrize(
    "text", [" Good morning", "\u00fcber \u6f22\u5b57 \U0001f600", "\n\t\x00\xad\xa0"]
)
def test_bytes_are_those_that_the_tokenizer_writes(text):
    writer = ByteLevel(add_prefix_space=False, use_regex=False)
    ((written, _),) = writer.pre_tokenize_str(text)
    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda _: [written])
    assert replace(MODELS, tokenizer=tokenizer).bytes_of([0]) == [text.encode()]


def test_every_token_has_an_entry_in_order():
    entries, tokenizer = token_logprobs(CHUNKS, MODELS.bytes_of), MODELS.tokenizer
    assert [each["logprob"] for each in entries] == [-0.5, -0.25, -1.0, -2.0]
    assert [each["token"] for each in entries] == [tokenizer.decode([n]) for n in range(301, 305)]
    assert all(bytes(each["bytes"]).decode() == each["token"] for each in entries)


def test_silence_streams_an_empty_delta_and_an_empty_text(client, endpoint):
    endpoint.give(SILENT)
    delta, done = streamed(client)
    assert (delta["delta"], done["text"], done["languages"]) == ("", "", [])


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_answer_has_its_status(client, endpoint, stream):
    endpoint.give(error=InvalidAudio("no sound"), decodes=False)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, stream=stream)
    error = refused.value
    assert (error.code, error.param) == ("INVALID_AUDIO", "file")
    assert error.type == "invalid_request_error"
    assert error.request_id
    assert error.body["message"] == "INVALID_AUDIO: no sound"


def test_an_error_midway_is_raised_by_the_stream(client, endpoint):
    endpoint.give(error=ModelError("the model failed"))
    stream = iter(ask(client, stream=True))
    assert next(stream).delta == "Good morning."
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    error = raised.value
    assert (error.code, error.type) == ("MODEL_ERROR", "server_error")
    assert error.message == "MODEL_ERROR: the model failed"


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


WRONG = "invalid_request_error"
CLIP = InvalidReference("is another", "known_speakers[2].voice.model")


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (InvalidParameter("should be less", "num_beams"), WRONG, "num_beams"),
        (Unsupported("no token", "prompt"), WRONG, "prompt"),
        (InvalidAudio("no audio: none"), WRONG, "file"),
        (CLIP, WRONG, "known_speaker_references[2]"),
        (Refusal(Kind.UNAUTHORIZED, "no token"), "authentication_error", None),
        (Refusal(Kind.BUSY, "full", retry_after=1), "rate_limit_error", None),
        (ModelError("language: broke"), "server_error", None),
    ],
)
def test_an_error_names_its_kind_and_field(error, kind, param):
    said = openai_error(error)
    assert said == {"message": str(error), "type": kind, "param": param, "code": error.code}


def test_warnings_reach_the_client_in_every_format(client, endpoint):
    fields = {"extra_body": {"assisted": True, "num_beams": 2}}
    endpoint.give(dataclasses.replace(SPOKEN, warnings=("careful: \u00fc",)))
    assert ask(client, **fields).to_dict()["warnings"] == ["careful: \u00fc"]
    assert raw(client, "text").headers["x-warnings"] == r"careful: \xfc"
    assert streamed(client)[-1]["warnings"] == ["careful: \u00fc"]
    assert endpoint.asked.options.decode.num_beams == 1


@pytest.mark.parametrize("response_format", [*TYPES, "text", "srt", "vtt"])
def test_every_format_reports_unspoken_text(client, endpoint, response_format):
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
    assert streamed(client, response_format=response_format, **fields)[-1]["unspoken"] == told


def test_models(client):
    (only,) = client.models.list().data
    assert (only.object, only.owned_by, type(only.created)) == ("model", "org", int)
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
    truth = tiny_handler({"inputs": sound, "parameters": {"language": "en"}})

    def create(**fields):
        create = true_client.audio.transcriptions.create
        return create(file=sound, model="whisper-1", language="en", **fields)

    assert truth["text"].strip()
    assert create().text == create(response_format="text") == truth["text"].strip()
    verbose = create(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    audio.TranscriptionVerbose.model_validate(verbose.to_dict(), strict=True)
    assert [each.text for each in verbose.segments] == [each["text"] for each in truth["chunks"]]
    assert {each.seek for each in verbose.segments} > {0}
    tokenizer = tiny_handler.endpoint.recogniser.transcriber.models.tokenizer
    for segment in verbose.segments:
        assert tokenizer.decode(segment.tokens) == segment.text
    *deltas, done = create(stream=True)
    assert "".join(each.delta for each in deltas) == done.text == truth["text"].strip()
    entries = create(include=["logprobs"]).logprobs
    said = bytes(int(byte) for each in entries for byte in each.bytes)  # floats by the SDK
    assert said.decode(errors="replace") == truth["text"]


def test_clips_reach_the_service_and_names_the_client(client, endpoint):
    told = (SpeakerMatch("Anna", "SPEAKER_01", 0.9, True), SpeakerMatch("Eve", "SPEAKER_00", 0.1))
    named = renamed(dataclasses.replace(SPOKEN, known_speakers=told), {"SPEAKER_01": "Anna"})
    endpoint.give(named)
    asked = {"response_format": "diarized_json", "known_speaker_names": ["Anna", "Eve"]}
    urls = ["data:audio/wav;base64,AAAA", "data:audio/wav;base64,BBBB"]
    asked["known_speaker_references"] = urls
    answer = ask(client, **asked)
    assert [each.speaker for each in answer.segments] == ["Anna", "A", "A"]
    assert [each["label"] for each in answer.known_speakers] == ["Anna", "A"]
    clips = endpoint.asked.config.known_speakers
    assert [clip.name for clip in clips] == asked["known_speaker_names"]
    assert [clip.reference[-4:] for clip in clips] == ["AAAA", "BBBB"]
    *_, done = streamed(client, **asked)
    assert [each["matched"] for each in done["known_speakers"]] == [True, False]


def test_azures_client_sends_its_key_and_a_deployment(endpoint):
    with serving(endpoint, page=False, api_key="key") as url:
        azure = {"azure_endpoint": url, "api_version": "2024-10-21", "max_retries": 0}
        with openai.AzureOpenAI(api_key="key", **azure) as client:
            assert ask(client).text == TEXT
        with (
            openai.AzureOpenAI(api_key="wrong", azure_deployment="mine", **azure) as client,
            pytest.raises(openai.AuthenticationError, match="UNAUTHORIZED"),
        ):
            ask(client)
