"""The routes `/v1/realtime`, for sessions, and `/v1/realtime/client_secrets`."""

import time
from typing import Literal

from fastapi import APIRouter, Request, WebSocket
from pydantic import Field
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse

from whosaid.endpoint import Endpoint
from whosaid.endpoint.request import ignored_names
from whosaid.errors import InvalidRequest
from whosaid.server.admission import Admission
from whosaid.server.description import ErrorBody, SecretBody, answers, refusals
from whosaid.server.errors import Kind, Refusal
from whosaid.server.keys import token_of
from whosaid.server.openai_api.form import model_id, model_warning
from whosaid.server.realtime import session_config
from whosaid.server.realtime.client_events import read_object
from whosaid.server.realtime.client_secrets import DEFAULT_S, LONGEST_S, SHORTEST_S, ClientSecrets
from whosaid.server.realtime.handshake import SUBPROTOCOL
from whosaid.server.realtime.server_events import new_id
from whosaid.server.realtime.session import OpenDriver, RealtimeSession
from whosaid.server.request_body import read_all
from whosaid.server.settings import ServerSettings

MOST_BYTES = 2**16  # of a request for a secret
INTENT = "transcription"


class Expiry(session_config.Given):
    """The expiry of a secret."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(default=DEFAULT_S, ge=SHORTEST_S, le=LONGEST_S)


class SecretGiven(session_config.Given):
    """The body of a request for a secret."""

    expires_after: Expiry | None = None
    session: session_config.SessionGiven | None = None


SECRET = {
    "type": "object",
    "properties": {
        "expires_after": Expiry.model_json_schema(),
        "session": {"type": "object", "description": "Fields of `session.update`'s `session`"},
    },
}


def router(
    endpoint: Endpoint,
    settings: ServerSettings,
    admission: Admission,
    secrets: ClientSecrets,
    open_driver: OpenDriver | None,
) -> APIRouter:
    """Return the routes; `open_driver` returns a session's driver; without it `admission` holds no
    sessions. If `admission` would refuse a session, its secret is refused too, because browsers do
    not show why a WebSocket is refused.
    """
    routes = APIRouter(prefix="/v1/realtime")

    @routes.websocket("")
    async def realtime(socket: WebSocket) -> None:
        assert open_driver is not None
        async with endpoint.use_models():
            warnings = query_warnings(socket.query_params, endpoint)
            offered = socket.scope["subprotocols"]
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            await RealtimeSession(socket, endpoint, settings, open_driver).run(warnings)

    @routes.get("", include_in_schema=False)
    async def no_socket() -> None:
        admission.check_live()
        text = "this path is for WebSockets: ask for an upgrade (RFC 6455)"
        raise Refusal(Kind.UPGRADE_REQUIRED, text)

    @routes.post(
        "/client_secrets",
        summary="Create a secret that opens live sessions for some minutes",
        responses={
            200: answers(SecretBody),
            **refusals(400, 401, 403, 404, 413, 429, 503, model=ErrorBody),
        },
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": SECRET}}}},
    )
    async def create_client_secret(request: Request) -> JSONResponse:
        admission.check_live()
        given = await _read(request)
        session = given.session or session_config.SessionGiven()
        async with endpoint.use_models():
            with session_config.below("session"):
                config = session_config.merged(session_config.SessionConfig(), session, endpoint)
            seconds = (given.expires_after or Expiry()).seconds
            secret = secrets.create(seconds, config, token_of(request.headers))
            ends = int(time.time() + settings.live_session_seconds)
            shown = config.shown(new_id("sess"), ends, model_id(endpoint))
            warnings = session_config.ignored_wishes(session, endpoint)
        body = {"value": secret.value, "expires_at": secret.expires_at, "session": shown}
        if warnings:
            body["warnings"] = list(warnings)
        return JSONResponse(body)

    return routes


def query_warnings(query: QueryParams, endpoint: Endpoint) -> tuple[str, ...]:
    """Return a warning for everything in a session's URL that has no effect."""
    others = [name for name in query if name not in ("intent", "model")]
    model = query.get("model")
    warnings = (
        f"intent: is {INTENT} here" if query.get("intent", INTENT) != INTENT else None,
        model_warning(model, endpoint) if model else None,
        ignored_names("parameters of the URL", others) if others else None,
    )
    return tuple(text for text in warnings if text)


async def _read(request: Request) -> SecretGiven:
    """Parse the request for a secret. Raises ClientError, Refusal."""
    body = await read_all(request, MOST_BYTES)
    try:
        fields = read_object(body.decode()) if body else {}
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    return SecretGiven.read(fields)
