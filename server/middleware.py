"""What every request passes on its way in and out: name, admission, exchange, log, metrics.

The one decision: plain ASGI around the whole app, so that nothing is parsed before a request is
admitted, and no answer leaves unseen. The log names routes, never paths, queries or file names:
these are the client's, and may be secrets.
"""

from __future__ import annotations

import logging
import re
import uuid

from starlette.types import ASGIApp, Receive, Scope, Send

from errors import EndpointError
from server.admission import PROBES, TRANSCRIBING, WITHOUT_TOKEN, Admission
from server.errors import Draining
from server.exchange import CLIENT_GONE, Exchange
from server.metrics import Metrics

logger = logging.getLogger("server")

PAGE = "/app"
ROUTES = {*PROBES, *TRANSCRIBING, *WITHOUT_TOKEN, "/info", "/v1/models"}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


class RequestGate:
    """The ASGI app that clients reach; `app` answers those requests that it lets through.

    `deadline` is in seconds.
    """

    def __init__(
        self, app: ASGIApp, admission: Admission, metrics: Metrics, deadline: float
    ) -> None:
        self.app, self.admission, self.metrics = app, admission, metrics
        self.deadline = deadline
        self._running: set[Exchange] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass on what is none."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = _without_last_slash(scope)
        exchange = Exchange(scope, receive, send, self.admission.max_audio_bytes)
        exchange.limit = self.admission.body_limit(exchange.headers)
        given = exchange.headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        exchange.answer_headers.append((b"x-request-id", request_id.encode()))
        self._running.add(exchange)
        try:
            await self._answer(exchange)
        finally:
            self._running.discard(exchange)
            self._record(exchange, request_id)

    def end_all(self, error: EndpointError | None = None) -> None:
        """Answer whatever is not answered yet with `error`, or that the server drains; streams end
        with an error event.
        """
        why = error or Draining("the server stops before this request is answered")
        for exchange in self._running:
            exchange.end(why)

    async def _answer(self, exchange: Exchange) -> None:
        path, method = exchange.scope["path"], exchange.scope["method"]
        try:
            if not _is_open(path, method):
                self.admission.authorize(exchange.headers)
            if path in TRANSCRIBING and method == "POST":
                with self.admission.place():
                    self.admission.check_length(exchange.headers)
                    self.admission.check_type(path, exchange.headers)
                    with self.admission.hold_body(exchange.headers) as exchange.held:
                        await exchange.run(self.app, self.deadline)
            else:
                self.admission.check_length(exchange.headers)
                await exchange.run(self.app)
        except EndpointError as refusal:
            self.metrics.refused.labels(refusal.code).inc()
            await exchange.fail(refusal)

    def _record(self, exchange: Exchange, request_id: str) -> None:
        route = _route(exchange.scope["path"])
        status = CLIENT_GONE if exchange.gone else exchange.status or CLIENT_GONE
        code = "CLIENT_GONE" if status == CLIENT_GONE else exchange.code
        self.metrics.requests.labels(route, status, code).inc()
        self.metrics.seconds.labels(route).observe(exchange.seconds)
        if status == CLIENT_GONE:
            self.metrics.cancelled.inc()
        if exchange.received:
            self.metrics.body_bytes.observe(exchange.received)
        if exchange.first_event_s is not None:
            self.metrics.first_event.observe(exchange.first_event_s)
        level = logging.DEBUG if route in (*PROBES, PAGE) else logging.INFO
        method = exchange.scope["method"]
        logger.log(
            level,
            "%s %s %s %s in %.2f s, id %s",
            method if method in METHODS else "other",
            route,
            status,
            code,
            exchange.seconds,
            request_id,
        )


def _without_last_slash(scope: Scope) -> Scope:
    """The same request for `/predict` where it came for `/predict/`. `/app/` is the page's own."""
    path = scope["path"].rstrip("/") or "/"
    return {**scope, "path": path, "raw_path": path.encode()} if path in ROUTES else scope


def _is_open(path: str, method: str) -> bool:
    """Whether the token is not asked for here: the page's files are no secret."""
    return _route(path) == PAGE or (path in WITHOUT_TOKEN and method in ("GET", "HEAD"))


def _route(path: str) -> str:
    if path in ROUTES:
        return path
    return PAGE if path == PAGE or path.startswith(f"{PAGE}/") else "other"
