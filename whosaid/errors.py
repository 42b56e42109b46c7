"""The endpoint's errors: a client reads a stable code and one line, never a traceback.

Only the constructor formats messages: code first, one line of ASCII, at most 500 characters.
"""

MAX_MESSAGE_CHARACTERS = 500


class EndpointError(Exception):
    """A failure with a stable code; the client reads its `str()`, "CODE: text".

    `param` names the parameter or field at fault, and `text` begins with it: "param: reason".
    `status` is the HTTP status. `retry_after` is the number of seconds after which a client may
    send the request again, if that is known.
    """

    code: str = "ERROR"
    status: int = 500
    retry_after: int | None = None

    def __init__(self, reason: str, param: str | None = None) -> None:
        self.param, self.reason = param, _line(reason)
        self.text = self.reason if param is None else f"{_line(param)}: {self.reason}"
        super().__init__(f"{self.code}: {self.text}"[:MAX_MESSAGE_CHARACTERS].rstrip())


def _line(text: str) -> str:
    line = " ".join(text[:MAX_MESSAGE_CHARACTERS].split())
    return line.encode("ascii", "backslashreplace").decode("ascii")


class ClientError(EndpointError, ValueError):
    """The request is at fault; the servers answer a ValueError with status 400."""

    status = 400


class InvalidRequest(ClientError):
    """No usable `inputs`, or `parameters` is not an object."""

    code = "INVALID_REQUEST"


class InvalidParameter(ClientError):
    """A parameter's type, bound or combination is wrong."""

    code = "INVALID_PARAMETER"


class InvalidAudio(ClientError):
    """Not base64, not audio, shorter than 0.1 s, or samples that are not finite."""

    code = "INVALID_AUDIO"


class InvalidReference(ClientError):
    """A clip or voice cannot be used; `param` names it: `known_speakers[1]`."""

    code = "INVALID_REFERENCE"


class AudioTooLong(ClientError):
    """Over `MAX_AUDIO_SECONDS` or `MAX_AUDIO_BYTES`."""

    code = "AUDIO_TOO_LONG"


class Unsupported(ClientError):
    """The loaded model or this server does not support the request."""

    code = "UNSUPPORTED"


class ServerError(EndpointError):
    """The endpoint is at fault; the servers answer with status 500 (it is no ValueError)."""


class ModelError(ServerError):
    """A model failed."""

    code = "MODEL_ERROR"


class OutOfMemory(ServerError):
    """Not enough memory for one window."""

    code = "OUT_OF_MEMORY"


class Unavailable(ServerError):
    """The machine lacks processes or memory for the audio decoder; retry"""

    code = "UNAVAILABLE"
    status = 503
    retry_after = 5


class StartError(EndpointError):
    """The process cannot serve: a model or a setting is missing, refused or unsuitable."""

    code = "START_FAILED"
