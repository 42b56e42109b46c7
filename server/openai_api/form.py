"""Reads the multipart form that the SDK sends: one file, and fields of text.

A list's name counts without its brackets, as clients write `keywords[]`, `keywords[0]` or
`keywords`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import FormData
from starlette.requests import Request

from server.admission import FORM, media_type
from server.errors import BodyTooLarge, UnsupportedMediaType
from server.multipart_form import content, is_text, multipart_form
from server.openai_api.errors import InvalidField
from server.request_body import refuse_in_query

MAX_FIELDS, MAX_FILES = 1000, 8
# The fields whose texts are sound; all others, names included, have so many characters together.
CLIPS, MAX_CHARACTERS = "known_speaker_references", 2**20
LIST_INDEX = re.compile(r"\[\d*\]$", re.ASCII)


@dataclass(frozen=True)
class Form:
    """The bytes of `file`, and every value of every field, by name, in order."""

    file: bytes
    fields: Mapping[str, tuple[str, ...]]


async def read_form(request: Request) -> Form:
    """The form in a request's body.

    Raises UnsupportedMediaType, InvalidRequest, also for parameters in the query string, or
    InvalidField for a file that is missing.
    """
    if media_type(request.headers) != FORM:
        raise UnsupportedMediaType(f"this route reads {FORM}")
    refuse_in_query(request)
    async with multipart_form(request, MAX_FILES, MAX_FIELDS) as form:
        return await asyncio.to_thread(_read, form)


def _read(form: FormData) -> Form:
    fields: dict[str, list[str]] = {}
    files: list[bytes] = []
    characters = 0
    for name, value in form.multi_items():
        if isinstance(value, str):
            field = LIST_INDEX.sub("", name)
            characters += len(name) + (len(value) if field != CLIPS else 0)
            if characters > MAX_CHARACTERS:
                raise BodyTooLarge(f"beside audio a form may have {MAX_CHARACTERS} characters")
            fields.setdefault(field, []).append(value)
        elif name == "file":
            data = content(value.file)
            if is_text(value, data):
                raise InvalidField("file: is text; curl sends a file by -F file=@talk.mp3")
            files.append(data)
        else:
            raise InvalidField(f"{shown(name)}: should be text, not a file")
    if len(files) != 1 or "file" in fields:
        raise InvalidField("file: should be one file, sent as a file part")
    return Form(files[0], {name: tuple(values) for name, values in fields.items()})


def shown(name: str) -> str:
    """A client's name for a field, in ASCII and cut short: it may hold anything."""
    return ascii(name[:40])[1:-1] or "(no name)"
