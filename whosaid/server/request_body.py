"""Reads the three kinds of bodies with audio and parameters: JSON, a form, or the file itself.

A body is JSON only if its media type says so, because a foreign page cannot send this type without
a CORS preflight. Other types are not trusted: the decoder probes the file. Forms never touch the
disk: Starlette's own parser writes files over 1 MiB there, and refuses such texts.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from io import BytesIO
from math import inf
from typing import Any, BinaryIO, get_args, get_origin

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, ImmutableMultiDict, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from config import OTHER_NAMES, InferenceConfig
from whosaid.endpoint.request import MOST_FILES
from whosaid.errors import InvalidRequest
from whosaid.payload.encodings import MOST_JSON, SLICE, TooMuchJson, parse_json
from whosaid.server.admission import FORM, media_type, too_large
from whosaid.server.errors import Kind, Refusal

# Fields that belong in the body.
PARAMETERS = frozenset({*InferenceConfig.model_fields, *OTHER_NAMES, "callback_url"})
MOST_FIELDS = 100
# Room for two clips of known speakers, 30 s of 48 kHz stereo as data URLs.
MAX_FIELD_BYTES = 16 * 2**20
LONGEST_LINE = 2000  # bytes
LISTS = {
    name
    for name, field in InferenceConfig.model_fields.items()
    if any(get_origin(kind) is list for kind in (field.annotation, *get_args(field.annotation)))
}


async def read_body(request: Request) -> tuple[dict[str, Any], bool]:
    """Return a body for `Endpoint.parse`, and whether its parameters are text. Raises Refusal for
    JSON that is no object or has another type, InvalidRequest for a wrong form or query.
    """
    kind = media_type(request.headers)
    if kind == FORM:
        refuse_in_query(request)
        async with multipart_form(request, MOST_FILES, MOST_FIELDS) as form:
            return await asyncio.to_thread(_form_body, form), True
    if kind.startswith("application/") and kind.endswith(("/json", "+json")):
        refuse_in_query(request)
        return await asyncio.to_thread(read_json, await read_all(request)), False
    body = await read_all(request)
    if body[:100].lstrip()[:1] == b"{":
        text = "send a JSON body with Content-Type: application/json"
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, text)
    return {
        "inputs": body,
        # `stream` is not a parameter of transcription.
        "parameters": _text_parameters(request.query_params, ("stream",)),
    }, True


def refuse_in_query(request: Request) -> None:
    """Raise InvalidRequest for a parameter in the query string, where it would be ignored."""
    for name in request.query_params:
        if name in PARAMETERS:
            raise InvalidRequest(f"{name}: is in the query string, but should be in the body")


def read_json(text: bytes | str, what: str = "body") -> dict[str, Any]:
    """Return a JSON object; long texts in it, such as `inputs`, are each a Base64Text. Errors call
    it `what`: InvalidRequest if it is not UTF-8, Refusal if it is too much or no object.
    """
    try:
        value = parse_json(text)
    except TooMuchJson:
        told = f"beside the base64 of audio, JSON may have {MOST_JSON} bytes"
        raise Refusal(Kind.BODY_TOO_LARGE, told) from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {what} is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Refusal(Kind.INVALID_REQUEST, f"the {what} is not JSON") from None
    if not isinstance(value, dict):
        raise Refusal(Kind.INVALID_REQUEST, f"the {what} should be a JSON object")
    return value


async def read_all(request: Request, most: float = inf) -> bytes:
    """Return the bytes of a body. Raises Refusal for more than `most`."""
    body = BytesIO()
    async for part in request.stream():
        body.write(part)
        if body.tell() > most:
            raise too_large(int(most))
    return body.getvalue()  # without a copy


def _text_parameters(
    entries: ImmutableMultiDict[str, Any], others: Collection[str]
) -> dict[str, str]:
    """Return the parameters among the entries of a query string or form, without `others`. Lists
    may have several entries. Raises InvalidRequest if another entry is repeated.
    """
    given: dict[str, list[str]] = {}
    for name, value in entries.multi_items():
        if name not in others:
            if not isinstance(value, str):
                raise InvalidRequest(f"{name}: should be text, not a file")
            given.setdefault(name, []).append(value)
    for name in InferenceConfig.model_fields.keys() - LISTS:
        if len(given.get(name, ())) > 1:
            raise InvalidRequest(f"{name}: is given several times")
    return {name: ",".join(values) for name, values in given.items()}


def _form_body(form: FormData) -> dict[str, Any]:
    """Return a form as a JSON body, with parameters from `parameters` and from other fields."""
    parts, parameters = form.getlist("file"), form.get("parameters", "{}")
    files = [part for part in parts if isinstance(part, UploadFile)]
    if not files or len(files) < len(parts):
        raise InvalidRequest("file: should be a part with an audio file")
    fields = _text_parameters(form, ("file", "parameters"))
    given = _read_parameters(parameters)
    if fields.keys() & given.keys():
        raise InvalidRequest("parameters: repeats a field of the form")
    inputs = [content(file.file) for file in files]
    if any(map(is_text, files, inputs)):
        raise InvalidRequest("file: is text; curl sends a file by -F file=@talk.mp3")
    return {"inputs": inputs, "parameters": fields | given}


def _read_parameters(parameters: str | UploadFile) -> dict[str, Any]:
    try:
        if isinstance(parameters, str):
            return read_json(parameters or "{}")
    except Refusal as error:
        if error.kind is not Kind.INVALID_REQUEST:
            raise
    raise InvalidRequest("parameters: should be a JSON object")


class _InMemoryParser(MultiPartParser):
    """Holds files in memory. A part named `file` is a file even without a file name."""

    spool_max_size = 2**62

    def on_headers_finished(self) -> None:
        part = self._current_part
        _, options = parse_options_header(part.content_disposition)
        if options.get(b"name") == b"file" and b"filename" not in options:
            assert part.content_disposition is not None
            part.content_disposition += b'; filename=""'
        super().on_headers_finished()


@asynccontextmanager
async def multipart_form(
    request: Request, max_files: int, max_fields: int
) -> AsyncIterator[FormData]:
    """Yield the form in a request's body. Raises InvalidRequest if it is no form, or too large."""
    parser = _InMemoryParser(
        _in_utf8(request.headers),
        request.stream(),
        max_files=max_files,
        max_fields=max_fields,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the form cannot be read: {error.message}") from error
    try:
        yield form
    finally:
        await form.close()


def _in_utf8(headers: Headers) -> Headers:
    """Return the media type without a charset: RFC 7578 has none, and some take minutes."""
    kind, parameters = parse_options_header(headers.get("content-type"))
    boundary = parameters.get(b"boundary")
    said = b'%b; boundary="%b"' % (kind, boundary) if boundary is not None else kind
    return Headers(raw=[(b"content-type", said)])


def is_text(part: UploadFile, data: bytes) -> bool:
    """Return True for a line of text, such as curl's `-F file=talk.mp3` without the at sign."""
    if part.filename or len(data) > LONGEST_LINE:
        return False
    try:
        return data.decode().strip().isprintable()
    except UnicodeDecodeError:
        return False


def content(file: BinaryIO) -> bytes:
    """Return the bytes of a file; no single call copies more than a slice."""
    read = BytesIO()
    while part := file.read(SLICE):
        read.write(part)
    return read.getvalue()
