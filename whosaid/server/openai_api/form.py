"""Forms of OpenAI's audio API, checked before any audio is decoded.

`TranscriptionForm` and `TranslationForm` have OpenAI's fields, and the endpoint's own parameters
(the SDK's `extra_body`), except those that a field of OpenAI's API determines. The loaded model
answers whatever model a request names; a warning says so, except for OpenAI's names and names under
which other projects publish the loaded model.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, ValidationError
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData
from starlette.requests import Request

from config import MAX_HOTWORDS, OTHER_NAMES, TEXT_BOOLEANS, InferenceConfig
from whosaid.answer.cues import LAYOUT
from whosaid.endpoint import Endpoint
from whosaid.endpoint.request import CUES, TranscriptionRequest, ignored_names
from whosaid.errors import InvalidParameter, Unsupported
from whosaid.payload.languages import distinct_languages
from whosaid.payload.parameters import LONGEST_MS, LONGEST_PAD_MS, MAX_CLIPS
from whosaid.server.description import Model
from whosaid.server.errors import Kind, Refusal
from whosaid.server.openai_api.logprobs import TokenBytes
from whosaid.server.request_body import LISTS, content, is_text, multipart_form, refuse_in_query

MAX_FIELDS, MAX_FILES = 1000 + MAX_HOTWORDS, 8
# The fields that hold audio as text; all others, names included, have so many characters together.
NAMES, REFERENCES, MAX_CHARACTERS = "known_speaker_names", "known_speaker_references", 2**20
# The brackets of a list's name are dropped: clients write `keywords[]`, `keywords[0]`, `keywords`.
LIST_INDEX = re.compile(r"\[\d*\]$", re.ASCII)
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
WITHOUT_SPEAKERS = ("json", "text")
HINTS = ("num_speakers", "min_speakers", "max_speakers", "known_speakers", "voices")
OWN_NAMES = (*InferenceConfig.model_fields, *OTHER_NAMES)
# The fields that replace parameters of the endpoint.
INSTEAD = {
    "return_timestamps": "timestamp_granularities",
    "output": "response_format",
    "known_speakers": NAMES,
}
STRATEGY, LONGEST_STRATEGY = "chunking_strategy", 1000  # characters
# A clip's name or audio, as the endpoint's refusals call them.
CLIP = re.compile(r"known_speakers(?:(?P<place>\[\d+\])\.(?P<part>\w+)(?:\.\w+)*)?", re.ASCII)
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
    """Return all values, because positions count; empty if all are blank."""
    return [*values] if any(map(str.strip, values)) else []


def _text(values: Values) -> str | None:
    given = _texts(values)
    if len(given) > 1:
        raise PydanticCustomError("once", "is given more than once")
    return given[0] if given else None


ONE, SEVERAL = BeforeValidator(_text), BeforeValidator(_texts)
ONE_FORMAT = BeforeValidator(lambda values: _text(values) or "json")
Text = Annotated[str | None, ONE]
Flag = Annotated[bool | None, ONE]
TranslationFormat = Annotated[Literal["json", "text", "srt", "verbose_json", "vtt"], ONE_FORMAT]
TranscriptionFormat = Annotated[
    Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"], ONE_FORMAT
]
Clips = Annotated[list[str], Field(max_length=MAX_CLIPS), BeforeValidator(_entries)]


class TranslationForm(BaseModel):
    """The fields of a translation; each is validated from the tuple of all its values."""

    model_config = ConfigDict(
        extra="allow", hide_input_in_errors=True, validate_by_name=True, loc_by_alias=False
    )
    task: ClassVar[str] = TRANSLATE

    file: SkipValidation[bytes]
    model: Text = None
    language: Text = None
    languages: Annotated[list[str], SEVERAL] = Field(default=[], alias="languages[]")
    keywords: Annotated[list[str], Field(max_length=MAX_HOTWORDS), SEVERAL] = Field(
        default=[], alias="keywords[]"
    )
    response_format: TranslationFormat = "json"
    timestamp_granularities: Annotated[
        list[Literal["word", "segment"]], Field(max_length=2), SEVERAL
    ] = Field(default=[], alias="timestamp_granularities[]")
    word_timestamps: Flag = None
    stream: Flag = None
    chunking_strategy: Text = None
    include: Annotated[list[Literal["logprobs"]], Field(max_length=1), SEVERAL] = Field(
        default=[], alias="include[]"
    )
    diarize: Flag = None
    known_speaker_names: Clips = Field(default=[], alias="known_speaker_names[]")
    known_speaker_references: Clips = Field(default=[], alias="known_speaker_references[]")

    @classmethod
    def read(cls, file: bytes, fields: Mapping[str, Values]) -> TranslationForm:
        """Return the checked form. Raises InvalidParameter."""
        try:
            return cls.model_validate({**fields, "file": file})
        except ValidationError as error:
            name, reason = first_fault(error)
            raise InvalidParameter(reason, name) from None

    @classmethod
    def described(cls) -> dict[str, Any]:
        """Return the JSON schema with the endpoint's parameters, without null and empty lists."""
        schema, own = cls.model_json_schema(), InferenceConfig.model_json_schema()["properties"]
        own = {name: each for name, each in own.items() if name not in (*INSTEAD, "task")}
        fields = own | schema["properties"]
        return {**schema, "properties": {name: _in_form(each) for name, each in fields.items()}}

    def texts(self, name: str) -> list[str]:
        """Return the values of a field that is not OpenAI's; none if all are blank."""
        return _texts((self.model_extra or {}).get(name, ()))

    def parameters(self) -> dict[str, Any]:
        """Return the endpoint's parameters. Raises InvalidParameter or Unsupported."""
        given = {name: values for name in OWN_NAMES if (values := self.texts(name))}
        found = {name: each for name, each in given.items() if not _is_default(name, each)}
        for name, values in found.items():
            if name in INSTEAD:
                raise Unsupported(f"is {INSTEAD[name]} on this route", name)
            if len(values) > 1 and name not in LISTS:
                raise InvalidParameter("is given more than once", name)
        return {name: ",".join(values) for name, values in found.items()}

    def unserved(self) -> list[str]:
        """Return the names of all fields without effect."""
        served = {*OWN_NAMES, *(f"{STRATEGY}[{name}]" for name in ServerVad.model_fields)}
        return [name for name in self.model_extra or {} if name not in served and self.texts(name)]


def _in_form(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema without null and without an empty default."""
    schema = {key: each for key, each in field.items() if each not in (None, [])}
    kinds = [each for each in schema.pop("anyOf", [schema]) if each.get("type") != "null"]
    return kinds[0] | schema if len(kinds) == 1 else schema | {"anyOf": kinds}


def _is_default(name: str, values: Sequence[str]) -> bool:
    """Return whether a field repeats a default, as generated clients do; not `task`."""
    if name in OTHER_NAMES or name == "task" or len(values) > 1:
        return False
    default, text = InferenceConfig.model_fields[name].default, values[0].strip()
    value = TEXT_BOOLEANS.get(text.lower()) if isinstance(default, bool) else text
    return value in (default, str(default)) and default is not None


class TranscriptionForm(TranslationForm):
    """The fields of a transcription."""

    task: ClassVar[str] = TRANSCRIBE

    response_format: TranscriptionFormat = "json"  # type: ignore[assignment]


class ServerVad(BaseModel):
    """The options of `chunking_strategy`, with the bounds of the endpoint's `vad_parameters`."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    type: Literal["server_vad"] | None = None
    threshold: float | None = Field(default=None, gt=0, lt=1)
    prefix_padding_ms: int | None = Field(
        default=None, ge=0, le=LONGEST_PAD_MS, serialization_alias="speech_pad_ms"
    )
    silence_duration_ms: int | None = Field(
        default=None, ge=0, le=LONGEST_MS, serialization_alias="min_silence_duration_ms"
    )


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """A request of the audio API: the endpoint's, and the response `format`, with `granularities`
    if it is verbose, and with `token_bytes` if log-probabilities are wanted.
    """

    request: TranscriptionRequest
    format: str
    granularities: frozenset[str] = frozenset()
    stream: bool = False
    token_bytes: TokenBytes | None = None

    @property
    def task(self) -> str:
        return self.request.config.task


async def read_form(
    request: Request, kind: type[TranslationForm], endpoint: Endpoint
) -> AudioRequest:
    """Parse a request's form. Raises InvalidRequest, InvalidParameter, Unsupported, Refusal."""
    refuse_in_query(request)
    async with multipart_form(request, MAX_FILES, MAX_FIELDS) as form:
        file, fields = await asyncio.to_thread(_split, form)
    return await asyncio.to_thread(read_fields, kind.read(file, fields), endpoint)


def _split(form: FormData) -> tuple[bytes, dict[str, Values]]:
    """Return the file, and all values of each field by name, in order."""
    fields: dict[str, Values] = {}
    files: list[bytes] = []
    characters = 0
    for name, value in form.multi_items():
        if isinstance(value, str):
            field = LIST_INDEX.sub("", name)
            characters += len(name) + (len(value) if field != REFERENCES else 0)
            if characters > MAX_CHARACTERS:
                text = f"beside audio a form may have {MAX_CHARACTERS} characters"
                raise Refusal(Kind.BODY_TOO_LARGE, text)
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
    """Return a client's name for a field, in ASCII and cut short, because it may hold anything."""
    return ascii(name[:40])[1:-1] or "(no name)"


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the field of pydantic's first error, and the reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return str(*first["loc"][:1]), first["msg"].replace("Input should", "should")


def read_fields(form: TranslationForm, endpoint: Endpoint) -> AudioRequest:
    """Return the request of a form. Raises InvalidParameter or Unsupported."""
    wanted, task = form.response_format, form.task
    granularities, untimed = _granularities(form)
    if form.include and wanted != "json":
        raise Unsupported("for logprobs response_format should be json", "include")
    given, vad = form.parameters(), _vad_parameters(form)
    if form.keywords and "hotwords" in given:
        raise InvalidParameter("mean the same as hotwords; send one of the two", "keywords")
    if vad and "vad_parameters" in given:
        raise InvalidParameter(f"{STRATEGY} has options, too; give one of them", "vad_parameters")
    if given.pop("task", task) != task:
        raise InvalidParameter(f"this route only does {task}", "task")
    if clips := paired_clips(form.known_speaker_names, form.known_speaker_references):
        given["known_speakers"] = clips
    _refuse_unshown(given, wanted)
    diarize = _diarize(given, form.diarize, wanted, endpoint)
    parameters = {
        **given,
        "task": task,
        "language": one_language(form.language, form.languages),
        "diarize": diarize,
        "hotwords": form.keywords or given.get("hotwords", []),
        **vad,
        "output": [wanted] if wanted in CUES else [],
        "return_timestamps": "word" if "word" in granularities else True,
    }
    if wanted == "verbose_json":
        parameters["group_by_speaker"] = False  # one segment per chunk, each with a speaker
    request = _parse(form, parameters, endpoint)
    unserved, named = form.unserved(), "channel_names" in given
    warnings = (
        form.model and model_warning(form.model, endpoint),
        f"channel_names: are ignored; response_format {wanted} shows no speakers"
        if named and wanted in WITHOUT_SPEAKERS
        else None,
        untimed and f"{untimed}: is ignored; response_format verbose_json has times",
        ignored_names("fields", unserved) if unserved else None,
    )
    request = request._replace(warnings=(*request.warnings, *filter(None, warnings)))
    token_bytes = endpoint.transcriber.token_bytes if form.include else None
    return AudioRequest(request, wanted, granularities, bool(form.stream), token_bytes)


def _granularities(form: TranslationForm) -> tuple[frozenset[str], str | None]:
    """Return a verbose answer's granularities, and a field that asks for times in vain."""
    field, given = "timestamp_granularities", frozenset[str](form.timestamp_granularities)
    if form.word_timestamps and not given:
        field, given = "word_timestamps", frozenset({"word", "segment"})
    if form.response_format == "verbose_json":
        return given or frozenset({"segment"}), None
    return frozenset(), field if given and form.response_format not in CUES else None


def _vad_parameters(form: TranslationForm) -> dict[str, Any]:
    """Return `vad_parameters` from `chunking_strategy`, which the SDK sends as fields, others as
    JSON or Python text. `auto` and `server_vad` mean the same: audio is cut in pauses.
    """
    strategy = form.chunking_strategy or "auto"
    options = {} if strategy == "auto" else _read_object(strategy)
    for name in ServerVad.model_fields:
        if values := form.texts(f"{STRATEGY}[{name}]"):
            options[name] = values[-1]
    try:
        vad = ServerVad.model_validate(options)
    except ValidationError as error:
        name, reason = first_fault(error)
        raise InvalidParameter(reason, f"{STRATEGY}[{shown(name)}]") from None
    given = vad.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"vad_parameters": given} if given else {}


def _read_object(text: str) -> dict[str, Any]:
    """Read an object from JSON or from Python's `str`, with which httpx writes it."""
    if len(text) > LONGEST_STRATEGY:
        raise InvalidParameter("is too long", STRATEGY)
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            return {str(name): each for name, each in value.items()}
    raise InvalidParameter("should be auto, or JSON of type server_vad", STRATEGY)


def one_language(language: str | None, languages: Sequence[str]) -> str | None:
    """Return the language. Raises InvalidParameter or Unsupported, naming `languages`."""
    several = distinct_languages(languages)
    if len(several) > 1:
        raise Unsupported("should be one language, or none to detect it", "languages")
    found = distinct_languages([language or "", *several])
    if len(found) > 1:
        raise InvalidParameter("contradicts language", "languages")
    return found[0] if found else None


def paired_clips(names: Sequence[str], references: Sequence[Any]) -> list[dict[str, Any]]:
    """Return `known_speakers` from two lists, in which a JSON object is a voice. Raises
    InvalidParameter if their lengths differ.
    """
    if len(names) != len(references):
        raise InvalidParameter(f"should be as many as {NAMES}", REFERENCES)
    return [
        {"name": name, "voice" if reference[:1] == "{" else "reference": reference}
        for name, reference in zip(names, references, strict=True)
    ]


def _refuse_unshown(given: Mapping[str, object], wanted: str) -> None:
    """Raise Unsupported for a parameter that the response format cannot show."""
    for name in LAYOUT:
        if name in given and wanted not in CUES:
            raise Unsupported("response_format should be srt or vtt", name)
    if "group_by_speaker" in given and wanted != "diarized_json":
        raise Unsupported("response_format should be diarized_json", "group_by_speaker")
    if "voices" in given and wanted in CUES:
        raise Unsupported(f"response_format {wanted} cannot show voices", "voices")


def _diarize(
    given: Mapping[str, object], diarize: bool | None, wanted: str, endpoint: Endpoint
) -> bool | None:
    """Return `diarize`: True if the format or a field requests speakers, unless channels count as
    such. Raises Unsupported without a diarization model, or if the format shows no speakers.
    """
    separate = given.get("channels") == "separate"
    asked = [INSTEAD.get(name, name) for name in HINTS if name in given]
    asked += ["diarize"] if diarize else []
    if asked and wanted in WITHOUT_SPEAKERS:
        raise Unsupported(f"response_format {wanted} cannot show speakers", asked[0])
    if wanted == "diarized_json":
        if diarize is False:
            raise InvalidParameter("response_format diarized_json has speakers", "diarize")
        asked += [] if separate else ["response_format"]
    finds = bool(asked) and diarize is not False
    if finds and endpoint.diarizer is None:
        raise Unsupported("no diarization model is loaded to find speakers", asked[-1])
    return diarize if separate else finds


def _parse(
    form: TranslationForm, parameters: dict[str, Any], endpoint: Endpoint
) -> TranscriptionRequest:
    """Return the endpoint's request. Errors name the client's fields, such as `keywords`."""
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
    """Return the Hub id of the loaded model, or its folder's name, because paths are private."""
    name = endpoint.transcriber.capabilities.name
    return PurePath(name).name if PurePath(name).is_absolute() else name


def means_loaded(name: str, endpoint: Endpoint) -> bool:
    """Return whether `name` is the model's own, another project's for it, or OpenAI's."""
    if len(name) > LONGEST_NAME:
        return False
    return bool(OPENAI_NAMES.fullmatch(name)) or _size(name) == _size(model_id(endpoint))


def model_warning(name: str, endpoint: Endpoint, field: str = "model") -> str | None:
    """Return the warning for a request whose `field` names another model than the loaded one."""
    if means_loaded(name, endpoint):
        return None
    return f"{field}: {shown(name)} is not loaded; this server has {model_id(endpoint)} alone"


def require_model(name: str, endpoint: Endpoint) -> None:
    if not means_loaded(name, endpoint):
        told = f"{shown(name)} is not loaded; this server has only {model_id(endpoint)}"
        raise Refusal(Kind.MODEL_NOT_FOUND, f"{told}: send that name, whisper-1, or none", "model")


def _size(name: str) -> str:
    """Return the part that a model's names share: Systran/faster-whisper-tiny is "tiny"."""
    return PUBLISHED.sub("", name.rpartition("/")[2].lower())


def model_body(endpoint: Endpoint, created: int) -> Model:
    name = model_id(endpoint)
    owner = name.partition("/")[0] if "/" in name else "local"
    return Model(id=name, object="model", created=created, owned_by=owner)
