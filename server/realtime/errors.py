"""What is wrong with an event of a client, by OpenAI's codes where it has some.

Each becomes an `error` event, or of a request for a secret the answer; `param` is the path of the
field at fault.
"""

from __future__ import annotations

from server.openai_api.errors import FieldError


class InvalidJson(FieldError):
    """The message is no JSON object of bounded size."""

    code = "invalid_json"


class UnknownEvent(FieldError):
    """No event has this type."""

    code = "unknown_event"


class UnsupportedEvent(FieldError):
    """OpenAI has such an event, and a session here has no use for it."""

    code = "unsupported_event"


class UnknownParameter(FieldError):
    """No field has this name."""

    code = "unknown_parameter"


class MissingParameter(FieldError):
    """A field is missing."""

    code = "missing_required_parameter"


class InvalidType(FieldError):
    """A field's value is of another type."""

    code = "invalid_type"


class InvalidValue(FieldError):
    """A field's value is out of bounds, or contradicts another."""

    code = "invalid_value"


class UnsupportedValue(FieldError):
    """OpenAI has such a value, and this server does not serve it."""

    code = "unsupported_value"


class InvalidBase64(FieldError):
    """Audio is not in base64."""

    code = "invalid_base64"


class AppendTooLarge(FieldError):
    """More audio than may be appended at once."""

    code = "append_too_large"


class SessionEnding(FieldError):
    """After the last commit, or after the server has said that the session ends."""

    code = "session_ending"


class SessionExpired(FieldError):
    """The session is as long as sessions may be."""

    code = "session_expired"


class SessionIdle(FieldError):
    """Nothing came for as long as may be."""

    code = "session_idle"
