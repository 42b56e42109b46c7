"""Reference clips of known speakers, as a request names them: whose voice, and the clip in base64.

Whatever can be wrong about a name is found here, before a clip is decoded. Names end up in files
that people and programs read, so that two of them must differ in more than case, spaces or Unicode
form, and none may look like a label of the diarization.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from payload.base64_text import Base64Text
from payload.bounded_json import parse_json

MAX_CLIPS, MAX_NAME_CHARACTERS = 20, 64
LABEL = re.compile(r"(speaker|channel)_\d+")


def check_name(name: str) -> str:
    """The name, stripped. Raises PydanticCustomError, a ValueError, if it cannot be a speaker's."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise PydanticCustomError("name", f"should have 1 to {MAX_NAME_CHARACTERS} characters")
    if not name.isprintable():
        raise PydanticCustomError("name", "should have no control characters")
    if LABEL.fullmatch(_folded(name)):
        raise PydanticCustomError("name", "should not look like a label, SPEAKER_00")
    return name


Name = Annotated[str, AfterValidator(check_name)]


def _folded(name: str) -> str:
    """What two names have in common that people or files cannot tell apart."""
    return "_".join(unicodedata.normalize("NFKC", name).casefold().split())


def _check_reference(reference: object) -> object:
    if not isinstance(reference, str | Base64Text) or not len(reference):
        raise PydanticCustomError("reference", "should be the base64 of an audio file")
    return reference


def _as_text(reference: str | Base64Text) -> str:
    return reference[: len(reference)]


class ReferenceClip(BaseModel):
    """A clip in which one person speaks; several may have the same `name`.

    `reference` is an audio file in base64, or a `data:` URL of one. It is left out of `repr`, which
    may reach a log.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)

    name: Name
    reference: Annotated[
        str | Base64Text, PlainValidator(_check_reference), PlainSerializer(_as_text)
    ] = Field(repr=False)


def _read(value: object) -> object:
    """The clips, which may come as JSON in a form or a query string."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, list) and len(value) > MAX_CLIPS:
        raise PydanticCustomError("clips", f"should have at most {MAX_CLIPS} clips")
    if not isinstance(value, list) or not all(isinstance(each, dict | BaseModel) for each in value):
        raise PydanticCustomError("clips", "should be a list of objects with name and reference")
    return value


def check_names(names: list[str]) -> list[str]:
    """The names, each of which is another one to people and files."""
    if len(set(map(_folded, names))) < len(names):
        raise PydanticCustomError(
            "names", "two names should differ in more than case, spaces or Unicode form"
        )
    return names


def _check_names(clips: list[ReferenceClip]) -> list[ReferenceClip]:
    check_names([*dict.fromkeys(clip.name for clip in clips)])
    return clips


SCHEMA: dict[str, Any] = {
    "type": "array",
    "maxItems": MAX_CLIPS,
    "default": [],
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
            "reference": {"type": "string", "minLength": 1, "description": "Audio in base64"},
        },
        "required": ["name", "reference"],
    },
}
ReferenceClips = Annotated[
    list[ReferenceClip],
    BeforeValidator(_read),
    AfterValidator(_check_names),
    WithJsonSchema(SCHEMA),
]
