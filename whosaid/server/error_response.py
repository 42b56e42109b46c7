"""How an error looks on the wire.

Every refusal and every failure of every route is rendered here, in the shape that the route's
clients read: the contract's `{"detail": "CODE: text"}`, or OpenAI's `{"error": {...}}` under /v1.
The header X-Error-Message has the same line, because the hub's client shows that and nothing else.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from whosaid.errors import AudioTooLong, EndpointError, InvalidAudio, InvalidReference
from whosaid.runtime.errors import endpoint_errors
from whosaid.server.errors import Kind

# Headers of every answer that has no others of these names, so that no browser takes it for a page
# or a part of one. Answers hold transcripts and secrets, so no browser may keep one on its disk.
GUARDED = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
HEADERS = {
    # OpenAI's client would send the whole body again.
    Kind.DEADLINE_EXCEEDED.code: {"X-Should-Retry": "false"},
    Kind.UPGRADE_REQUIRED.code: {"Upgrade": "websocket"},
    Kind.UNAUTHORIZED.code: {"WWW-Authenticate": "Bearer"},
}


class ErrorResponse(JSONResponse):
    """The answer to a failed request. The gate finds the `code` in the scope's state."""

    def __init__(self, error: EndpointError, path: str) -> None:
        headers = {"X-Error-Message": str(error), **HEADERS.get(error.code, {})}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        self.code = error.code
        body = openai_body(error) if path.startswith("/v1/") else {"detail": str(error)}
        super().__init__(body, error.status, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["error_code"] = self.code
        await super().__call__(scope, receive, send)


def translated(error: BaseException) -> EndpointError:
    """Return the error that a client reads; the log says where an unexpected one came from."""
    try:
        with endpoint_errors():
            raise error
    except EndpointError as ours:
        return ours


def openai_body(error: EndpointError) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it: `{"error": {message, type, param, code}}`.

    The SDK's exceptions take their attributes from it. `code` is the contract's on every route.
    """
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    fields = {
        "message": str(error),
        "type": TYPES.get(error.status, kind),
        "param": _param(error),
        "code": error.code,
    }
    return {"error": fields}


def _param(error: EndpointError) -> str | None:
    """Return the field at fault, as OpenAI's routes call it."""
    if isinstance(error, InvalidAudio | AudioTooLong):
        return "file"
    if isinstance(error, InvalidReference) and error.param:
        place = error.param.partition(".")[0]  # without the part of a voice
        return place.replace("known_speakers[", "known_speaker_references[")
    return error.param and error.param.partition(",")[0]


def error_event(error: EndpointError) -> bytes:
    """Return the server-sent event that ends a stream of any route; OpenAI's client raises APIError
    on it.
    """
    return b"data: " + to_json(openai_body(error)) + b"\n\n"
