"""How the server begins to listen and how it ends.

While models load, a server of its own answers `/health`, so that platforms do not restart a process
that downloads them; all else is 503. Then the port is the server's.

Draining is the server's own phase before uvicorn's shutdown begins. On SIGTERM the port stays open:
what was accepted is computed and answered, what comes is told 503, `/ready` says so, and only then,
or after the time limit, uvicorn closes connections. The process ends with status 0, as nothing was
lost; a second signal ends it at once. Where the engine has stopped it ends by itself, with another
status, as platforms restart what ends and nothing else.
"""

from __future__ import annotations

import asyncio
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

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from asr import stopped
from endpoint import Endpoint
from errors import EndpointError
from runtime.errors import EXIT_STATUS
from server.access_log import PAGE
from server.error_response import error_response
from server.errors import Draining, InvalidHttp, NotReady
from server.exchange import GUARDED, Exchange
from server.lingering import LingeringTransport
from server.middleware import RequestGate
from server.realtime.handshake import Handshake
from server.realtime.places import GOING_AWAY, INTERNAL_ERROR, Ending
from server.settings import ServerSettings
from server.websocket import PING_S, BoundedWebSocket, is_handshake

logger = logging.getLogger("server")

# From the opening of a connection, or the last answer on it, to the end of a request's head.
SECONDS_TO_ASK = 30
# In which a client must take some of an answer that is larger than what the system keeps of it.
SECONDS_TO_TAKE = 60.0
# Beyond so many connections, and where files run short, requests are refused.
MOST_CONNECTIONS, OTHER_FILES = 10_000, 256
# Connections that the system keeps until they are accepted; uvicorn's default.
BACKLOG = 2048
# For answers on their way to clients, after the last one is computed.
SECONDS_TO_LEAVE = 5


class PromptProtocol(H11Protocol):
    """uvicorn's protocol, which closes a connection after an answer when nothing comes, and here
    also one on which no request ever came, or but a part of its head, and one whose client does not
    take what it is answered. A client that still sends a body when it is answered gets the answer
    before the connection is closed.
    """

    transport: LingeringTransport  # type: ignore[assignment]
    _asking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client may ask now."""
        watched = LingeringTransport(transport, SECONDS_TO_TAKE, self._client_sends)
        super().connection_made(watched)  # type: ignore[arg-type]
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """What comes after an answer that ends the connection is not looked at."""
        if self.transport.lingers:
            self.transport.discard(len(data))
        else:
            super().data_received(data)

    def _should_upgrade(self) -> bool:
        """Whether a WebSocket begins; what only says so is a request like others."""
        return is_handshake(self.scope, self.headers)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection is another protocol's from here on."""
        if self._asking:
            self._asking.cancel()
        self.transport = self.transport.release()  # type: ignore[assignment]
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """It may ask again, unless the connection is about to end."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.cycle.body = bytearray()
        else:
            self._wait_for_request()

    def pause_writing(self) -> None:
        """The client does not take its answer as fast as it is written, or not at all."""
        super().pause_writing()
        self.transport.watch()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self.transport.unwatch()

    def eof_received(self) -> None:
        """The client sends no more, upon which asyncio closes the connection."""
        self.transport.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody asks."""
        super().connection_lost(exc)
        self.transport.release()
        if self._asking:
            self._asking.cancel()

    def send_400_response(self, msg: str) -> None:
        """What comes is no HTTP: say so as all refusals do, if an answer has not begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_response(InvalidHttp("what came is not HTTP/1.1"), "/")
            headers = [*response.raw_headers, *GUARDED, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _client_sends(self) -> bool:
        """Whether more is to come: a part of a body by its framing, or what is no HTTP."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _wait_for_request(self) -> None:
        if self._asking:
            self._asking.cancel()
        self._asking = self.loop.call_later(SECONDS_TO_ASK, self._end_unless_asked)

    def _end_unless_asked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.timeout_keep_alive_handler()


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains before it shuts down; it does so too when the engine stops.

    `exit_status` is what the process should end with. `proxies` are the addresses of those whose
    X-Forwarded-For names the client; with `page` the log names the page's address.
    """

    exit_status = 0
    _end = "the server ends before it drained"

    def __init__(
        self,
        gate: RequestGate,
        endpoint: Endpoint,
        drain_timeout: float,
        proxies: str | None = None,
        page: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                gate,
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SECONDS_TO_LEAVE,
                http=PromptProtocol,
                ws=BoundedWebSocket,
                ws_max_size=gate.most_message_bytes,
                ws_per_message_deflate=False,  # a few bytes would be any number of zeros
                ws_ping_interval=PING_S,
                ws_ping_timeout=PING_S,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=proxies or "",
            )
        )
        gate.connections = self.server_state.connections
        gate.most_connections = most_connections()
        self.gate, self.endpoint, self._page = gate, endpoint, page
        self.drain_timeout = drain_timeout
        self._drain_ends = float("inf")
        self._says_draining = False

    @property
    def busy(self) -> bool:
        """Whether anybody waits for an answer, or is in a session."""
        admission = self.gate.admission
        return admission.places.taken + admission.live.taken + self.endpoint.outstanding > 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        for bound in sockets or []:
            where = address(bound)
            logger.info("listening on %s%s", where, f", page {where}{PAGE}" if self._page else "")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; the second time, end the process as the signal does by itself.

        It may come in the middle of a line of the log, where no other can be written: `on_tick`
        says it.
        """
        if self.gate.admission.draining:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.gate.admission.draining = True
        self._drain_ends = time.monotonic() + self.drain_timeout
        self._says_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Whether to shut down, asked ten times a second."""
        await super().on_tick(counter)
        if not self.endpoint.alive and not self.exit_status:
            self._engine_stopped()
        if not self.gate.admission.draining:
            return False
        if self._says_draining:
            self._says_draining = False
            logger.info("draining: %d requests are not answered", self.gate.admission.places.taken)
            self.begin_to_drain()
        if self.busy and time.monotonic() < self._drain_ends:
            return False
        self._end = "drained" if not self.busy else "the time to drain is over"
        self.end_all(stopped() if self.exit_status else None)
        return True

    def begin_to_drain(self) -> None:
        """Have every live session complete what it has heard, and end; jobs wait for another
        process.
        """
        if self.gate.jobs:
            self.gate.jobs.stop()
        why = Draining("the server is about to stop")
        self.gate.admission.live.finish_all(Ending(GOING_AWAY, why))

    def end_all(self, error: EndpointError | None = None) -> None:
        """Answer whatever is not answered yet with `error`, or that the server drains; streams end
        with an error event.
        """
        why = error or Draining("the server stops before this request is answered")
        for exchange in self.gate.running:
            exchange.end(why)
        status = INTERNAL_ERROR if error else GOING_AWAY
        self.gate.admission.live.end_all(Ending(status, why))

    def close(self) -> None:
        """End the endpoint's threads, or the process where one does not end; how it drained is the
        last that is said.
        """
        closing = threading.Thread(target=self.endpoint.close, daemon=True)
        closing.start()
        closing.join(SECONDS_TO_LEAVE)
        if closing.is_alive():
            logger.warning("a computation does not end, the process does")
        logger.info(self._end)
        if closing.is_alive():
            logging.shutdown()
            os._exit(self.exit_status)

    def _engine_stopped(self) -> None:
        """Begin to end: who waited for the engine has been told, others are about to be."""
        logger.critical("the engine has stopped, so the process ends")
        self.exit_status = EXIT_STATUS
        self.gate.admission.draining = True
        self._drain_ends = min(self._drain_ends, time.monotonic() + SECONDS_TO_LEAVE)


def most_connections() -> int:
    """As many as files may be open, save those of models, libraries and uploads."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(1, min(MOST_CONNECTIONS, files - OTHER_FILES))


@contextmanager
def answering_health(bound: socket.socket) -> Iterator[None]:
    """Answer `/health` on `bound` in a thread during the block, and refuse all other requests."""
    server = uvicorn.Server(
        uvicorn.Config(
            _while_loading,
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=SECONDS_TO_LEAVE,
            http=PromptProtocol,
            ws=BoundedWebSocket,
        )
    )
    # uvicorn closes the socket that it is given; the other one goes on to listen.
    thread = threading.Thread(target=server.run, args=([bound.dup()],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def _while_loading(scope: Scope, receive: Receive, send: Send) -> None:
    """The app while models load. Connections end with each answer, as its server is about to."""
    loading = NotReady("the models are still loading; /ready says when the server takes requests")
    if scope["type"] == "websocket":
        await Handshake(scope, receive, send).fail(loading)
        return
    exchange = Exchange(scope, receive, send, limit=0)
    exchange.answer_headers.append((b"connection", b"close"))
    if scope["path"].rstrip("/") == "/health" and scope["method"] in ("GET", "HEAD"):
        await exchange.run(JSONResponse({"status": "ok"}))
    else:
        await exchange.fail(loading)


def bind(settings: ServerSettings) -> socket.socket:
    """Return the server's socket, which listens: clients wait until they are answered.

    Raises OSError if the address is taken, or is not one of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def address(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
