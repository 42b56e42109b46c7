"""Errors as OpenAI's clients read them: `{"error": {message, type, param, code}}`.

`code` is the contract's, the same on every route; `param` is the name that messages of wrong fields
begin with.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from errors import (
    AudioTooLong,
    ClientError,
    EndpointError,
    InvalidAudio,
    InvalidParameter,
    InvalidReference,
    Unsupported,
)
from server.errors import Refusal

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
FIELD = re.compile(r"[A-Z_]+: (\w+(?:\[\w*\])?)(?:, \w+)*: ", re.ASCII)


class ModelNotFound(Refusal):
    """No model of this name is loaded."""

    code: ClassVar[str] = "MODEL_NOT_FOUND"
    status: ClassVar[int] = 404


class InvalidField(InvalidParameter):
    """A field of the form is missing, or is not what it should be; the message begins with it."""


class FieldError(ClientError):
    """A fault of the field that `param` names by its path; None where it is no field's."""

    def __init__(self, text: str, param: str | None = None) -> None:
        super().__init__(text if param is None else f"{param}: {text}")
        self.param = param


def error_body(error: EndpointError, status: int) -> dict[str, Any]:
    """The JSON of an answer with `status`, and of an event that ends a stream.

    The SDK's exceptions take their `message`, `type`, `param` and `code` from it.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(error),
            "type": TYPES.get(status, kind),
            "param": _field(error),
            "code": error.code,
        }
    }


def _field(error: EndpointError) -> str | None:
    """The field at fault, None where it is not a field's fault."""
    if isinstance(error, FieldError):
        return error.param
    if isinstance(error, InvalidAudio | AudioTooLong):
        return "file"
    if isinstance(error, InvalidParameter | InvalidReference | Unsupported | ModelNotFound):
        found = FIELD.match(str(error))
        return found[1].replace("known_speakers[", "known_speaker_references[") if found else None
    return None
