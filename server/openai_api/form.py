"""Reads the multipart form that the SDK sends: one file, and fields of text.

The one decision: nothing of a form touches the disk, and a list's name counts without its brackets,
as clients write `keywords[]`, `keywords[0]` or `keywords`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from base64_text import SLICE
from errors import InvalidRequest
from server.admission import FORM, media_type
from server.errors import UnsupportedMediaType
from server.openai_api.errors import InvalidField

MAX_FIELDS, MAX_FILES = 1000, 8
# A clip of a known speaker, 30 s of 48 kHz stereo as a data URL, fits twice.
MAX_FIELD_BYTES = 16 * 2**20
LIST_INDEX = re.compile(r"\[\d*\]$", re.ASCII)


@dataclass(frozen=True)
class Form:
    """The bytes of `file`, and every value of every field, by name, in order."""

    file: bytes
    fields: Mapping[str, tuple[str, ...]]


class _InMemoryParser(MultiPartParser):
    """The size of the whole body is limited before it is parsed."""

    spool_max_size = 2**62


async def read_form(request: Request) -> Form:
    """The form in a request's body.

    Raises UnsupportedMediaType, InvalidRequest, or InvalidField for a file that is missing.
    """
    if media_type(request.headers) != FORM:
        raise UnsupportedMediaType(f"this route reads {FORM}")
    parser = _InMemoryParser(
        request.headers,
        request.stream(),
        max_files=MAX_FILES,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the form cannot be read: {error.message}") from error
    try:
        return await asyncio.to_thread(_read, form)
    finally:
        await form.close()


def _read(form: FormData) -> Form:
    fields: dict[str, list[str]] = {}
    files: list[bytes] = []
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields.setdefault(LIST_INDEX.sub("", name), []).append(value)
        elif name == "file":
            files.append(_content(value.file))
        else:
            raise InvalidField(f"{shown(name)}: should be text, not a file")
    if len(files) != 1 or "file" in fields:
        raise InvalidField("file: should be one file, sent as a file part")
    return Form(files[0], {name: tuple(values) for name, values in fields.items()})


def _content(file: BinaryIO) -> bytes:
    """The bytes of a file, of which no call copies more than a slice."""
    content = BytesIO()
    while part := file.read(SLICE):
        content.write(part)
    return content.getvalue()


def shown(name: str) -> str:
    """A client's name for a field, in ASCII and cut short: it may hold anything."""
    return ascii(name[:40])[1:-1] or "(no name)"
