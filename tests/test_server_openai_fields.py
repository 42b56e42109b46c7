"""What each field of OpenAI's form asks for, and which are refused by name."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
from openai_answers import CAN_DIARIZE
from recogniser_stand_ins import resident

from whosaid.errors import InvalidParameter, Unsupported
from whosaid.server.error_response import openai_body
from whosaid.server.openai_api.form import (
    FORMATS,
    FORMS,
    TRANSCRIBE,
    TRANSLATE,
    model_warning,
    read_fields,
)


@pytest.fixture(scope="module")
def endpoint(tiny_endpoint):
    """As if it could diarize."""
    endpoint = copy.copy(tiny_endpoint)
    endpoint._models = resident(tiny_endpoint.recogniser, CAN_DIARIZE)
    return endpoint


def read(endpoint, route=TRANSCRIBE, **fields):
    values = {
        name: tuple(value) if isinstance(value, list) else (value,)
        for name, value in fields.items()
    }
    return read_fields(FORMS[route].read(b"sound", values), endpoint)


def test_a_form_of_a_file_alone_asks_for_its_text(endpoint):
    asked = read(endpoint)
    assert (asked.format, asked.task, asked.stream, asked.logprobs) == (
        "json",
        TRANSCRIBE,
        False,
        False,
    )
    config = asked.request.config
    assert (config.diarize, config.return_timestamps, config.output) == (False, True, [])
    assert asked.request.upload.take() == b"sound"
    assert asked.request.warnings == ()


def test_served_fields_reach_the_model(endpoint):
    asked = read(
        endpoint,
        language="de",
        prompt="Style.",
        keywords=["Hydra", "Mount Doom"],
        temperature="0.25",
        chunking_strategy="auto",
        stream="true",
    )
    options = asked.request.options
    assert (options.language, options.prompt, options.hotwords, options.decode.temperature) == (
        "de",
        "Style.",
        ("Hydra", "Mount Doom"),
        0.25,
    )
    assert asked.stream


def test_separate_channels_are_speakers_without_a_model_that_finds_any(tiny_endpoint):
    names = ["agent", "customer"]
    for form in (names, ["agent,customer"]):
        asked = read(
            tiny_endpoint,
            response_format="diarized_json",
            channels="separate",
            channel_names=form,
        )
        assert asked.request.config.channel_names == names
        assert (asked.speakers, asked.request.speakers) == (True, None)
        assert asked.request.warnings == ()


@pytest.mark.parametrize(("diarize", "asked"), [(None, False), ("false", False), ("true", True)])
def test_voices_within_channels_are_told_apart_on_request(endpoint, diarize, asked):
    given = {} if diarize is None else {"diarize": diarize}
    found = read(endpoint, response_format="verbose_json", channels="separate", **given)
    assert (found.request.speakers is not None) is asked
    hinted = read(endpoint, response_format="srt", channels="separate", num_speakers="2")
    assert hinted.request.speakers.num_speakers == 2


def test_the_endpoints_own_parameters_are_fields_too(endpoint):
    asked = read(
        endpoint,
        response_format="verbose_json",
        num_speakers="3",
        assisted="true",
        batch_size="4",
        chunk_length_s="20",
        multilingual="true",
        hotwords="Hydra, Doom",
        sampling_rate="8000",
    )
    config = asked.request.config
    assert (config.num_speakers, config.assisted, config.batch_size) == (3, True, 4)
    assert (config.chunk_length_s, config.multilingual, config.sampling_rate) == (20, True, 8000)
    assert (config.hotwords, config.diarize, asked.speakers) == (["Hydra", "Doom"], True, True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"segment"}),
        ({"timestamp_granularities": ["word"]}, {"word"}),
        ({"timestamp_granularities": ["word", "segment"]}, {"word", "segment"}),
    ],
)
def test_granularities(endpoint, fields, expected):
    asked = read(endpoint, response_format="verbose_json", **fields)
    assert asked.granularities == expected


@pytest.mark.parametrize("task", [TRANSCRIBE, TRANSLATE])
def test_every_format_is_read(endpoint, task):
    for response_format in FORMATS[task]:
        asked = read(endpoint, task, response_format=response_format)
        assert asked.request.config.task == task
        assert asked.speakers is (response_format == "diarized_json")


def test_empty_fields_count_as_not_given(endpoint):
    given = read(endpoint, language="", prompt=" ", response_format="", temperature="", model="")
    assert given == read(endpoint)


@pytest.mark.parametrize(
    "strategy",
    [
        {"chunking_strategy": "auto"},
        {"chunking_strategy[type]": "server_vad"},
        {"chunking_strategy": '{"type": "server_vad", "threshold": null}'},
    ],
)
def test_both_chunking_strategies_are_what_is_done(endpoint, strategy):
    assert read(endpoint, **strategy) == read(endpoint)


@pytest.mark.parametrize(
    ("options", "vad"),
    [
        ({"chunking_strategy[threshold]": "0.4"}, {"threshold": 0.4}),
        (
            {
                "chunking_strategy[type]": "server_vad",
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
    ],
)
def test_the_vads_options_are_vad_parameters(endpoint, options, vad):
    given = read(endpoint, **options)
    assert given.request.config.vad_parameters.model_dump(exclude_none=True) == vad
    assert given.request.warnings == ()


@pytest.mark.parametrize(
    "languages", [["de"], ["de", "de"], ["de-AT", "German"], ["", "auto", "de"]]
)
def test_a_list_of_one_language_is_that_language(endpoint, languages):
    assert read(endpoint, languages=languages) == read(endpoint, language="de")
    assert read(endpoint, languages=languages, language="de") == read(endpoint, language="de")


@pytest.mark.parametrize("language", ["auto", "null", "undefined", "None"])
def test_no_language_is_detection(endpoint, language):
    assert read(endpoint, language=language) == read(endpoint)


@pytest.mark.parametrize("flag", ["1", "true", "True", "yes"])
def test_a_flag_may_be_a_number(endpoint, flag):
    assert read(endpoint, stream=flag).stream


@pytest.mark.parametrize(
    "model",
    [
        "whisper-1",
        "openai/whisper-1",
        "gpt-transcribe",
        "gpt-4o-mini-transcribe-2025-12-15",
    ],
)
def test_openais_names_mean_the_loaded_model(endpoint, model):
    assert read(endpoint, model=model) == read(endpoint)


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
    transcriber = SimpleNamespace(models=SimpleNamespace(name=loaded))
    endpoint = SimpleNamespace(recogniser=SimpleNamespace(transcriber=transcriber))
    for name in (loaded.rpartition("/")[2], *names):
        assert model_warning(name, endpoint) is None
    for name in ("tiny", "openai/whisper-medium", "parakeet", "x" * 10**6, "gpt-" + "a-" * 10**5):
        assert "is not loaded; this server has" in model_warning(name, endpoint)


def test_the_loaded_model_answers_for_another_and_says_so(endpoint):
    asked = read(endpoint, model="Systran/faster-whisper-medium")
    (warning,) = asked.request.warnings
    assert warning.startswith("model: Systran/faster-whisper-medium is not loaded; this server has")


def test_other_programs_names_are_read(endpoint):
    asked = read(
        endpoint,
        beam_size="5",
        initial_prompt="Style.",
        log_prob_threshold="-1",
        word_timestamps="true",
        response_format="verbose_json",
    )
    decode = asked.request.options.decode
    assert (decode.num_beams, asked.request.options.prompt) == (5, "Style.")
    assert decode.fallback.logprob_threshold == -1.0
    assert asked.granularities == {"word", "segment"}
    assert asked.request.warnings == ()


def test_fields_without_a_meaning_are_ignored_with_a_warning(endpoint):
    asked = read(
        endpoint,
        user="me",
        seed="1",
        best_of="5",
        condition_on_previous_text="false",
        speed="2",
        patience="",
    )
    assert asked.request.config == read(endpoint).request.config
    assert asked.request.warnings == (
        "unknown fields are ignored: user, seed, best_of, condition_on_previous_text, speed",
    )


@pytest.mark.parametrize("wanted", ["json", "text", "diarized_json"])
@pytest.mark.parametrize(
    "field", [{"timestamp_granularities": ["word", "segment"]}, {"word_timestamps": "true"}]
)
def test_times_that_a_format_has_no_place_for_are_ignored_with_a_warning(endpoint, wanted, field):
    asked = read(endpoint, response_format=wanted, **field)
    (name,) = field
    assert asked.granularities == frozenset()
    assert asked.request.warnings == (
        f"{name}: is ignored; response_format verbose_json has times",
    )
    assert read(endpoint, response_format="srt", **field).request.warnings == ()


def test_clips_reach_the_endpoint_in_order(endpoint):
    asked = read(
        endpoint,
        known_speaker_names=["Anna", "Bob", "Anna"],
        known_speaker_references=["data:audio/wav;base64,AAAA", "BBBB", "CCCC"],
        known_speaker_threshold="0.7",
        response_format="diarized_json",
    )
    clips = [(clip.name, clip.reference) for clip in asked.request.config.known_speakers]
    assert clips == [("Anna", "data:audio/wav;base64,AAAA"), ("Bob", "BBBB"), ("Anna", "CCCC")]
    assert asked.request.config.known_speaker_threshold == 0.7
    assert asked.speakers


def test_a_reference_may_be_a_voice(endpoint):
    voice = {"model": "Net-0", "seconds": 3.5, "embedding": "AAAAAA=="}
    asked = read(
        endpoint,
        known_speaker_names=["Anna", "Bob"],
        known_speaker_references=["BBBB", json.dumps(voice)],
        voices="true",
        response_format="verbose_json",
    )
    first, second = asked.request.config.known_speakers
    assert (first.reference, second.voice.model_dump()) == ("BBBB", voice)
    assert asked.request.config.voices
    assert not read(endpoint, voices="false").speakers


def test_empty_lists_of_clips_are_none(endpoint):
    asked = read(endpoint, known_speaker_names="", known_speaker_references=[""])
    assert asked.request.config.known_speakers == []


WRONG = {
    "response_format": {"response_format": "xml"},
    "temperature": {"temperature": "1.5"},
    "stream": {"stream": "maybe"},
    "language": {"language": "xx"},
    "languages": {"languages": ["de"], "language": "en"},
    "timestamp_granularities": {
        "timestamp_granularities": "char",
        "response_format": "verbose_json",
    },
    "include": {"include": "item"},
    "chunking_strategy": {"chunking_strategy": "fixed"},
    "chunking_strategy[threshold]": {
        "chunking_strategy[type]": "server_vad",
        "chunking_strategy[threshold]": "1.5",
    },
    "chunking_strategy[prefix_padding_ms]": {
        "chunking_strategy": json.dumps({"type": "server_vad", "prefix_padding_ms": 9000})
    },
    "chunking_strategy[silence_duration_ms]": {
        "chunking_strategy[silence_duration_ms]": "some",
    },
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
    "known_speaker_names": {
        "known_speaker_names": ["Anna", "anna"],
        "known_speaker_references": ["AAAA", "AAAA"],
        "response_format": "diarized_json",
    },
    "known_speaker_names[1]": {
        "known_speaker_names": ["agent", "SPEAKER_00"],
        "known_speaker_references": ["AAAA", "AAAA"],
        "response_format": "diarized_json",
    },
    "known_speaker_references[0]": {
        "known_speaker_names": ["agent", "other"],
        "known_speaker_references": ["", "AAAA"],
        "response_format": "diarized_json",
    },
    "known_speaker_references[1]": {
        "known_speaker_names": ["agent", "other"],
        "known_speaker_references": ["AAAA", '{"model": 3}'],
        "response_format": "diarized_json",
    },
    "voices": {"voices": "maybe", "response_format": "diarized_json"},
    "min_speakers": {"min_speakers": "3", "max_speakers": "2", "response_format": "srt"},
}
NOT_SERVED = {
    "known_speaker_names": {
        "known_speaker_names": "agent",
        "known_speaker_references": "data:audio/wav;base64,AAAA",
    },
    "known_speakers": {"known_speakers": "[]"},
    "languages": {"languages": ["de", "en"]},
    "include": {"include": "logprobs", "response_format": "text"},
    "return_timestamps": {"return_timestamps": "word"},
    "output": {"output": "srt"},
    "num_speakers": {"num_speakers": "2"},
    "voices": {"voices": "true", "response_format": "srt"},
    "diarize": {"diarize": "true", "response_format": "text"},
    "group_by_speaker": {"group_by_speaker": "false", "response_format": "srt"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_refused_by_name(endpoint, name):
    with pytest.raises(InvalidParameter) as refused:
        read(endpoint, **WRONG[name])
    assert openai_body(refused.value)["error"]["param"] == name


def test_a_text_is_not_translated(endpoint):
    assert read(endpoint, text="Good\nmorning.").request.config.text == "Good\nmorning."
    with pytest.raises(InvalidParameter, match="text: can be aligned, but not translated"):
        read(endpoint, TRANSLATE, text="Good morning.")


@pytest.mark.parametrize("name", NOT_SERVED)
def test_a_field_that_cannot_be_served_is_refused_by_name(endpoint, name):
    with pytest.raises(Unsupported) as refused:
        read(endpoint, **NOT_SERVED[name])
    assert openai_body(refused.value)["error"]["param"] == name


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("include", {"include": ["logprobs"] * 2}),
        (
            "timestamp_granularities",
            {"timestamp_granularities": ["word"] * 900, "response_format": "verbose_json"},
        ),
        ("keywords", {"keywords": ["word"] * 900}),
        ("hotwords", {"hotwords": ["a,b", "b"]}),
        (
            "known_speaker_names",
            {
                "known_speaker_names": ["Anna"] * 21,
                "known_speaker_references": ["AAAA"] * 21,
                "response_format": "diarized_json",
            },
        ),
    ],
)
def test_lists_have_bounds_and_nothing_twice(endpoint, name, fields):
    with pytest.raises(InvalidParameter) as refused:
        read(endpoint, **fields)
    assert openai_body(refused.value)["error"]["param"] == name


@pytest.mark.parametrize("wanted", ["json", "verbose_json", "diarized_json"])
def test_subtitles_are_laid_out_where_there_are_any(endpoint, wanted):
    given = {"max_line_width": "20", "highlight_words": "true", "subtitle_speakers": "false"}
    config = read(endpoint, response_format="srt", **given).request.config
    assert (config.max_line_width, config.highlight_words) == (20, True)
    assert not config.subtitle_speakers
    for name, value in given.items():
        with pytest.raises(Unsupported, match=f"{name}: response_format should be srt or vtt"):
            read(endpoint, response_format=wanted, **{name: value})


def test_thresholds_are_fields(endpoint):
    options = read(
        endpoint, logprob_threshold="-1", vad_parameters='{"threshold": 0.6}'
    ).request.options
    assert options.decode.fallback.logprob_threshold == -1.0
    assert options.vad.threshold == 0.6


def test_beams_are_not_sampled(endpoint):
    with pytest.raises(InvalidParameter, match="temperature"):
        read(endpoint, temperature="0.5", num_beams="3")


def test_speakers_are_refused_where_no_model_finds_them(tiny_endpoint):
    with pytest.raises(Unsupported, match="response_format"):
        read(tiny_endpoint, response_format="diarized_json")
    with pytest.raises(Unsupported, match="num_speakers"):
        read(tiny_endpoint, response_format="vtt", num_speakers="2")


def test_nothing_of_a_strange_name_but_ascii_is_repeated(endpoint):
    for field in ({"\u00e4" * 500: "x"}, {"model": "\u00e4" * 500}):
        (warning,) = read(endpoint, **field).request.warnings
        assert warning.isascii()
        assert len(warning) < 300


def test_a_strategy_may_not_be_a_bomb(endpoint):
    with pytest.raises(InvalidParameter):
        read(endpoint, chunking_strategy='{"a":' * 100_000)
