"""`POST /v1/transcripts/{format}`: renders a transcript, perhaps corrected, as a file.

Needs no model and keeps nothing. A body is parsed at once, so it may have MAX_BYTES only.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, get_args
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from config import OutputFormat, WrongParameter
from whosaid.answer.corrected import consistent
from whosaid.answer.formats import FORMATS, MEDIA_TYPES, file_bytes
from whosaid.answer.kept import layout_of
from whosaid.answer.rendering import LAYOUT, read_rendering
from whosaid.answer.speaker_names import BY_LABEL, speakers_of, with_speaker_names
from whosaid.errors import InvalidParameter
from whosaid.payload.parameters import MAX_NAME_CHARACTERS, Voice
from whosaid.server.description import ANY_BODY, PARAMETERS, AnswerBody, ErrorBody, refusals
from whosaid.server.errors import Kind, Refusal
from whosaid.server.request_body import read_all

MAX_BYTES = 16 * 2**20  # of an answer of five hours
UNTITLED = "transcript"
NOT_ASCII_NAME = re.compile(r"[^A-Za-z0-9 ._()-]")

NAMES = ("json", *get_args(OutputFormat))
FormatName = Annotated[str, Path(json_schema_extra={"enum": [*NAMES]})]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Span = tuple[Seconds, Seconds]
SpeakerName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class _Sent(BaseModel):
    """An object of a transcript; keys that no file shows are kept."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)


class SentWord(_Sent):
    """A word; `word` keeps the space before it."""

    word: str
    timestamp: Span


class SentTurn(_Sent):
    """A stretch of text; its words, if it has any, are its text."""

    speaker: str | None = None
    text: str = ""
    timestamp: Span
    words: list[SentWord] = []
    channel: int | None = Field(default=None, ge=0)


class SentChannel(_Sent):
    """A channel; `name` is its speaker."""

    name: str


class SentTranscript(_Sent):
    """An answer, of which `speakers` or, without speakers, `chunks` may be corrected."""

    duration: Seconds
    text: str = ""
    speakers: list[SentTurn] = []
    chunks: list[SentTurn] = []
    words: list[SentWord] = []
    channels: list[SentChannel] = []
    voices: dict[str, Voice] = {}
    output: dict[str, str] = {}
    language: str | None = None
    warnings: list[str] = []


class FileRequest(BaseModel):
    """A transcript, names for its labels, and parameters of the file's layout."""

    model_config = ConfigDict(hide_input_in_errors=True)

    transcript: SentTranscript
    speaker_names: dict[str, SpeakerName] = {}
    parameters: dict[str, Any] = {}


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a schema with the definitions `parts` in place of references to them."""
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(each, parts) for key, each in schema.items() if key != "$defs"}


def _described() -> dict[str, Any]:
    schema = FileRequest.model_json_schema()
    body = _inlined(schema, schema["$defs"])
    layout = {name: PARAMETERS["properties"][name] for name in LAYOUT}
    body["properties"]["parameters"] = {"type": "object", "properties": layout}
    text = {"schema": {"type": "string"}}
    content = {kind: text for kind in MEDIA_TYPES.values() if kind != MEDIA_TYPES["json"]}
    return {
        "summary": "Render a transcript as a file",
        "responses": {
            200: {"description": "The file", "model": AnswerBody, "content": content},
            **refusals(*ANY_BODY, model=ErrorBody),
        },
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}
        },
    }


def router() -> APIRouter:
    routes = APIRouter(prefix="/v1")

    @routes.post("/transcripts/{format}", **_described())
    async def render_transcript(request: Request, format: FormatName) -> Response:
        if format not in NAMES:
            raise InvalidParameter(f"should be {', '.join(NAMES)}", "format")
        content, name = await asyncio.to_thread(_render, await read_all(request, MAX_BYTES), format)
        disposition = f'attachment; filename="{NOT_ASCII_NAME.sub("_", name)}"'
        headers = {"Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(name, '')}"}
        return Response(content, headers=headers, media_type=MEDIA_TYPES[format])

    return routes


def _render(body: bytes, format: str) -> tuple[bytes, str]:
    """Return the file and its name. Raises InvalidParameter, Refusal."""
    sent = _parse(body)
    try:
        layout = layout_of(sent.parameters)
    except WrongParameter as error:
        raise InvalidParameter(error.reason, error.param) from error
    transcript: dict[str, Any] = {"language": None, "warnings": []}
    transcript |= sent.transcript.model_dump(exclude_unset=True)
    turns = transcript.get("output", {}).get("rttm")
    transcript["output"] = {} if turns is None else {"rttm": turns}
    answer = consistent(transcript)
    names = sent.speaker_names
    if names:
        there = speakers_of(answer)
        names = {label: name for label, name in names.items() if label in there}
        answer = with_speaker_names(answer, names)
    stem = PurePath(layout.recording_name or "").stem or UNTITLED
    name = f"{stem}.{format}"
    if format == "json":
        del answer["output"]
        given = {BY_LABEL: names} if names else {}
        return to_json(answer | given, inf_nan_mode="null"), name
    try:
        rendering = read_rendering(answer, layout)
    except ValueError as error:
        raise InvalidParameter("should be RTTM", "transcript.output.rttm") from error
    return file_bytes(format, FORMATS[format](rendering)), name  # type: ignore[index]


def _parse(body: bytes) -> FileRequest:
    try:
        return FileRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where, *path = first["loc"] or ("",)
    if not where:
        raise Refusal(Kind.INVALID_REQUEST, "the body should be a JSON object")
    place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    reason = first["msg"].replace("Input should", "should").replace("Field required", "is required")
    raise InvalidParameter(reason, f"{where}{place}")
