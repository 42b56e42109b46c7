"""What the fields of a form ask for, checked before any audio is decoded.

Every field is taken from the form by the function that serves it; a warning names the fields that
are left. The endpoint's own parameters are fields too (the SDK's `extra_body`), except those that
another field of the API already decides.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config import OTHER_NAMES, TEXT_BOOLEANS, InferenceConfig
from endpoint import Endpoint
from errors import InvalidParameter, Unsupported
from payload.languages import distinct_languages
from server.openai_api.errors import InvalidField
from server.openai_api.form import CLIPS, Form
from server.openai_api.models import model_warning
from transcription_request import TranscriptionRequest, ignored_names

TRANSCRIBE, TRANSLATE = "transcribe", "translate"
FILES = ("srt", "vtt")
FORMATS = {
    TRANSCRIBE: ("json", "text", "srt", "verbose_json", "vtt", "diarized_json"),
    TRANSLATE: ("json", "text", "srt", "verbose_json", "vtt"),
}
WITHOUT_SPEAKERS = ("json", "text")
GRANULARITIES = ("word", "segment")
HINTS = ("num_speakers", "min_speakers", "max_speakers", "known_speakers")
SUBTITLES = (
    "max_line_width",
    "max_line_count",
    "max_words_per_line",
    "highlight_words",
    "subtitle_speakers",
)
INSTEAD = {
    "return_timestamps": "timestamp_granularities",
    "output": "response_format",
    "known_speakers": "known_speaker_names",
}
NAMES, REFERENCES = "known_speaker_names", CLIPS
FIELD_NAMES = {"known_speakers": NAMES}
STRATEGY = "chunking_strategy"
# The options of its server_vad, and what `vad_parameters` call them.
VAD_OPTIONS = {
    "prefix_padding_ms": "speech_pad_ms",
    "silence_duration_ms": "min_silence_duration_ms",
    "threshold": "threshold",
}
# How the endpoint's own refusals name a clip's name or sound.
CLIP = re.compile(r"known_speakers(?:(?P<place>\[\d+\])\.(?P<part>\w+))?: ", re.ASCII)
LONGEST_STRATEGY = 1000  # characters


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """A request of the audio API: what the endpoint is asked, and what becomes of its answer.

    `format` is the response format, with `granularities` if it is verbose. `logprobs` asks for the
    log-probability of every token, and `speakers` says that there will be some.
    """

    request: TranscriptionRequest
    format: str
    granularities: frozenset[str] = frozenset()
    stream: bool = False
    logprobs: bool = False
    speakers: bool = False

    @property
    def task(self) -> str:
        """What is done: transcribe or translate."""
        return self.request.config.task


class Fields:
    """The fields of a form that nobody has asked for yet."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._left = dict(fields)

    def texts(self, name: str) -> list[str]:
        """Every value of a list, without empty ones."""
        return [value for value in self._left.pop(name, ()) if value.strip()]

    def entries(self, name: str) -> tuple[str, ...]:
        """Every value of a list whose places count, empty ones too; none if all are empty."""
        values = tuple(self._left.pop(name, ()))
        return values if any(value.strip() for value in values) else ()

    def text(self, name: str) -> str | None:
        """The value of a field; None where it is missing or empty."""
        values = self.texts(name)
        if len(values) > 1:
            raise InvalidField(f"{name}: is given more than once")
        return values[0] if values else None

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of the `choices`."""
        value = self.text(name) or default
        if value not in choices:
            raise InvalidField(f"{name}: should be one of {', '.join(choices)}")
        return value

    def choices(self, name: str, choices: Collection[str]) -> frozenset[str]:
        """Any of the `choices`, none of them twice."""
        values = self.texts(name)
        if len(values) > len(choices) or len(set(choices).intersection(values)) < len(values):
            raise InvalidField(f"{name}: should be of {', '.join(choices)}, each once")
        return frozenset(values)

    def flag(self, name: str) -> bool | None:
        """True or false, also as 1 or 0; None if it is missing."""
        value = self.text(name)
        if value is not None and value.lower() not in TEXT_BOOLEANS:
            raise InvalidField(f"{name}: should be true or false")
        return None if value is None else TEXT_BOOLEANS[value.lower()]

    def require_none(self, name: str, reason: str) -> None:
        """Raises Unsupported where a field is given."""
        if self.texts(name):
            raise Unsupported(f"{name}: {reason}")

    def parameters(self) -> dict[str, Any]:
        """The endpoint's own parameters, also by other programs' names for them."""
        names = (*InferenceConfig.model_fields, *OTHER_NAMES)
        return {name: value for name in names if (value := self.text(name))}

    def left(self) -> list[str]:
        """The names of the fields that are not empty and that nothing here has asked for."""
        return [name for name, values in self._left.items() if any(map(str.strip, values))]


def read_fields(form: Form, task: str, endpoint: Endpoint) -> AudioRequest:
    """What a form asks for on the route of `task`.

    Raises InvalidParameter or Unsupported.
    """
    fields = Fields(form.fields)
    model = fields.text("model")
    wanted = fields.choice("response_format", FORMATS[task], "json")
    granularities, untimed = _granularities(fields, wanted)
    logprobs = _logprobs(fields, wanted)
    stream = fields.flag("stream") or False
    vad = _vad_parameters(fields)
    for name, other in INSTEAD.items():
        fields.require_none(name, f"is {other} on this route")
    language = _language(fields)
    keywords, hotwords = fields.texts("keywords"), fields.texts("hotwords")
    if keywords and hotwords:
        raise InvalidField("keywords: are the same as hotwords; give one of them")
    known = _known_speakers(fields)
    channel_names = fields.texts("channel_names")
    diarize, given = fields.flag("diarize"), fields.parameters()
    separate = given.get("channels") == "separate"
    if vad and "vad_parameters" in given:
        raise InvalidField(f"vad_parameters: {STRATEGY} has options, too; give one of them")
    speakers = _speakers([*given, *known], diarize, wanted, endpoint, separate)
    if given.pop("task", task) != task:
        raise InvalidField(f"task: on this route it is {task}")
    parameters = {
        **given,
        **known,
        "task": task,
        "language": language,
        # Separate channels are their speakers, without any diarization.
        "diarize": diarize if separate else speakers,
        "channel_names": channel_names,
        "hotwords": keywords or hotwords,
        **vad,
        "output": [wanted] if wanted in FILES else [],
        "return_timestamps": "word" if "word" in granularities else True,
    }
    if wanted == "verbose_json":
        parameters["group_by_speaker"] = False  # a speaker for each segment
    request = _parse(form.file, parameters, bool(keywords), bool(vad), endpoint)
    left = fields.left()
    warnings = (
        model and model_warning(model, endpoint),
        untimed and f"{untimed}: is ignored; response_format verbose_json has times",
        ignored_names("fields", left) if left else None,
    )
    request = request._replace(warnings=(*request.warnings, *filter(None, warnings)))
    return AudioRequest(request, wanted, granularities, stream, logprobs, speakers)


def _granularities(fields: Fields, wanted: str) -> tuple[frozenset[str], str | None]:
    """The times of a verbose answer; and the field that asks for times of another format, which has
    no place for them.
    """
    field = "timestamp_granularities"
    given = fields.choices(field, GRANULARITIES)
    if fields.flag("word_timestamps") and not given:
        given, field = frozenset(GRANULARITIES), "word_timestamps"
    if wanted == "verbose_json":
        return given or frozenset({"segment"}), None
    return frozenset(), field if given and wanted not in FILES else None


def _logprobs(fields: Fields, wanted: str) -> bool:
    given = fields.choices("include", ("logprobs",))
    if given and wanted != "json":
        raise Unsupported("include: for logprobs response_format should be json")
    return bool(given)


def _vad_parameters(fields: Fields) -> dict[str, Any]:
    """The endpoint's parameter of that name, of the options of `chunking_strategy`.

    Audio is always cut where nobody speaks, so that `auto` and `server_vad` are the same. The SDK
    sends a field for each option; other clients write the object as JSON, or as Python does.
    """
    strategy = fields.text(STRATEGY)
    options: dict[str, Any] = {}
    if strategy and strategy.lstrip().startswith("{"):
        options, strategy = _read_object(strategy), None
    for name in ("type", *VAD_OPTIONS):
        if text := fields.text(f"{STRATEGY}[{name}]"):
            options[name] = _number(text)
    if strategy not in (None, "auto") or options.pop("type", None) not in (None, "server_vad"):
        raise InvalidField(f"{STRATEGY}: should be auto or of type server_vad")
    for name in options:
        if name not in VAD_OPTIONS:
            raise InvalidField(f"{STRATEGY}: should have {', '.join(VAD_OPTIONS)} alone")
    vad = {VAD_OPTIONS[name]: value for name, value in options.items() if value is not None}
    return {"vad_parameters": vad} if vad else {}


def _read_object(text: str) -> dict[str, Any]:
    """An object as JSON or as Python's `str` writes it, which is what httpx does with one."""
    if len(text) > LONGEST_STRATEGY:
        raise InvalidField(f"{STRATEGY}: is too long")
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            return {str(name): each for name, each in value.items()}
    raise InvalidField(f"{STRATEGY}: is not JSON")


def _number(text: str) -> object:
    """The number that a text is; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _language(fields: Fields) -> str | None:
    """The language, whether it is given as one or as a list of one."""
    several = distinct_languages(fields.texts("languages"))
    if len(several) > 1:
        raise Unsupported("languages: should be one language, or none to detect it")
    given = [text for text in [fields.text("language")] if text]
    found = distinct_languages([*given, *several])
    if len(found) > 1:
        raise InvalidField("languages: contradicts language")
    return found[0] if found else None


def _known_speakers(fields: Fields) -> dict[str, Any]:
    """The endpoint's parameter of that name, of two lists of equal length."""
    names, references = fields.entries(NAMES), fields.entries(REFERENCES)
    if len(names) != len(references):
        raise InvalidField(f"{REFERENCES}: should be as many as {NAMES}")
    pairs = zip(names, references, strict=True)
    clips = [{"name": name, "reference": reference} for name, reference in pairs]
    return {"known_speakers": clips} if clips else {}


def _speakers(
    given: Collection[str],
    diarize: bool | None,
    wanted: str,
    endpoint: Endpoint,
    separate: bool,
) -> bool:
    """Whether speakers are looked for: where the format has them, or where a field asks for it;
    `separate` channels are some.

    Raises Unsupported, by the field's name, where they cannot be had or have no place.
    """
    asked = [FIELD_NAMES.get(name, name) for name in HINTS if name in given]
    asked += ["diarize"] if diarize else []
    for name in SUBTITLES:
        if name in given and wanted not in FILES:
            raise Unsupported(f"{name}: response_format should be srt or vtt")
    if "group_by_speaker" in given and wanted != "diarized_json":
        raise Unsupported("group_by_speaker: response_format should be diarized_json")
    if asked and wanted in WITHOUT_SPEAKERS:
        raise Unsupported(f"{asked[0]}: response_format {wanted} has no place for speakers")
    if wanted == "diarized_json":
        if diarize is False:
            raise InvalidField("diarize: response_format diarized_json has speakers")
        asked += [] if separate else ["response_format"]
    if diarize is False or not asked:
        return separate
    if endpoint.diarizer is None:
        raise Unsupported(f"{asked[-1]}: no diarization model is loaded to find speakers")
    return True


def _parse(
    file: bytes, parameters: dict[str, Any], keywords: bool, chunking: bool, endpoint: Endpoint
) -> TranscriptionRequest:
    """The endpoint's request; errors name the field that the client sent: `keywords` in place of
    hot words, options of `chunking_strategy` in place of `vad_parameters`.
    """
    try:
        return endpoint.parse({"inputs": file, "parameters": parameters}, as_text=True)
    except InvalidParameter as error:
        text = str(error).removeprefix(f"{error.code}: ")
        if keywords and text.startswith("hotwords"):
            raise InvalidField(text.replace("hotwords", "keywords", 1)) from error
        if chunking and text.startswith("vad_parameters"):
            for name, ours in VAD_OPTIONS.items():
                text = text.replace(f"vad_parameters: {ours}:", f"{STRATEGY}[{name}]:", 1)
            raise InvalidField(text) from error
        if clip := CLIP.match(text):
            field = REFERENCES if clip["part"] == "reference" else NAMES
            raise InvalidField(f"{field}{clip['place'] or ''}: {text[clip.end() :]}") from error
        raise
