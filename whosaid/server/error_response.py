"""Renders errors for clients.

Every error of every route is rendered here, in the format of the route's clients: hf-serve's
`{"detail": "CODE: text"}`, or OpenAI's `{"error": {...}}` under /v1. The header X-Error-Message
repeats the line, because the Hub's client shows only that header.
"""

from pydantic_core import to_json
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from whosaid.errors import AudioTooLong, EndpointError, InvalidAudio, InvalidReference
from whosaid.runtime.errors import endpoint_errors
from whosaid.server.errors import Kind

# Default headers of every answer. Browsers must not treat an answer as a page or a part of one, nor
# store it, because answers hold transcripts and secrets.
GUARDED = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
HEADERS = {
    # Otherwise OpenAI's client would send the whole body again.
    Kind.DEADLINE_EXCEEDED.name: {"X-Should-Retry": "false"},
    Kind.UPGRADE_REQUIRED.name: {"Upgrade": "websocket"},
    Kind.UNAUTHORIZED.name: {"WWW-Authenticate": "Bearer"},
}


class ErrorResponse(JSONResponse):
    """The answer to a failed request; passes its `code` to the gate in the scope's state."""

    def __init__(self, error: EndpointError, path: str) -> None:
        headers = {"X-Error-Message": str(error), **HEADERS.get(error.code, {})}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        self.code = error.code
        body = {"error": openai_error(error)} if path.startswith("/v1/") else {"detail": str(error)}
        super().__init__(body, error.status, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["error_code"] = self.code
        await super().__call__(scope, receive, send)


def translated(error: BaseException) -> EndpointError:
    """Return the error for the client; log where an unexpected exception came from."""
    try:
        with endpoint_errors():
            raise error
    except EndpointError as ours:
        return ours


def openai_error(error: EndpointError) -> dict[str, str | None]:
    """Return an error in OpenAI's format, from which the SDK's exceptions take attributes."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "message": str(error),
        "type": TYPES.get(error.status, kind),
        "param": _param(error),
        "code": error.code,
    }


def _param(error: EndpointError) -> str | None:
    """Return the name of the field at fault on OpenAI's routes."""
    if isinstance(error, InvalidAudio | AudioTooLong):
        return "file"
    if isinstance(error, InvalidReference) and error.param:
        place = error.param.partition(".")[0]  # without the part of a voice
        return place.replace("known_speakers[", "known_speaker_references[")
    return error.param and error.param.partition(",")[0]


def error_event(error: EndpointError) -> bytes:
    """Return the event that ends a failed stream; OpenAI's client raises APIError on it."""
    return b"data: " + to_json({"error": openai_error(error)}) + b"\n\n"
