"""How an error looks on the wire.

Every refusal and every failure of every route is rendered here, in the shape that the route's
clients read: the contract's `{"detail": "CODE: text"}`, or OpenAI's under /v1. The header
X-Error-Message has the same line, because the hub's client shows that and nothing else; metrics and
logs take the code from it.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse

from errors import EndpointError
from runtime.errors import endpoint_errors
from server.errors import (
    DeadlineExceeded,
    Refusal,
    TooManyGuesses,
    Unauthorized,
    UpgradeRequired,
    status_of,
)
from server.openai_api.errors import error_body as openai_body


def translated(error: BaseException) -> EndpointError:
    """The error that a client reads; the log says where one that is not ours came from."""
    try:
        with endpoint_errors():
            raise error
    except EndpointError as ours:
        return ours


def error_response(error: EndpointError, path: str) -> JSONResponse:
    """The answer to a request for `path` that failed."""
    headers = {"X-Error-Message": str(error)}
    if isinstance(error, Refusal) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, DeadlineExceeded | TooManyGuesses):
        headers["X-Should-Retry"] = "false"  # OpenAI's client would send the whole body again
    if isinstance(error, UpgradeRequired):
        headers["Upgrade"] = "websocket"
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    status = status_of(error)
    return JSONResponse(error_body(error, path, status), status, headers)


def error_body(error: EndpointError, path: str, status: int) -> dict[str, Any]:
    """The JSON of an error, by the clients that use `path`."""
    if path.startswith("/v1/"):
        return openai_body(error, status)
    return {"detail": str(error)}


def error_event(error: EndpointError) -> bytes:
    """The server-sent event that ends a stream of any route; OpenAI's client raises APIError on
    it.
    """
    return b"data: " + to_json(openai_body(error, status_of(error))) + b"\n\n"
