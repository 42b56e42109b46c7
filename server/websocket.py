"""uvicorn's WebSocket protocol, with bounds on what a client can make it hold.

What uvicorn leaves open is closed here: pings and pieces of messages without end, and clients that
never take what is sent. A request that is no proper handshake is answered as HTTP, by the routes.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from server.lingering import LingeringTransport
from server.realtime.handshake import LOST, NO_STATUS, UPGRADED

PATHS = ("/v1/realtime", "/v1/realtime/")
# Whom the other end does not answer for so long is gone, and proxies keep a connection on which
# something comes so often.
PING_S = 20.0
# In which a client must take some of what was sent last, or is cut off.
SECONDS_TO_CLOSE = 10.0
# A message comes in so many pieces at most.
MOST_PIECES = 4_096
# The library that reads the head again allows 128 lines of 8,192 bytes.
MOST_HEADERS, LONGEST_LINE = 100, 8_000
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
TOKENS = re.compile(rb"[ \t]*" + TOKEN + rb"[ \t]*(?:,[ \t]*" + TOKEN + rb"[ \t]*)*")
ONCE = (b"upgrade", b"sec-websocket-key", b"sec-websocket-version")
ONE_AT_MOST = (b"origin", b"host")


def is_handshake(scope: Any, headers: Iterable[tuple[bytes, bytes]]) -> bool:  # noqa: ANN401
    """Whether a request asks for a WebSocket where there is one, as RFC 6455, section 4.2.1, says,
    and has no body. `headers` have names in lower case.
    """
    if scope["method"] != "GET" or scope["http_version"] != "1.1" or scope["path"] not in PATHS:
        return False
    given: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        given.setdefault(name, []).append(value)
        if len(name) + len(value) > LONGEST_LINE:
            return False
    count = sum(map(len, given.values()))
    target = len(scope["raw_path"]) + len(scope["query_string"])
    if count > MOST_HEADERS or target > LONGEST_LINE:
        return False
    if b"content-length" in given or b"transfer-encoding" in given:
        return False
    if any(len(given.get(name, ())) != 1 for name in ONCE):
        return False
    if any(len(given.get(name, ())) > 1 for name in ONE_AT_MOST):
        return False
    lists = given.get(b"connection", []) + given.get(b"sec-websocket-protocol", [])
    if not all(TOKENS.fullmatch(each) for each in lists):
        return False
    options = b",".join(given.get(b"connection", ())).lower().split(b",")
    return (
        b"upgrade" in [each.strip() for each in options]
        and given[b"upgrade"][0].lower() == b"websocket"
        and given[b"sec-websocket-version"][0] == b"13"
        and _is_key(given[b"sec-websocket-key"][0])
    )


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket."""

    transport: LingeringTransport  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is about to be read."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(LingeringTransport(transport, SECONDS_TO_CLOSE))  # type: ignore[arg-type]

    def eof_received(self) -> None:
        """The client sends no more, upon which asyncio closes the connection."""
        self.transport.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session now, whether it reads or waits."""
        super().connection_lost(exc)
        self.transport.release()
        if self.handshake_initiated and self.response.status_code == UPGRADED:
            lost: Any = self.scope["extensions"].get(LOST)
            if lost is not None:
                closed = self.conn.close_rcvd
                lost(NO_STATUS if closed is None else closed.code)

    async def send(self, message: Any) -> None:  # noqa: ANN401
        """Pass a message on. A complete refusal completes the handshake, or uvicorn logs an error
        for each.
        """
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def handle_cont(self, event: Frame) -> None:
        """A further piece of a message, of which there may be many without a byte in them."""
        if len(self.frames) >= MOST_PIECES:
            self.conn.fail(1009, "too many pieces")
            self.handle_parser_exception()
        else:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer, unless the client takes no answers; then the next one tells as much."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def keepalive_timeout(self) -> None:
        """Whose answer was not read, because nothing is, may still be there."""
        if self.read_paused:
            self.pong_timer, self.pending_ping_payload = None, None
            self.schedule_ping()
        else:
            super().keepalive_timeout()


def _is_key(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
