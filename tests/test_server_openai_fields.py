"""The effect of each field of OpenAI's form, and the fields that are refused by name."""

import json
from dataclasses import replace

import pytest

from tests.helpers.openai_answers import KnownAnswers
from tests.helpers.refusals import refused
from whosaid.errors import InvalidParameter, Unsupported
from whosaid.server.error_response import openai_error
from whosaid.server.openai_api.form import (
    TranscriptionForm,
    TranslationForm,
    model_warning,
    read_fields,
)


@pytest.fixture(scope="module")
def endpoint():
    """An endpoint that claims to diarize."""
    return KnownAnswers(speakers=True)


def read(endpoint, form=TranscriptionForm, **fields):
    listed = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    values = {name: tuple(value) for name, value in listed.items()}
    return read_fields(form.read(b"sound", values), endpoint)


def test_a_form_with_only_a_file_asks_for_text(endpoint):
    asked = read(endpoint)
    assert (asked.format, asked.task) == ("json", "transcribe")
    assert (asked.stream, asked.token_bytes) == (False, None)
    config = asked.request.config
    assert (config.diarize, config.return_timestamps, config.output) == (False, True, [])
    assert asked.request.upload.take() == [b"sound"]
    assert asked.request.warnings == ()


@pytest.mark.parametrize("form", [TranscriptionForm, TranslationForm])
def test_sent_defaults_of_the_description_change_nothing(endpoint, form):
    """Generated clients send all of them, with every response format."""
    fields = form.described()["properties"]
    assert not [each for each in fields.values() if {"type": "null"} in each.get("anyOf", ())]
    formats = fields.pop("response_format")["enum"]
    defaults = {name: str(each["default"]) for name, each in fields.items() if "default" in each}
    assert defaults.keys() > {"group_by_speaker", "highlight_words", "voices"}
    alone = [{name: text} for name, text in (*defaults.items(), ("return_timestamps", "true"))]
    for wanted in formats:
        plain = read(endpoint, form, response_format=wanted).request
        for given in (defaults, *alone):
            sent = read(endpoint, form, response_format=wanted, **given).request
            assert (sent.config, sent.speakers) == (plain.config, plain.speakers)
            assert sent.warnings == plain.warnings


SERVER_VAD = {"chunking_strategy[type]": "server_vad"}
VERBOSE = {"response_format": "verbose_json"}
# Fields, and what they ask of the endpoint; all else is as without them.
SERVED = [
    ({"language": "de", "prompt": "Style."}, {"language": "de", "prompt": "Style."}),
    ({"keywords": ["Hydra", "Mount Doom"]}, {"hotwords": ["Hydra", "Mount Doom"]}),
    ({"hotwords": "Hydra, Doom"}, {"hotwords": ["Hydra", "Doom"]}),
    ({"temperature": "0.25", "chunking_strategy": "auto"}, {"temperature": 0.25}),
    ({"assisted": "true", "batch_size": "4"}, {"assisted": True, "batch_size": 4}),
    ({"chunk_length_s": "20", "sampling_rate": "8000"}, {"chunk_length_s": 20}),
    ({"beam_size": "5", "initial_prompt": "Style."}, {"num_beams": 5, "prompt": "Style."}),
    ({"log_prob_threshold": "-1"}, {"logprob_threshold": -1.0}),
    ({"text": "Good\nmorning."}, {"text": "Good\nmorning."}),
    *(({"languages": each}, {"language": "de"}) for each in (["de"], ["de-AT", "German"])),
    ({"languages": ["", "auto", "de"], "language": "de"}, {"language": "de"}),
    *(({"language": each}, {}) for each in ("auto", "null", "undefined", "None")),
    *(({"model": each}, {}) for each in ("whisper-1", "openai/whisper-1", "gpt-transcribe")),
    ({"model": "gpt-4o-mini-transcribe-2025-12-15"}, {}),
    ({"language": "", "prompt": " ", "response_format": "", "temperature": "", "model": ""}, {}),
    (SERVER_VAD, {}),
    ({"chunking_strategy": '{"type": "server_vad", "threshold": null}'}, {}),
    ({"known_speaker_names": "", "known_speaker_references": [""]}, {}),
]


@pytest.mark.parametrize(("fields", "wanted"), SERVED)
def test_served_fields_reach_the_endpoint_without_warnings(endpoint, fields, wanted):
    asked, plain = read(endpoint, **fields), read(endpoint)
    config = asked.request.config
    assert {name: getattr(config, name) for name in wanted} == wanted
    if not wanted:
        assert config == plain.request.config
        assert replace(asked, request=plain.request) == plain
    assert asked.request.warnings == ()


def test_separate_channels_are_speakers_without_diarization():
    names = ["agent", "customer"]
    for form in (names, ["agent,customer"]):
        given = {"response_format": "diarized_json", "channels": "separate"}
        asked = read(KnownAnswers(), **given, channel_names=form)
        assert asked.request.config.channel_names == names
        assert asked.request.speakers is None
        assert asked.request.warnings == ()


@pytest.mark.parametrize(("diarize", "asked"), [(None, False), ("false", False), ("true", True)])
def test_voices_within_channels_are_told_apart_on_request(endpoint, diarize, asked):
    given = {} if diarize is None else {"diarize": diarize}
    found = read(endpoint, response_format="verbose_json", channels="separate", **given)
    assert (found.request.speakers is not None) is asked
    hinted = read(endpoint, response_format="srt", channels="separate", num_speakers="2")
    assert hinted.request.speakers.num_speakers == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"segment"}),
        ({"timestamp_granularities": ["word"]}, {"word"}),
        ({"timestamp_granularities": ["word", "segment"]}, {"word", "segment"}),
        ({"word_timestamps": "true"}, {"word", "segment"}),
    ],
)
def test_granularities(endpoint, fields, expected):
    asked = read(endpoint, **VERBOSE, **fields)
    assert (asked.granularities, asked.request.warnings) == (expected, ())


@pytest.mark.parametrize("form", [TranscriptionForm, TranslationForm])
def test_every_format_is_read(endpoint, form):
    for response_format in form.described()["properties"]["response_format"]["enum"]:
        asked = read(endpoint, form, response_format=response_format)
        assert asked.request.config.task == form.task
        assert asked.request.config.diarize is (response_format == "diarized_json")


@pytest.mark.parametrize(
    ("options", "vad"),
    [
        ({"chunking_strategy[threshold]": "0.4"}, {"threshold": 0.4}),
        (
            {
                **SERVER_VAD,
                "chunking_strategy[prefix_padding_ms]": "100",
                "chunking_strategy[silence_duration_ms]": "200",
            },
            {"speech_pad_ms": 100, "min_silence_duration_ms": 200},
        ),
        (
            {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 200}'},
            {"min_silence_duration_ms": 200},
        ),
        ({"chunking_strategy": "{'type': 'server_vad', 'threshold': 0.4}"}, {"threshold": 0.4}),
        ({"vad_parameters": '{"threshold": 0.6}'}, {"threshold": 0.6}),
    ],
)
def test_the_vads_options_are_vad_parameters(endpoint, options, vad):
    given = read(endpoint, **options)
    assert given.request.config.vad_parameters.model_dump(exclude_none=True) == vad
    assert given.request.warnings == ()


@pytest.mark.parametrize(
    ("loaded", "names"),
    [
        (
            "openai/whisper-large-v3",
            ["large-v3", "whisper-large-v3", "Systran/faster-whisper-large-v3"],
        ),
        ("distil-whisper/distil-large-v3", ["Systran/faster-distil-whisper-large-v3"]),
        ("/data/models/whisper-base", ["base", "openai/whisper-base", "whisper-base"]),
    ],
)
def test_a_model_is_known_by_all_its_usual_names(loaded, names):
    endpoint = KnownAnswers()
    endpoint.transcriber.capabilities = replace(endpoint.transcriber.capabilities, name=loaded)
    for name in (loaded.rpartition("/")[2], *names):
        assert model_warning(name, endpoint) is None
    for name in ("tiny", "openai/whisper-medium", "parakeet", "x" * 10**6, "gpt-" + "a-" * 10**5):
        assert "is not loaded; this server has" in model_warning(name, endpoint)


def test_unserved_fields_are_ignored_with_a_warning(endpoint):
    ignored = {"user": "me", "best_of": "5", "condition_on_previous_text": "false", "patience": ""}
    asked = read(endpoint, model="Systran/faster-whisper-medium", **ignored)
    assert asked.request.config == read(endpoint).request.config
    model, fields = asked.request.warnings
    assert model.startswith("model: Systran/faster-whisper-medium is not loaded; this server has")
    assert fields == "unknown fields are ignored: user, best_of, condition_on_previous_text"


@pytest.mark.parametrize("wanted", ["json", "text", "diarized_json"])
@pytest.mark.parametrize(
    "field", [{"timestamp_granularities": ["word", "segment"]}, {"word_timestamps": "true"}]
)
def test_times_without_a_place_are_ignored_with_a_warning(endpoint, wanted, field):
    asked, (name,) = read(endpoint, response_format=wanted, **field), field
    assert asked.granularities == frozenset()
    told = f"{name}: is ignored; response_format verbose_json has times"
    assert asked.request.warnings == (told,)
    assert read(endpoint, response_format="srt", **field).request.warnings == ()


def test_clips_reach_the_endpoint_in_order(endpoint):
    asked = read(
        endpoint,
        known_speaker_names=["Anna", "Bob", "Anna"],
        known_speaker_references=["data:audio/wav;base64,AAAA", "BBBB", "CCCC"],
        known_speaker_threshold="0.7",
        response_format="diarized_json",
    )
    config = asked.request.config
    clips = [(clip.name, clip.reference) for clip in config.known_speakers]
    assert clips == [("Anna", "data:audio/wav;base64,AAAA"), ("Bob", "BBBB"), ("Anna", "CCCC")]
    assert (config.known_speaker_threshold, config.diarize) == (0.7, True)


def test_a_reference_may_be_a_voice(endpoint):
    voice = {"model": "Net-0", "seconds": 3.5, "embedding": "AAAAAA=="}
    people = {"known_speaker_names": ["Anna", "Bob"]}
    people["known_speaker_references"] = ["BBBB", json.dumps(voice)]
    asked = read(endpoint, **people, voices="true", response_format="verbose_json")
    first, second = asked.request.config.known_speakers
    assert (first.reference, second.voice.model_dump()) == ("BBBB", voice)
    assert asked.request.config.voices
    assert not read(endpoint, voices="false").request.config.diarize


def clips(names, references=("AAAA", "AAAA")):
    people = {"known_speaker_names": names, "known_speaker_references": [*references]}
    return people | {"response_format": "diarized_json"}


WRONG = {
    "response_format": {"response_format": "xml"},
    "temperature": {"temperature": "1.5"},
    "stream": {"stream": "maybe"},
    "language": {"language": "xx"},
    "languages": {"languages": ["de"], "language": "en"},
    "timestamp_granularities": {"timestamp_granularities": "char", **VERBOSE},
    "include": {"include": "item"},
    "chunking_strategy": {"chunking_strategy": "fixed"},
    "chunking_strategy[(no name)]": {"chunking_strategy": '{"\\ud800": 1}'},
    "chunking_strategy[threshold]": {**SERVER_VAD, "chunking_strategy[threshold]": "1.5"},
    "chunking_strategy[prefix_padding_ms]": {
        "chunking_strategy": json.dumps({"type": "server_vad", "prefix_padding_ms": 9000})
    },
    "chunking_strategy[silence_duration_ms]": {"chunking_strategy[silence_duration_ms]": "some"},
    "vad_parameters": {"chunking_strategy[threshold]": "0.4", "vad_parameters": "{}"},
    "word_timestamps": {"word_timestamps": "perhaps"},
    "beam_size": {"beam_size": "9"},
    "initial_prompt": {"initial_prompt": "One.", "prompt": "Two."},
    "num_beams": {"num_beams": "9"},
    "diarize": {"diarize": "false", "response_format": "diarized_json"},
    "task": {"task": "translate"},
    "keywords": {"keywords": "x" * 101},
    "hotwords": {"hotwords": "x" * 101},
    "prompt": {"prompt": ["one", "two"]},
    "known_speaker_references": {"known_speaker_names": "agent"},
    "known_speaker_names": clips(["Anna", "anna"]),
    "known_speaker_names[1]": clips(["agent", "SPEAKER_00"]),
    "known_speaker_references[0]": clips(["agent", "other"], ["", "AAAA"]),
    "known_speaker_references[1]": clips(["agent", "other"], ["AAAA", '{"model": 3}']),
    "voices": {"voices": "maybe", "response_format": "diarized_json"},
    "min_speakers": {"min_speakers": "3", "max_speakers": "2", "response_format": "srt"},
}
NOT_SERVED = {
    "known_speaker_names": {
        "known_speaker_names": "agent",
        "known_speaker_references": "data:audio/wav;base64,AAAA",
    },
    "languages": {"languages": ["de", "en"]},
    "include": {"include": "logprobs", "response_format": "text"},
    "diarize": {"diarize": "true", "response_format": "text"},
}

TOO_MANY = {
    "chunking_strategy": {"chunking_strategy": '{"a":' * 100_000},
    "include": {"include": ["logprobs"] * 2},
    "timestamp_granularities": {"timestamp_granularities": ["word"] * 900, **VERBOSE},
    "keywords": {"keywords": ["word"] * 900},
    "hotwords": {"hotwords": ["a,b", "b"]},
    "known_speaker_names": clips(["Anna"] * 21, ["AAAA"] * 21),
}


@pytest.mark.parametrize(
    ("error", "name", "fields"),
    [
        *((InvalidParameter, *each) for each in (*WRONG.items(), *TOO_MANY.items())),
        *((Unsupported, *each) for each in NOT_SERVED.items()),
    ],
)
def test_a_wrong_field_is_refused_by_name(endpoint, error, name, fields):
    with pytest.raises(error) as refused:
        read(endpoint, **fields)
    assert openai_error(refused.value)["param"] == name


def test_a_text_is_not_translated(endpoint):
    with refused("INVALID_PARAMETER", "text"):
        read(endpoint, TranslationForm, text="Good morning.")


def test_speakers_are_refused_where_no_model_finds_them():
    endpoint = KnownAnswers()
    with refused("UNSUPPORTED", "response_format"):
        read(endpoint, response_format="diarized_json")
    with refused("UNSUPPORTED", "num_speakers"):
        read(endpoint, response_format="vtt", num_speakers="2")


def test_only_ascii_of_a_strange_name_is_repeated(endpoint):
    for field in ({"\u00e4" * 500: "x"}, {"model": "\u00e4" * 500}):
        (warning,) = read(endpoint, **field).request.warnings
        assert warning.isascii()
        assert len(warning) < 300
