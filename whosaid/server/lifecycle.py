"""Starts and stops the server.

While models load, a separate small server answers `/health`, so that platforms do not restart a
process that downloads models; other requests get 503. Then the real server takes the port.

On SIGTERM the server drains before uvicorn's shutdown. The port stays open: accepted requests are
answered, new ones and `/ready` get 503. Then, or after the time limit, uvicorn closes connections.
The process exits with status 0, because nothing was lost; a second signal ends it at once. If the
engine has stopped, the process ends by itself with another status, because platforms restart only
processes that end.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from whosaid.asr import stopped
from whosaid.endpoint import Endpoint
from whosaid.errors import EndpointError, StartError
from whosaid.runtime.errors import EXIT_STATUS
from whosaid.server.errors import Kind, Refusal
from whosaid.server.gate import PAGE, Gate, RequestContext
from whosaid.server.realtime.handshake import Handshake
from whosaid.server.realtime.places import GOING_AWAY, INTERNAL_ERROR, Ending
from whosaid.server.settings import ServerSettings

logger = logging.getLogger("server")

# Seconds between pings, which keep proxies from closing a connection.
PING_S = 20.0
# Beyond so many connections, or when file descriptors run short, uvicorn answers 503.
MOST_CONNECTIONS, OTHER_FILES = 10_000, 256
# The listen backlog; uvicorn's default.
BACKLOG = 2048
# Seconds to send the last answers to clients.
SECONDS_TO_LEAVE = 5


# uvicorn 0.54 logs this for every WebSocket that is refused with an HTTP answer.
FALSE_ALARM = "ASGI callable returned without completing handshake."
logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != FALSE_ALARM)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which also frees the place of a client whose connection is lost. The
    session does not notice while it does not read, because the audio is far ahead of real time.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.handshake_initiated and (place := self.scope["state"].get("place")):
            place.leave()


# uvicorn's own protocols and bounds.
UVICORN: dict[str, Any] = {
    "http": "h11",
    "ws": WebSocketProtocol,
    "log_config": None,
    "log_level": logging.WARNING,
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": SECONDS_TO_LEAVE,
}


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains before it shuts down, or when the engine stops.

    `exit_status` is the process's. With `page` the log shows the page's address.
    """

    exit_status = 0
    _end = "the server stopped before it had drained"

    def __init__(
        self,
        gate: Gate,
        endpoint: Endpoint,
        drain_timeout: float,
        page: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                gate,
                limit_concurrency=most_connections(),
                ws_max_size=gate.most_message_bytes,
                ws_per_message_deflate=False,  # a few compressed bytes could expand without limit
                ws_ping_interval=PING_S,
                # While a client is too far ahead of real time, its pongs are not read either.
                ws_ping_timeout=None,
                **UVICORN,
            )
        )
        self.gate, self.endpoint, self._page = gate, endpoint, page
        self.drain_timeout = drain_timeout
        self._drain_ends = float("inf")
        self._says_draining = False

    @property
    def busy(self) -> bool:
        admission = self.gate.admission
        return bool(admission.permits.taken or admission.live.taken or self.endpoint.outstanding)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or []:
            where = address(bound)
            logger.info("listening on %s%s", where, f", page {where}{PAGE}" if self._page else "")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; on the second signal end the process as the signal does by default.

        The handler may interrupt the write of a log line, so `on_tick` logs the drain.
        """
        if self.gate.admission.draining:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.gate.admission.draining = True
        self._drain_ends = time.monotonic() + self.drain_timeout
        self._says_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return True if the server has to shut down; uvicorn calls this ten times a second."""
        await super().on_tick(counter)
        if not self.endpoint.alive and not self.exit_status:
            self._engine_stopped()
        if not self.gate.admission.draining:
            return False
        if self._says_draining:
            self._says_draining = False
            logger.info("draining: %d requests are unanswered", self.gate.admission.permits.taken)
            self.begin_to_drain()
        if self.busy and time.monotonic() < self._drain_ends:
            return False
        self._end = "drained" if not self.busy else "DRAIN_TIMEOUT has passed"
        self.end_all(stopped() if self.exit_status else None)
        return True

    def begin_to_drain(self) -> None:
        """Let live sessions complete their audio and end. Jobs are left to the next process."""
        if self.gate.jobs:
            self.gate.jobs.stop()
        why = Refusal(Kind.DRAINING, "the server is shutting down")
        for place in self.gate.admission.live.taken:
            place.finish(Ending(GOING_AWAY, why))

    def end_all(self, error: EndpointError | None = None) -> None:
        """End the remaining requests and sessions with `error`, by default DRAINING."""
        why = error or Refusal(Kind.DRAINING, "the server stops before it can answer this request")
        for context in self.gate.running:
            context.end(why)
        ending = Ending(INTERNAL_ERROR if error else GOING_AWAY, why)
        for place in self.gate.admission.live.taken:
            place.end(ending)

    def close(self) -> None:
        """End the endpoint's threads, or the process if one does not end; log how it drained."""
        closing = threading.Thread(target=self.endpoint.close, daemon=True)
        closing.start()
        closing.join(SECONDS_TO_LEAVE)
        if closing.is_alive():
            logger.warning("a computation does not end: the process ends anyway")
        logger.info(self._end)
        if closing.is_alive():
            logging.shutdown()
            os._exit(self.exit_status)

    def _engine_stopped(self) -> None:
        """Begin to end the process, and fail the requests that did not wait for the engine."""
        logger.critical("the engine has stopped, so the process ends")
        self.exit_status = EXIT_STATUS
        self.gate.admission.draining = True
        self._drain_ends = min(self._drain_ends, time.monotonic() + SECONDS_TO_LEAVE)


def most_connections() -> int:
    """Return the limit of open files, less files of models, libraries and uploads."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(1, min(MOST_CONNECTIONS, files - OTHER_FILES))


@contextmanager
def answering_health(bound: socket.socket) -> Iterator[None]:
    """Answer `/health` on `bound` in a thread during the block, and refuse all other requests."""
    server = uvicorn.Server(uvicorn.Config(_while_loading, lifespan="off", **UVICORN))
    # uvicorn closes this duplicate; the original socket keeps listening.
    thread = threading.Thread(target=server.run, args=([bound.dup()],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def _while_loading(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve while models load; close each connection, because this server ends soon."""
    loading = Refusal(
        Kind.NOT_READY,
        "the models are still loading; /ready is 200 when the server accepts requests",
    )
    if scope["type"] == "websocket":
        await Handshake(scope, receive, send).fail(loading)
        return
    context = RequestContext(scope, receive, send, limit=0)
    context.answer_headers.append((b"connection", b"close"))
    if scope["path"].rstrip("/") == "/health" and scope["method"] in ("GET", "HEAD"):
        await context.run(JSONResponse({"status": "ok"}))
    else:
        await context.fail(loading)


def bind(settings: ServerSettings) -> socket.socket:
    """Return the listening socket. Raises StartError if the address cannot be used."""
    host, port = settings.host, settings.port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family is socket.AF_INET6
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # drops the repeated address
        raise StartError(f"HOST={host} PORT={port}: {reason}") from error


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
