"""Every way a request or a start can fail, so that a client sees a stable code and never a
traceback.

    EndpointError
    |-- ClientError(ValueError)      the request's fault: the servers answer 400
    |   |-- InvalidRequest           INVALID_REQUEST     the body's shape
    |   |-- InvalidParameter         INVALID_PARAMETER   a parameter's type, bound or combination
    |   |-- InvalidAudio             INVALID_AUDIO       the bytes hold no usable audio
    |   |-- AudioTooLong             AUDIO_TOO_LONG      a duration or size limit of this endpoint
    |   `-- Unsupported              UNSUPPORTED         asked for in good form, not offered here
    |-- ServerError                  ours: the servers answer 500
    |   |-- ModelError               MODEL_ERROR         a model raised or answered nonsense
    |   `-- OutOfMemory              OUT_OF_MEMORY       the device is too small even for one window
    `-- StartError                   START_FAILED        a model or setting that must stop the process

The one decision: a message is built here and nowhere else, so the promise about messages (the code
first, ASCII, at most 500 characters) cannot be forgotten by whoever raises one.
"""

from __future__ import annotations

from typing import ClassVar

MAX_MESSAGE_CHARACTERS = 500


class EndpointError(Exception):
    """A failure with a stable code; `str()` of it is what the client reads."""

    code: ClassVar[str] = "ERROR"

    def __init__(self, text: str) -> None:
        printable = (
            " ".join(f"{self.code}: {text}".split())
            .encode("ascii", "backslashreplace")
            .decode("ascii")
        )
        super().__init__(printable[:MAX_MESSAGE_CHARACTERS])


class ClientError(EndpointError, ValueError):
    """The request is at fault. A ValueError, because that is what the servers answer with 400."""


class InvalidRequest(ClientError):
    """The body is not of the documented shape."""

    code = "INVALID_REQUEST"


class InvalidParameter(ClientError):
    """A parameter has a wrong type, lies out of bounds or contradicts another."""

    code = "INVALID_PARAMETER"


class InvalidAudio(ClientError):
    """The bytes hold no usable audio."""

    code = "INVALID_AUDIO"


class AudioTooLong(ClientError):
    """The audio exceeds this endpoint's limit of seconds or bytes."""

    code = "AUDIO_TOO_LONG"


class Unsupported(ClientError):
    """The request is well formed and asks for something this endpoint does not offer."""

    code = "UNSUPPORTED"


class ServerError(EndpointError):
    """The endpoint is at fault. Not a ValueError, so that the servers answer 500."""


class ModelError(ServerError):
    """A model raised, or answered something that cannot be a transcript."""

    code = "MODEL_ERROR"


class OutOfMemory(ServerError):
    """The device's memory does not suffice, even for a batch of one window."""

    code = "OUT_OF_MEMORY"


class StartError(EndpointError):
    """The process cannot serve: a model or a setting is missing, refused or does not fit."""

    code = "START_FAILED"
