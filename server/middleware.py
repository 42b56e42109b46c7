"""What every request passes on its way in and out: name, framing, origin, key, admission, exchange,
log.

It is plain ASGI around the whole app, so that nothing is parsed before a request is admitted, and
no answer leaves unseen.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from errors import EndpointError
from server.access_log import PAGE, ROUTES, AccessLog, route_of
from server.admission import PROBES, TRANSCRIBING, WITHOUT_TOKEN, Admission
from server.api_key import ApiKey
from server.errors import Crowded, InvalidHttp, Unauthorized
from server.exchange import Exchange
from server.jobs.runner import JobRunner
from server.metrics import Metrics
from server.origin_policy import PREFLIGHT, OriginPolicy
from server.realtime.client_secrets import PREFIX, ClientSecret, ClientSecrets
from server.realtime.handshake import Handshake
from server.settings import ServerSettings

# Of an event that appends audio, beside the audio.
SLACK_MESSAGE_BYTES = 64 * 1024
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


class RequestGate:
    """The ASGI app that clients reach; `app` answers those requests that it lets through, and holds
    those sessions, which the key opens or one of `secrets`. `running` are the requests that are not
    answered yet; `jobs` runs those of the app.

    `connections` are those that are open, of which there may be `most_connections`; who listens
    sets both.
    """

    connections: Collection[object] = ()
    most_connections: float = math.inf

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        metrics: Metrics,
        settings: ServerSettings,
        secrets: ClientSecrets,
        jobs: JobRunner | None = None,
    ) -> None:
        self.app, self.admission, self.jobs = app, admission, jobs
        self.running: set[Exchange] = set()
        self._log = AccessLog(metrics)
        self.deadline = settings.request_timeout
        self.most_message_bytes = settings.max_append_bytes * 4 // 3 + SLACK_MESSAGE_BYTES
        self._secrets = secrets
        self._key = ApiKey(settings.api_key)
        self._origins = OriginPolicy(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, hold one session, or pass on what is neither."""
        if scope["type"] == "websocket":
            await self._hold(Handshake(_without_last_slash(scope), receive, send))
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = _without_last_slash(scope)
        limit = self.admission.body_limit(Headers(scope=scope))
        exchange = Exchange(scope, receive, send, limit)
        request_id = self._name(exchange)
        self.running.add(exchange)
        try:
            await self._answer(exchange)
        finally:
            self.running.discard(exchange)
            self._log.answered(exchange, request_id)

    def _name(self, asked: Exchange | Handshake) -> str:
        """The request's id, which the answer has, too."""
        given = asked.headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        asked.answer_headers.append((b"x-request-id", request_id.encode()))
        asked.answer_headers += self._origins.answer_headers(asked.headers)
        return request_id

    async def _hold(self, handshake: Handshake) -> None:
        """Hold a session, or refuse it as a request is refused."""
        request_id = self._name(handshake)
        try:
            self._check_sender(handshake)
            secret = self._open(handshake)
            with self.admission.live_place() as place:
                await handshake.run(self.app, place, secret)
        except EndpointError as refusal:
            self._log.refused(refusal)
            await handshake.fail(refusal)
        finally:
            self._log.held(handshake, request_id)

    def _open(self, handshake: Handshake) -> ClientSecret | None:
        """The secret that a client sends, None where it sends the key, or none is asked for.

        Raises Unauthorized, or TooManyGuesses.
        """
        token, prefix = handshake.token, PREFIX.encode()
        if token.startswith(prefix):
            try:
                return self._secrets.find(token)
            except Unauthorized:
                if not self._key.begins_with(prefix):
                    raise
        self._key.authorize_token(token, _address(handshake.scope))
        return None

    async def _answer(self, exchange: Exchange) -> None:
        path, method = exchange.scope["path"], exchange.scope["method"]
        state = exchange.scope.setdefault("state", {})  # the routes' `request.state`
        state["place"] = None
        try:
            self._check_head(exchange)
            if self._origins.is_preflight(method, exchange.headers):
                exchange.answer_headers += PREFLIGHT
                await exchange.run(Response(status_code=204))
            elif path in TRANSCRIBING and method == "POST":
                with self.admission.place(exchange.end) as place:
                    exchange.body.place = place
                    self.admission.check_length(exchange.headers)
                    self.admission.check_type(path, exchange.headers)
                    self.admission.check_room(exchange.headers, place)
                    state["place"] = place
                    await exchange.run(self.app, self.deadline)
            else:
                self.admission.check_length(exchange.headers)
                await exchange.run(self.app)
        except EndpointError as refusal:
            self._log.refused(refusal)
            await exchange.fail(refusal)

    def _check_head(self, exchange: Exchange) -> None:
        """Raises a Refusal where the head alone says that there is nothing to be had."""
        self._check_sender(exchange)
        path, method, headers = exchange.scope["path"], exchange.scope["method"], exchange.headers
        if not _is_open(path, method) and not self._origins.is_preflight(method, headers):
            self._key.authorize(headers, _address(exchange.scope))

    def _check_sender(self, asked: Exchange | Handshake) -> None:
        """Raises a Refusal where there is nothing to be had for anybody, or from where it comes."""
        scope, headers = asked.scope, asked.headers
        path = scope["path"]
        if path not in PROBES and len(self.connections) > self.most_connections:
            asked.answer_headers.append((b"connection", b"close"))
            raise Crowded("too many connections are open")
        check_framing(scope["http_version"], headers)
        self._origins.check(scope["method"], path, headers)


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


def _address(scope: Scope) -> str:
    """The client's; a Unix socket has none."""
    address, _ = scope["client"] or ("", 0)
    return str(address)


def _is_open(path: str, method: str) -> bool:
    """Whether the token is not asked for here: the page's files are no secret."""
    return route_of(path) == PAGE or (path in WITHOUT_TOKEN and method in ("GET", "HEAD"))
