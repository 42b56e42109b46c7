"""The decision of each interface about each parameter: a new one needs an entry here.

JSON serves all. In live sessions, a parameter without a field is ignored with a warning. In the
commands and the archive, one without an option is given in `--parameters`, which `--live` refuses.
"""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from config import REPOSITORY, InferenceConfig
from tests.helpers.openai_answers import CAN_DIARIZE
from tests.helpers.recogniser_stand_ins import resident
from whosaid.answer.cues import LAYOUT
from whosaid.cli.options import LAYOUT as OPTIONS_OF_LAYOUT
from whosaid.errors import ClientError
from whosaid.server.openai_api.form import TranscriptionForm, read_fields
from whosaid.server.realtime.session_config import SessionGiven, TranscriptionGiven
from whosaid.transcribe.options import read_transcribe

PAGE = REPOSITORY / "whosaid/server/page/static"
CLIP = {"name": "Ada", "reference": "UklGRg=="}
ALL = "json text srt verbose_json vtt diarized_json"  # formats of OpenAI's form
PLAIN = "json text srt verbose_json vtt"
SPEAKERS, CUES, NONE = "srt verbose_json vtt diarized_json", "srt vtt", ""
UNUSED = " ".join(f"{each}?" for each in ALL.split())
IN_SRT = {"output": ["srt"]}


class Decision(NamedTuple):
    """A parameter's `value`, which is not the default, and what interfaces do with it.

    `form`: the response formats that serve it; those with "?" ignore it with a warning, and all
    others refuse it. `session`: the field of live sessions. `option`: the commands'. `live`: also
    with `--live`. `page`: sent by the page. `beside`: JSON warns that it ignores it without these.
    """

    value: Any
    form: str = ALL
    session: str = ""
    option: str = ""
    live: bool = False
    page: bool = False
    beside: Mapping[str, Any] = MappingProxyType({})


TABLE = {
    "task": Decision("translate", NONE, "", "--task", page=True),
    "batch_size": Decision(3, ALL, "", "--batch-size"),
    "assisted": Decision(True, ALL, "", "--assisted"),
    "num_beams": Decision(2, ALL, "", "--num-beams", page=True),
    "length_penalty": Decision(0.5, ALL, "", "--length-penalty"),
    "chunk_length_s": Decision(20),
    "sampling_rate": Decision(8000),
    "language": Decision("german", ALL, "language", "--language", live=True, page=True),
    "multilingual": Decision(True, ALL, "", "--multilingual", page=True),
    "num_speakers": Decision(2, SPEAKERS, "", "--num-speakers", page=True),
    "min_speakers": Decision(2, SPEAKERS, "", "--min-speakers", page=True),
    "max_speakers": Decision(2, SPEAKERS, "", "--max-speakers", page=True),
    "return_timestamps": Decision("word", NONE, "include", "--words", live=True, page=True),
    "diarize": Decision(False, PLAIN, "include", "--no-speakers", live=True, page=True),
    "group_by_speaker": Decision(False, "diarized_json"),
    "overlap": Decision("off"),
    "prompt": Decision("Hello.", ALL, "prompt", "--prompt", live=True, page=True),
    "hotwords": Decision(["Ada"], ALL, "keywords", "--hotwords", live=True, page=True),
    "text": Decision("Hello.", ALL, "", "--text", page=True),
    "output": Decision(["tsv"], NONE, "", "--output-format", live=True, page=True),
    "recording_name": Decision("a.wav", UNUSED, "", "", beside={"output": ["md"]}),
    "txt_times": Decision(
        True, UNUSED, "", "--txt-times", live=True, page=True, beside={"output": ["txt"]}
    ),
    "max_line_width": Decision(9, CUES, "", "--max-line-width", True, True, IN_SRT),
    "max_line_count": Decision(1, CUES, "", "--max-line-count", True, True, IN_SRT),
    "max_words_per_line": Decision(3, CUES, "", "--max-words-per-line", True, True, IN_SRT),
    "highlight_words": Decision(True, CUES, "", "--highlight-words", True, True, IN_SRT),
    "subtitle_speakers": Decision(False, CUES, "", "--no-subtitle-speakers", True, True, IN_SRT),
    "known_speakers": Decision(
        [CLIP], NONE, "known_speaker_references", "--known-speakers", live=True, page=True
    ),
    "known_speaker_threshold": Decision(
        *(0.5, SPEAKERS, "known_speaker_threshold", "--known-speaker-threshold"),
        live=True,
        beside={"known_speakers": [CLIP]},
    ),
    "voices": Decision(True, "verbose_json diarized_json"),
    "temperature": Decision(0.5, ALL, "", "--temperature"),
    "compression_ratio_threshold": Decision(2.0, ALL, "", "--compression-ratio-threshold"),
    "logprob_threshold": Decision(-0.5, ALL, "", "--logprob-threshold"),
    "no_speech_threshold": Decision(0.5, ALL, "", "--no-speech-threshold"),
    "vad_filter": Decision(False, ALL, "", "--no-vad-filter"),
    "vad_parameters": Decision({"threshold": 0.4}, ALL, "", "--vad-parameters"),
    "channels": Decision("separate", ALL, "", "--channels", page=True),
    "channel_names": Decision(
        *(["Ada", "Bob"], f"json? text? {SPEAKERS}", "", "--channel-names"),
        page=True,
        beside={"channels": "separate"},
    ),
    "channel_starts": Decision(
        ["0", "12.5"], ALL, "", "--channel-starts", page=True, beside={"channels": "separate"}
    ),
}
EACH = pytest.mark.parametrize(("name", "decision"), TABLE.items())


@pytest.fixture(scope="module")
def endpoint(tiny_endpoint):
    endpoint = copy.copy(tiny_endpoint)
    able = replace(CAN_DIARIZE.capabilities, voice_model="a model")
    endpoint._models = resident(tiny_endpoint.recogniser, SimpleNamespace(capabilities=able))
    return endpoint


def text_of(value: Any) -> str:
    if isinstance(value, list) and isinstance(value[0], str):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def effect(request, name: str, value: Any) -> str:
    """Return "" if a request has a parameter's value, "?" if it is ignored with a warning."""
    if any(warning.startswith(name) for warning in request.warnings):
        return "?"
    alone = InferenceConfig.read({name: value})
    assert getattr(request.config, name) == getattr(alone, name)
    return ""


def test_each_parameter_has_a_decision():
    assert [*TABLE] == [*InferenceConfig.model_fields]
    assert (*LAYOUT, "txt_times") == OPTIONS_OF_LAYOUT


@EACH
def test_json_serves_each_parameter(endpoint, name, decision):
    for beside, expected in ((decision.beside, ""), ({}, "?" if decision.beside else "")):
        request = endpoint.parse({"inputs": "", "parameters": {name: decision.value, **beside}})
        assert effect(request, name, decision.value) == expected


@EACH
def test_forms_serve_refuse_or_warn(endpoint, name, decision):
    fields = {name: decision.value, **decision.beside}
    if decision.beside:
        fields.pop("output", None)
        if fields.pop("known_speakers", None):
            fields["known_speaker_names"] = CLIP["name"]
            fields["known_speaker_references"] = CLIP["reference"]
    found = []
    for wanted in ALL.split():
        values = {each: (text_of(value),) for each, value in fields.items()}
        try:
            form = TranscriptionForm.read(b"sound", {**values, "response_format": (wanted,)})
            found.append(wanted + effect(read_fields(form, endpoint).request, name, decision.value))
        except ClientError as error:
            found += [] if error.param in fields else [f"{wanted}: {error}"]
    assert sorted(found) == sorted(decision.form.split())


@EACH
def test_live_sessions_have_a_field_or_ignore_the_parameter(name, decision):
    transcription = {name: decision.value}
    given = SessionGiven.model_validate({"audio": {"input": {"transcription": transcription}}})
    ignored = given.ignored() == [f"audio.input.transcription.{name}"]
    assert ignored == (name != decision.session)
    assert decision.session in {"", *TranscriptionGiven.model_fields, *SessionGiven.model_fields}


@EACH
def test_commands_have_an_option_or_take_parameters(name, decision, tmp_path, capsys):
    (tmp_path / "file").write_text("Hello.", encoding="utf-8")
    value = text_of(decision.value)
    value = {"known_speakers": f"{tmp_path}/file=Ada", "text": f"{tmp_path}/file"}.get(name, value)
    given = [decision.option, value]
    if isinstance(decision.value, bool) or name == "return_timestamps":
        given = given[:1]
    if not decision.option:
        given = ["--parameters", json.dumps({name: decision.value})]
    if "known_speakers" in decision.beside:
        given += ["--known-speakers", f"{tmp_path}/file=Ada"]
    options = read_transcribe(["talk.wav", *given])
    taken = {"output": "output_format", "text": "text"}.get(name, name)
    assert name in options.parameters or getattr(options, taken) is not None
    try:
        read_transcribe(["--live", "talk.wav", *given])
    except SystemExit:
        assert not decision.live
    else:
        assert decision.live


@EACH
def test_the_page_sends_the_parameter(name, decision):
    """The form's fields have the parameters' names; its module adds those without a field."""
    sent = rf'<(?:input|select|textarea)[^>]* name="{name}"|\b{name}:'
    sources = ((PAGE / file).read_text("utf-8") for file in ("index.html", "options.js"))
    assert any(re.search(sent, source) for source in sources) == decision.page
