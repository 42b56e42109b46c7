"""Starts and stops the server.

While models load, a separate small server answers `/health`, so that platforms do not restart a
process that downloads models; other requests get 503. Then the real server takes the port.

On SIGTERM the server drains before uvicorn's shutdown: accepted requests are answered, new ones and
`/ready` get 503. Then, or after the time limit, uvicorn closes connections, and the process exits
with status 0; a second signal ends it at once. If the engine has stopped, the process ends by
itself with another status, because platforms restart only processes that end.
"""

import errno
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as METRICS_TYPE
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake
from websockets.http11 import Request

from whosaid.asr import stopped
from whosaid.endpoint import Endpoint
from whosaid.errors import EndpointError, InvalidRequest, StartError
from whosaid.runtime.errors import EXIT_STATUS
from whosaid.server.admission import READING, OriginPolicy
from whosaid.server.error_response import GUARDED, ErrorResponse
from whosaid.server.errors import Kind, Refusal
from whosaid.server.gate import PAGE, REALTIME, Gate, RequestContext
from whosaid.server.keys import ApiKeys, token_of
from whosaid.server.metrics import text_while_loading
from whosaid.server.realtime.handshake import Handshake
from whosaid.server.realtime.places import GOING_AWAY, INTERNAL_ERROR, Ending
from whosaid.server.settings import ServerSettings

logger = logging.getLogger("server")

# Seconds between pings, which keep proxies from closing a connection.
PING_S = 20.0
# Beyond so many connections, or when file descriptors run short, uvicorn answers 503. Together with
# the other files they are macOS's highest soft limit, 10,240.
MOST_CONNECTIONS, OTHER_FILES = 10_000, 240
FEWEST_FILES = OTHER_FILES + 64
# The listen backlog; uvicorn's default.
BACKLOG = 2048
# Seconds to send the last answers to clients.
SECONDS_TO_LEAVE = 5

# uvicorn 0.54 logs these for every WebSocket that is refused with an HTTP answer, and, with a
# traceback, for text that is not UTF-8. The access log has a line for both.
FALSE_ALARMS = (
    "ASGI callable returned without completing handshake.",
    "Invalid UTF-8 sequence received from client.",
)
logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg not in FALSE_ALARMS)
NO_HANDSHAKE = ErrorResponse(
    InvalidRequest("a WebSocket begins with a GET without a body, and the fields of RFC 6455"),
    REALTIME,
)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which also answers a request that is no handshake, and frees the place of
    a client whose connection is lost. The session does not notice a loss while it does not read,
    because the audio is far ahead of real time.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None:  # another method, a body, a head that is too long
            self._refuse()

    def handle_connect(self, event: Request) -> None:
        try:
            self.conn.process_request(event)
        except (InvalidHandshake, UnicodeError):
            self._refuse()
        else:
            super().handle_connect(event)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.handshake_initiated and (place := self.scope["state"].get("place")):
            place.leave()

    def _refuse(self) -> None:
        headers = [*NO_HANDSHAKE.raw_headers, *GUARDED, (b"connection", b"close")]
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % each for each in headers), b""]
        self.transport.write(b"\r\n".join([*lines, NO_HANDSHAKE.body]))
        self.transport.close()


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
        self, gate: Gate, endpoint: Endpoint, drain_timeout: float, page: bool = False
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
                timeout_keep_alive=gate.keep_alive_seconds,
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


def raise_file_limit() -> None:
    """Raise the soft limit of open files as needed. Raises StartError if the hard is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS + OTHER_FILES
    files = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if files < FEWEST_FILES:
        raise StartError(f"ulimit -n: {files} open files are too few; allow {FEWEST_FILES} or more")
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def most_connections() -> int:
    """Return the limit of open files, less files of models, libraries and uploads."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(1, min(MOST_CONNECTIONS, files - OTHER_FILES))


@contextmanager
def answering_probes(bound: socket.socket, settings: ServerSettings) -> Iterator[None]:
    """Answer probes on `bound` in a thread during the block, and refuse all other requests."""
    app = partial(_while_loading, settings)
    server = uvicorn.Server(uvicorn.Config(app, interface="asgi3", lifespan="off", **UVICORN))
    # uvicorn closes this duplicate; the original socket keeps listening.
    thread = threading.Thread(target=server.run, args=([bound.dup()],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def _while_loading(
    settings: ServerSettings, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve while models load; close each connection, because this server ends soon.

    RunPod asks for 204 on `/ping`; SageMaker waits for 200.
    """
    text = "the models are still loading; /ready is 200 when the server accepts requests"
    loading = Refusal(Kind.NOT_READY, text)
    if scope["type"] == "websocket":
        await Handshake(scope, receive, send).fail(loading)
        return
    context = RequestContext(scope, receive, send, limit=0)
    context.answer_headers.append((b"connection", b"close"))
    path = scope["path"].rstrip("/") if scope["method"] in READING else ""
    try:
        if path == "/health":
            await context.run(JSONResponse({"status": "ok"}))
        elif path == "/ping":
            await context.run(Response(status_code=204))
        elif path == "/metrics":
            OriginPolicy(settings).check(scope["method"], path, context.headers)
            ApiKeys(settings.api_key, settings.api_keys_file).authorize(token_of(context.headers))
            await context.run(Response(text_while_loading(), media_type=METRICS_TYPE))
        else:
            raise loading
    except EndpointError as error:
        await context.fail(error)


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
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            reason += "; conda and some shells set HOST: choose the address with --host"
        raise StartError(f"HOST={host} PORT={port}: {reason}") from error


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
