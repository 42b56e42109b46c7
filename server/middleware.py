"""What every request passes on its way in and out: name, framing, origin, key, admission, exchange,
log, metrics.

It is plain ASGI around the whole app, so that nothing is parsed before a request is admitted, and
no answer leaves unseen. The log names routes, never paths, queries or file names: these are the
client's, and may be secrets.
"""

from __future__ import annotations

import logging
import math
import re
import uuid
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from config import ServerSettings
from errors import EndpointError
from server.admission import PROBES, TRANSCRIBING, WITHOUT_TOKEN, Admission
from server.api_key import ApiKey
from server.errors import Crowded, Draining, InvalidHttp
from server.exchange import CLIENT_GONE, Exchange
from server.metrics import Metrics
from server.origin_policy import PREFLIGHT, OriginPolicy

logger = logging.getLogger("server")

PAGE = "/app"
ROUTES = {*PROBES, *TRANSCRIBING, *WITHOUT_TOKEN, "/info", "/v1/models"}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


class RequestGate:
    """The ASGI app that clients reach; `app` answers those requests that it lets through.

    `connections` are those that are open, of which there may be `most_connections`; who listens
    sets both.
    """

    connections: Collection[object] = ()
    most_connections: float = math.inf

    def __init__(
        self, app: ASGIApp, admission: Admission, metrics: Metrics, settings: ServerSettings
    ) -> None:
        self.app, self.admission, self.metrics = app, admission, metrics
        self.deadline = settings.request_timeout
        self._key = ApiKey(settings.api_key)
        self._origins = OriginPolicy(settings)
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
        exchange.answer_headers += self._origins.answer_headers(exchange.headers)
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
            self._check_head(exchange)
            if self._origins.is_preflight(method, exchange.headers):
                exchange.answer_headers += PREFLIGHT
                await exchange.run(Response(status_code=204))
            elif path in TRANSCRIBING and method == "POST":
                with self.admission.place(exchange.end) as exchange.place:
                    self.admission.check_length(exchange.headers)
                    self.admission.check_type(path, exchange.headers)
                    self.admission.check_room(exchange.headers, exchange.place)
                    await exchange.run(self.app, self.deadline)
            else:
                self.admission.check_length(exchange.headers)
                await exchange.run(self.app)
        except EndpointError as refusal:
            self.metrics.refused.labels(refusal.code).inc()
            await exchange.fail(refusal)

    def _check_head(self, exchange: Exchange) -> None:
        """Raises a Refusal where the head alone says that there is nothing to be had."""
        scope, headers = exchange.scope, exchange.headers
        path, method = scope["path"], scope["method"]
        if path not in PROBES and len(self.connections) > self.most_connections:
            exchange.answer_headers.append((b"connection", b"close"))
            raise Crowded("too many connections are open")
        check_framing(scope["http_version"], headers)
        self._origins.check(method, path, headers)
        if not _is_open(path, method) and not self._origins.is_preflight(method, headers):
            address, _ = scope["client"] or ("", 0)
            self._key.authorize(headers, address)

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


def check_framing(http_version: str, headers: Headers) -> None:
    """Raises InvalidHttp where a proxy before the server may find another end of the body, and so
    another request after it (RFC 9112, section 6.1). What else is unclear h11 refuses.
    """
    if "transfer-encoding" in headers and ("content-length" in headers or http_version == "1.0"):
        raise InvalidHttp("a body has either Content-Length or, since HTTP/1.1, Transfer-Encoding")


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
