"""One WebSocket from its request to its close, between the HTTP library and the route.

A refusal is an HTTP answer before the upgrade, so it looks like every other refusal, and a plain
HTTP client can read it.
"""

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whosaid.errors import EndpointError
from whosaid.server.error_response import GUARDED, ErrorResponse, translated
from whosaid.server.keys import token_of
from whosaid.server.realtime.places import INTERNAL_ERROR, LivePlace
from whosaid.server.realtime.session_config import SessionConfig

SUBPROTOCOL = "realtime"
# Browsers cannot send headers with a WebSocket, but they can send subprotocols.
KEY_PROTOCOL = "openai-insecure-api-key."
UPGRADED, NO_STATUS = 101, 1005


class Handshake:
    """Records the HTTP `status` (101: a session began), error `code` and `close_status`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = {**scope, "method": "GET"}
        self._receive, self._send = receive, send
        self.headers = Headers(scope=scope)
        self.answer_headers: list[tuple[bytes, bytes]] = []
        self.started = time.monotonic()
        self.status: int | None = None
        self.code = "OK"
        self.close_status: int | None = None
        self.place: LivePlace | None = None

    @property
    def token(self) -> bytes:
        """Return the client's key or secret; "" if there is none."""
        for name in self.scope["subprotocols"]:
            if name.startswith(KEY_PROTOCOL):
                given: str = name.removeprefix(KEY_PROTOCOL)
                return given.encode("utf-8", "surrogateescape")
        return token_of(self.headers)

    async def run(self, app: ASGIApp, place: LivePlace, config: SessionConfig) -> None:
        """Let `app` serve the session in `place`. Raises EndpointError before it begins."""
        self.place = place
        # The route's `socket.state`.
        self.scope.setdefault("state", {}).update(place=place, config=config)
        try:
            await app(self.scope, self._received, self.send)
        except Exception as error:
            ours = translated(error)
            if self.status is None:
                raise ours from None
            self.code = ours.code
            if self.close_status is None:
                await self.send({"type": "websocket.close", "code": INTERNAL_ERROR})

    async def fail(self, error: EndpointError) -> None:
        self.code = error.code
        await ErrorResponse(error, self.scope["path"])(self.scope, self._receive, self.send)

    async def send(self, message: Message) -> None:
        kind = message["type"]
        headers = [*message.get("headers", ()), *self.answer_headers]
        if kind == "websocket.accept":
            self.status = UPGRADED
            message = {**message, "headers": headers}
        elif kind == "websocket.http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*headers, *GUARDED]}
        elif kind == "websocket.close":
            self.close_status = message.get("code", NO_STATUS)
        await self._send(message)

    async def _received(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.disconnect" and self.close_status is None:
            self.close_status = message.get("code", NO_STATUS)
        return message
