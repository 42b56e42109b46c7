"""Forms of OpenAI's audio API, checked before any audio is decoded.

`TranscriptionForm` and `TranslationForm` are the fields that the API's description names. Every
field of the form is taken by the code that serves it; a warning names the fields that are left. The
endpoint's own parameters are fields too (the SDK's `extra_body`), except those that another field
of the API already decides.

One model is loaded, and it answers whatever model a request names, because clients insist on
sending some name. OpenAI's names, and those under which other projects publish the loaded model,
cause no warning; for any other name a warning says which model has answered.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData
from starlette.requests import Request

from config import OTHER_NAMES, TEXT_BOOLEANS, InferenceConfig
from whosaid.endpoint import Endpoint
from whosaid.errors import InvalidParameter, Unsupported
from whosaid.payload.languages import distinct_languages
from whosaid.payload.parameters import MAX_CLIPS, VadParameters, clips_of
from whosaid.request import TranscriptionRequest, ignored_names
from whosaid.server.errors import BODY_TOO_LARGE, MODEL_NOT_FOUND, Refusal
from whosaid.server.request_body import content, is_text, multipart_form, refuse_in_query

MAX_FIELDS, MAX_FILES = 1000, 8
# The fields whose texts are sound; all others, names included, have so many characters together.
NAMES, REFERENCES, MAX_CHARACTERS = "known_speaker_names", "known_speaker_references", 2**20
# A list's name counts without its brackets: clients write `keywords[]`, `keywords[0]`, `keywords`.
LIST_INDEX = re.compile(r"\[\d*\]$", re.ASCII)
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
FILES = ("srt", "vtt")
FORMATS = {
    TRANSCRIBE: ("json", "text", "srt", "verbose_json", "vtt", "diarized_json"),
    TRANSLATE: ("json", "text", "srt", "verbose_json", "vtt"),
}
WITHOUT_SPEAKERS = ("json", "text")
GRANULARITIES = ("word", "segment")
HINTS = ("num_speakers", "min_speakers", "max_speakers", "known_speakers", "voices")
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
    "known_speakers": NAMES,
}
FIELD_NAMES = {"known_speakers": NAMES}
STRATEGY = "chunking_strategy"
# The options of its server_vad, and what `vad_parameters` call them.
VAD_OPTIONS = {
    "prefix_padding_ms": "speech_pad_ms",
    "silence_duration_ms": "min_silence_duration_ms",
    "threshold": "threshold",
}
# How the endpoint's own refusals call a clip's name or sound.
CLIP = re.compile(r"known_speakers(?:(?P<place>\[\d+\])\.(?P<part>\w+)(?:\.\w+)*)?", re.ASCII)
LONGEST_STRATEGY = 1000  # characters
OPENAI_NAMES = re.compile(
    r"(openai/)?(whisper-1|gpt-([\w.]+-)*(transcribe|realtime)(-[\w.]+)*)", re.ASCII
)
LONGEST_NAME = 200
# "faster-whisper-base" and "base" are "whisper-base".
PUBLISHED = re.compile(r"faster-|whisper-")

Values = tuple[str, ...]


def _texts(values: Values) -> list[str]:
    """Return every value that is not blank."""
    return [value for value in values if value.strip()]


def _entries(values: Values) -> list[str]:
    """Return every value of a list whose places count, blank ones too; none if all are blank."""
    return [*values] if any(map(str.strip, values)) else []


def _text(values: Values) -> str | None:
    given = _texts(values)
    if len(given) > 1:
        raise PydanticCustomError("once", "is given more than once")
    return given[0] if given else None


def _choice(choices: tuple[str, ...], values: Values) -> str:
    value = _text(values) or choices[0]
    if value not in choices:
        raise PydanticCustomError("choice", f"should be one of {', '.join(choices)}")
    return value


def _choices(choices: tuple[str, ...], values: Values) -> frozenset[str]:
    given = _texts(values)
    if len(given) > len(choices) or len(set(choices).intersection(given)) < len(given):
        raise PydanticCustomError("choices", f"should be of {', '.join(choices)}, each once")
    return frozenset(given)


def _flag(values: Values) -> bool | None:
    value = _text(values)
    if value is not None and value.lower() not in TEXT_BOOLEANS:
        raise PydanticCustomError("flag", "should be true or false")
    return None if value is None else TEXT_BOOLEANS[value.lower()]


def _schema(kind: str, **bounds: object) -> WithJsonSchema:
    return WithJsonSchema({"type": kind, **bounds})


def _array(most: int = 2, **items: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": items or {"type": "string"}, "maxItems": most})


ONE, SEVERAL = BeforeValidator(_text), BeforeValidator(_texts)
Text = Annotated[str | None, ONE, _schema("string")]
Flag = Annotated[bool | None, BeforeValidator(_flag), _schema("boolean")]
# Flags and numbers of the endpoint's own parameters, which the endpoint checks.
OwnFlag = Annotated[str | None, ONE, _schema("boolean")]
Part = Annotated[str | None, ONE, _schema("number", minimum=0, maximum=1)]
Size = Annotated[str | None, ONE, _schema("integer", minimum=1, maximum=1000)]
Clips = Annotated[list[str], BeforeValidator(_entries), _array(MAX_CLIPS)]


class TranslationForm(BaseModel):
    """The fields of a translation; each is validated from the tuple of all its values."""

    model_config = ConfigDict(
        extra="allow", hide_input_in_errors=True, validate_by_name=True, loc_by_alias=False
    )
    task: ClassVar[str] = TRANSLATE

    file: Annotated[SkipValidation[bytes], _schema("string", format="binary")]
    model: Text = None
    language: Text = None
    languages: Annotated[list[str], SEVERAL, _array(1)] = Field(default=[], alias="languages[]")
    prompt: Text = None
    keywords: Annotated[list[str], SEVERAL, _array(200)] = Field(default=[], alias="keywords[]")
    response_format: Annotated[
        str,
        BeforeValidator(partial(_choice, FORMATS[TRANSLATE])),
        WithJsonSchema({"enum": [*FORMATS[TRANSLATE]]}),
    ] = "json"
    temperature: Annotated[str | None, ONE, _schema("number", minimum=0, maximum=1, default=0)] = (
        None
    )
    timestamp_granularities: Annotated[
        frozenset[str],
        BeforeValidator(partial(_choices, GRANULARITIES)),
        _array(enum=[*GRANULARITIES]),
    ] = Field(default=frozenset(), alias="timestamp_granularities[]")
    stream: Flag = None
    chunking_strategy: Text = None
    include: Annotated[
        frozenset[str], BeforeValidator(partial(_choices, ("logprobs",))), _array(enum=["logprobs"])
    ] = Field(default=frozenset(), alias="include[]")
    diarize: Flag = None
    known_speaker_names: Clips = Field(default=[], alias="known_speaker_names[]")
    known_speaker_references: Clips = Field(default=[], alias="known_speaker_references[]")
    known_speaker_threshold: Part = None
    voices: Flag = None
    num_speakers: Annotated[str | None, ONE, _schema("integer", minimum=1, maximum=100)] = None
    channels: Annotated[
        str | None, ONE, WithJsonSchema({"enum": ["mix", "separate"], "default": "mix"})
    ] = None
    channel_names: Annotated[list[str], SEVERAL, _array(8)] = Field(
        default=[], alias="channel_names[]"
    )
    assisted: OwnFlag = None
    max_line_width: Size = None
    max_line_count: Size = None
    max_words_per_line: Size = None
    highlight_words: OwnFlag = None
    subtitle_speakers: OwnFlag = None

    @classmethod
    def read(cls, file: bytes, fields: Mapping[str, Values]) -> TranslationForm:
        """Return the checked form. Raises InvalidParameter."""
        try:
            return cls.model_validate({**fields, "file": file})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise InvalidParameter(first["msg"], str(first["loc"][0])) from None

    def take(self, name: str) -> Values:
        """Return all values of a field that the class does not name; it then counts as served."""
        values: Values = (self.model_extra or {}).pop(name, ())
        return values

    def take_text(self, name: str) -> str | None:
        """Return the value of such a field, None if it is missing or blank."""
        values = _texts(self.take(name))
        if len(values) > 1:
            raise InvalidParameter("is given more than once", name)
        return values[0] if values else None

    def parameters(self) -> dict[str, Any]:
        """Return the endpoint's own parameters, also those under other programs' names."""
        found = {}
        for name in (*InferenceConfig.model_fields, *OTHER_NAMES):
            if name in ("language", "diarize", "channel_names"):
                continue
            named = name in type(self).model_fields
            if value := getattr(self, name) if named else self.take_text(name):
                found[name] = value
        return found

    def left(self) -> list[str]:
        """Return the names of the fields that are not blank and that nothing has served."""
        return [name for name, values in (self.model_extra or {}).items() if _texts(values)]


class TranscriptionForm(TranslationForm):
    """The fields of a transcription."""

    task: ClassVar[str] = TRANSCRIBE

    text: Text = None
    response_format: Annotated[
        str,
        BeforeValidator(partial(_choice, FORMATS[TRANSCRIBE])),
        WithJsonSchema({"enum": [*FORMATS[TRANSCRIBE]]}),
    ] = "json"


FORMS = {TRANSCRIBE: TranscriptionForm, TRANSLATE: TranslationForm}


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
        return self.request.config.task


async def read_form(request: Request, task: str, endpoint: Endpoint) -> AudioRequest:
    """Return what the form in a request's body asks for on the route of `task`.

    Raises InvalidRequest, InvalidParameter, Unsupported and Refusal.
    """
    refuse_in_query(request)
    async with multipart_form(request, MAX_FILES, MAX_FIELDS) as form:
        file, fields = await asyncio.to_thread(_split, form)
    return await asyncio.to_thread(read_fields, FORMS[task].read(file, fields), endpoint)


def _split(form: FormData) -> tuple[bytes, dict[str, Values]]:
    """Return the file, and every value of every field by name, in order."""
    fields: dict[str, Values] = {}
    files: list[bytes] = []
    characters = 0
    for name, value in form.multi_items():
        if isinstance(value, str):
            field = LIST_INDEX.sub("", name)
            characters += len(name) + (len(value) if field != REFERENCES else 0)
            if characters > MAX_CHARACTERS:
                text = f"beside audio a form may have {MAX_CHARACTERS} characters"
                raise Refusal(BODY_TOO_LARGE, text)
            fields[field] = (*fields.get(field, ()), value)
        elif name == "file":
            data = content(value.file)
            if is_text(value, data):
                raise InvalidParameter("is text; curl sends a file by -F file=@talk.mp3", "file")
            files.append(data)
        else:
            raise InvalidParameter("should be text, not a file", shown(name))
    if len(files) != 1 or "file" in fields:
        raise InvalidParameter("should be one file, sent as a file part", "file")
    return files[0], fields


def shown(name: str) -> str:
    """Return a client's name for a field, in ASCII and cut short: it may hold anything."""
    return ascii(name[:40])[1:-1] or "(no name)"


def read_fields(form: TranslationForm, endpoint: Endpoint) -> AudioRequest:
    """Return what a form asks for. Raises InvalidParameter or Unsupported."""
    wanted, task = form.response_format, form.task
    granularities, untimed = _granularities(form)
    if form.include and wanted != "json":
        raise Unsupported("for logprobs response_format should be json", "include")
    vad = _vad_parameters(form)
    for name, other in INSTEAD.items():
        if _texts(form.take(name)):
            raise Unsupported(f"is {other} on this route", name)
    language = _language(form)
    hotwords = _texts(form.take("hotwords"))
    if form.keywords and hotwords:
        raise InvalidParameter("are the same as hotwords; give one of them", "keywords")
    known = _known_speakers(form)
    given = form.parameters()
    separate = given.get("channels") == "separate"
    if vad and "vad_parameters" in given:
        raise InvalidParameter(f"{STRATEGY} has options, too; give one of them", "vad_parameters")
    speakers = _speakers([*given, *known], form.diarize, wanted, endpoint, separate)
    if given.pop("task", task) != task:
        raise InvalidParameter(f"on this route it is {task}", "task")
    parameters = {
        **given,
        **known,
        "task": task,
        "language": language,
        # Separate channels are their speakers, without any diarization.
        "diarize": form.diarize if separate else speakers,
        "channel_names": form.channel_names,
        "hotwords": form.keywords or hotwords,
        **vad,
        "output": [wanted] if wanted in FILES else [],
        "return_timestamps": "word" if "word" in granularities else True,
    }
    if wanted == "verbose_json":
        parameters["group_by_speaker"] = False  # a speaker for each segment
    request = _parse(form, parameters, endpoint)
    left = form.left()
    warnings = (
        form.model and model_warning(form.model, endpoint),
        untimed and f"{untimed}: is ignored; response_format verbose_json has times",
        ignored_names("fields", left) if left else None,
    )
    request = request._replace(warnings=(*request.warnings, *filter(None, warnings)))
    return AudioRequest(
        request, wanted, granularities, bool(form.stream), bool(form.include), speakers
    )


def _granularities(form: TranslationForm) -> tuple[frozenset[str], str | None]:
    """Return the times of a verbose answer, and the field that asks for times of another format,
    which has no place for them.
    """
    field, given = "timestamp_granularities", form.timestamp_granularities
    text = form.take_text("word_timestamps")
    if text and text.lower() not in TEXT_BOOLEANS:
        raise InvalidParameter("should be true or false", "word_timestamps")
    if text and TEXT_BOOLEANS[text.lower()] and not given:
        given, field = frozenset(GRANULARITIES), "word_timestamps"
    if form.response_format == "verbose_json":
        return given or frozenset({"segment"}), None
    return frozenset(), field if given and form.response_format not in FILES else None


def _vad_parameters(form: TranslationForm) -> dict[str, Any]:
    """Return the endpoint's parameter of that name, of the options of `chunking_strategy`.

    Audio is always cut where nobody speaks, so that `auto` and `server_vad` are the same. The SDK
    sends a field for each option; other clients write the object as JSON, or as Python does.
    """
    strategy = form.chunking_strategy
    options: dict[str, Any] = {}
    if strategy and strategy.lstrip().startswith("{"):
        options, strategy = _read_object(strategy), None
    for name in ("type", *VAD_OPTIONS):
        if text := form.take_text(f"{STRATEGY}[{name}]"):
            options[name] = _number(text)
    if strategy not in (None, "auto") or options.pop("type", None) not in (None, "server_vad"):
        raise InvalidParameter("should be auto or of type server_vad", STRATEGY)
    if not options.keys() <= VAD_OPTIONS.keys():
        raise InvalidParameter(f"should have {', '.join(VAD_OPTIONS)} alone", STRATEGY)
    vad = {VAD_OPTIONS[name]: value for name, value in options.items() if value is not None}
    try:
        VadParameters.model_validate(vad)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        names = {ours: name for name, ours in VAD_OPTIONS.items()}
        field = f"{STRATEGY}[{names[str(first['loc'][0])]}]"
        raise InvalidParameter(first["msg"].replace("Input should", "should"), field) from None
    return {"vad_parameters": vad} if vad else {}


def _read_object(text: str) -> dict[str, Any]:
    """Read an object as JSON or as Python's `str` writes it, which is what httpx does with one."""
    if len(text) > LONGEST_STRATEGY:
        raise InvalidParameter("is too long", STRATEGY)
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            return {str(name): each for name, each in value.items()}
    raise InvalidParameter("is not JSON", STRATEGY)


def _number(text: str) -> object:
    """Return the number that a text is; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _language(form: TranslationForm) -> str | None:
    """Return the language, given as one or as a list of one."""
    several = distinct_languages(form.languages)
    if len(several) > 1:
        raise Unsupported("should be one language, or none to detect it", "languages")
    found = distinct_languages([*filter(None, [form.language]), *several])
    if len(found) > 1:
        raise InvalidParameter("contradicts language", "languages")
    return found[0] if found else None


def _known_speakers(form: TranslationForm) -> dict[str, Any]:
    """Return the endpoint's parameter of that name, of two lists of equal length."""
    names, references = form.known_speaker_names, form.known_speaker_references
    if len(names) != len(references):
        raise InvalidParameter(f"should be as many as {NAMES}", REFERENCES)
    return {"known_speakers": clips_of(names, references)} if names else {}


def _speakers(
    given: Collection[str],
    diarize: bool | None,
    wanted: str,
    endpoint: Endpoint,
    separate: bool,
) -> bool:
    """Return whether the answer has speakers: if its format or a field asks for them, or if
    channels are `separate`.

    Raises Unsupported if no model finds speakers, or if the format has no place for them.
    """
    asked = [FIELD_NAMES.get(name, name) for name in HINTS if name in given]
    asked += ["diarize"] if diarize else []
    for name in SUBTITLES:
        if name in given and wanted not in FILES:
            raise Unsupported("response_format should be srt or vtt", name)
    if "group_by_speaker" in given and wanted != "diarized_json":
        raise Unsupported("response_format should be diarized_json", "group_by_speaker")
    if "voices" in given and wanted in FILES:
        raise Unsupported(f"response_format {wanted} has no place for voices", "voices")
    if asked and wanted in WITHOUT_SPEAKERS:
        raise Unsupported(f"response_format {wanted} has no place for speakers", asked[0])
    if wanted == "diarized_json":
        if diarize is False:
            raise InvalidParameter("response_format diarized_json has speakers", "diarize")
        asked += [] if separate else ["response_format"]
    if diarize is False or not asked:
        return separate
    if endpoint.diarizer is None:
        raise Unsupported("no diarization model is loaded to find speakers", asked[-1])
    return True


def _parse(
    form: TranslationForm, parameters: dict[str, Any], endpoint: Endpoint
) -> TranscriptionRequest:
    """Return the endpoint's request; errors name the field that the client sent: `keywords` instead
    of hot words, the lists of names and references instead of `known_speakers`.
    """
    try:
        return endpoint.parse({"inputs": form.file, "parameters": parameters}, as_text=True)
    except InvalidParameter as error:
        if form.keywords and error.param == "hotwords":
            raise InvalidParameter(error.reason, "keywords") from error
        if clip := CLIP.fullmatch(error.param or ""):
            field = REFERENCES if clip["part"] in ("reference", "voice") else NAMES
            raise InvalidParameter(error.reason, f"{field}{clip['place'] or ''}") from error
        raise


def model_id(endpoint: Endpoint) -> str:
    """Return the hub id of the loaded model, or the name of its folder: paths stay here."""
    name = endpoint.recogniser.transcriber.models.name
    return PurePath(name).name if PurePath(name).is_absolute() else name


def means_loaded(name: str, endpoint: Endpoint) -> bool:
    """Return whether `name` is the loaded model's: its own, another project's, or OpenAI's for a
    model that transcribes.
    """
    if len(name) > LONGEST_NAME:
        return False
    return bool(OPENAI_NAMES.fullmatch(name)) or _size(name) == _size(model_id(endpoint))


def model_warning(name: str, endpoint: Endpoint, field: str = "model") -> str | None:
    """Return the warning for a request whose `field` names another model than the loaded one."""
    if means_loaded(name, endpoint):
        return None
    return f"{field}: {shown(name)} is not loaded; this server has {model_id(endpoint)} alone"


def require_model(name: str, endpoint: Endpoint) -> None:
    """Raise Refusal for the name of another model than the loaded one."""
    if not means_loaded(name, endpoint):
        loaded = model_id(endpoint)
        raise Refusal(
            MODEL_NOT_FOUND,
            f"{shown(name)} is not loaded; this server has {loaded} alone: send that name,"
            " whisper-1, or none",
            "model",
        )


def _size(name: str) -> str:
    """Return what a model's names share: "large-v3" of "Systran/faster-whisper-large-v3"."""
    return PUBLISHED.sub("", name.rpartition("/")[2].lower())


def model_json(endpoint: Endpoint, created: int) -> dict[str, Any]:
    """Return the loaded model; `created` is in seconds since 1970."""
    name = model_id(endpoint)
    owner = name.partition("/")[0] if "/" in name else "local"
    return {"id": name, "object": "model", "created": created, "owned_by": owner}
