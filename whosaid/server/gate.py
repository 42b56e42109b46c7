"""The gate: plain ASGI around the whole app. Nothing is parsed before a request is admitted, and
every answer passes through the gate.

    request ID -> framing -> host, origin -> key (principal) -> permit -> deadline -> route
    access log, metrics <- headers <- status <- answer, or the error that ended the request

The gate handles every early end of a request: a disconnected client, a body that is too large or
too slow, the deadline, the end of draining, an exception. It cancels the task that answers the
request. The client gets a status, an error event if a stream has begun, or nothing.
"""

import asyncio
import logging
import re
import time
import uuid
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whosaid.errors import EndpointError
from whosaid.runtime.logs import REQUEST, RequestInLog
from whosaid.server import tracing
from whosaid.server.admission import (
    JOBS,
    PREFLIGHT,
    PROBES,
    READING,
    RENDERING,
    TRANSCRIBING,
    WITHOUT_TOKEN,
    Admission,
    OriginPolicy,
    Permit,
    announced,
    check_framing,
    check_type,
    too_large,
)
from whosaid.server.error_response import GUARDED, ErrorResponse, error_event, translated
from whosaid.server.errors import Kind, Refusal
from whosaid.server.idempotency import IdempotentAnswers, key_of
from whosaid.server.jobs.runner import JobRunner
from whosaid.server.keys import ANONYMOUS, ApiKeys, Principal, token_of
from whosaid.server.metrics import Metrics
from whosaid.server.realtime.client_secrets import PREFIX, ClientSecrets
from whosaid.server.realtime.handshake import NO_STATUS, UPGRADED, Handshake
from whosaid.server.realtime.session_config import SessionConfig
from whosaid.server.settings import ServerSettings

logger = logging.getLogger("server")

PAGE = "/app"
REALTIME = "/v1/realtime"
ROUTES = {*PROBES, *TRANSCRIBING, *RENDERING, *WITHOUT_TOKEN, "/info", "/v1/models"}
ROUTES |= {REALTIME, f"{REALTIME}/client_secrets"}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
# The paths of Azure's clients. The deployment counts as little as a request's `model`.
AZURE = re.compile(r"/openai/deployments/[^/]+(/audio/(?:transcriptions|translations))/?")
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
LINE = "%s %s %s %s in %.2f s%s, by %s, id %s"  # of the access log
# Bytes of an append event besides its audio.
SLACK_MESSAGE_BYTES = 64 * 1024
# The status that nginx logs for a client that disconnected before its answer.
CLIENT_GONE = 499
# A body must keep up with this rate, and may fall so many seconds behind.
SLOWEST_BYTES_PER_S, PATIENCE_S = 1024, 30.0
# A client must take a part of an answer in so many seconds, once uvicorn's buffer is full.
SECONDS_TO_TAKE = 60.0
# Unread bytes of a body up to which uvicorn reads the rest to keep the connection. For a longer
# rest, seconds for which a client may send on until its answer ends.
LITTLE_BYTES, LINGER_S = 64 * 1024, 30.0


class IncomingBody:
    """The received bytes of a body, at most `limit`; `permit` counts them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.received, self.complete, self._due = limit, 0, asyncio.Event(), 0.0
        self.permit: Permit | None = None

    async def next(self, receive: Receive) -> Message:
        """Return the next message. Raises Refusal for a body that is too large or too slow."""
        self._due = self._due or time.monotonic() + PATIENCE_S
        try:
            async with asyncio.timeout(self._due - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise Refusal(Kind.BODY_TIMEOUT, "the body arrives too slowly") from None
        size = len(message.get("body", b""))
        self.received += size
        self._due = min(self._due + size / SLOWEST_BYTES_PER_S, time.monotonic() + PATIENCE_S)
        if self.received > self.limit:
            raise too_large(self.limit)
        if self.permit:
            self.permit.grow(self.received)
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.complete.set()
        return message

    def has_more(self, headers: Headers) -> bool:
        """Return whether the rest may be too long to read just to keep the connection."""
        if self.complete.is_set():
            return False
        if "transfer-encoding" in headers or "expect" in headers:
            return True
        return announced(headers) - self.received > LITTLE_BYTES


class RequestContext:
    """One request and its answer. `status` is the answer's. `gone`: the client disconnected before
    the answer was complete. `routed`: the app got the request.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.body = IncomingBody(limit)
        self.answer_headers: list[tuple[bytes, bytes]] = []
        self.started = time.monotonic()
        self.status: int | None = None
        self.first_event_s: float | None = None
        self.routed = self._complete = self._streams = False
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[EndpointError | None] = loop.create_future()

    @property
    def headers(self) -> Headers:
        return Headers(scope=self.scope)

    @property
    def code(self) -> str:
        """Return the code of the answer's error; "OK" if there is none."""
        return str(self.scope.get("state", {}).get("error_code", "OK"))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def gone(self) -> bool:
        return self._ended.done() and self._ended.result() is None

    def end(self, error: EndpointError | None) -> None:
        """End the request now, with `error`; None if the client is gone."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def run(self, app: ASGIApp, timeout: float | None = None) -> None:
        """Let `app` answer while the client waits, at most `timeout` s. Raises EndpointError."""
        self.routed = True
        task = asyncio.ensure_future(app(self.scope, self.receive, self.send))
        watching = asyncio.ensure_future(self._watch())
        try:
            either: set[asyncio.Future[Any]] = {task, self._ended}
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            in_time = task.done()
            if not in_time:
                task.cancel()
                await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClientDisconnect):
            self.end(None)
        if self._ended.done():
            if why := self._ended.result():
                raise why
        elif not in_time:
            raise Refusal(Kind.DEADLINE_EXCEEDED, "the request exceeded the server's time limit")
        elif error is not None and not self._complete:
            raise translated(error)

    async def fail(self, error: EndpointError) -> None:
        """Answer with `error`, if the answer has not gone too far for that."""
        with suppress(ClientDisconnect):
            if self.status is None:
                response = ErrorResponse(error, self.scope["path"])
                await response(self.scope, self.receive, self.send)
            elif self._streams and not self._complete:
                self.scope["state"]["error_code"] = error.code
                await self.send({"type": "http.response.body", "body": error_event(error)})

    async def receive(self) -> Message:
        """Return the next message: a part of the body, or a disconnect. Raises Refusal."""
        if self.body.complete.is_set():
            await asyncio.wait({self._ended})
            return {"type": "http.disconnect"}
        message = await self.body.next(self._receive)
        if message["type"] == "http.disconnect":
            self.end(None)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer. Raises ClientDisconnect if the client reads too slowly."""
        if message["type"] == "http.response.start":
            message = self._with_headers(message)
        elif message["type"] == "http.response.body":
            if self._streams and self.first_event_s is None:
                self.first_event_s = self.seconds
            self._complete = not message.get("more_body", False)
            # A client that waits for `100 Continue` sends no body after a refusal.
            waits = "expect" in self.headers and not self.body.received
            if self._complete and self.body.has_more(self.headers) and not waits:
                await self._send_on({**message, "more_body": True})
                await self._discard()
                message = {"type": "http.response.body", "body": b""}
        await self._send_on(message)

    async def _send_on(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SECONDS_TO_TAKE):
                await self._send(message)
        except TimeoutError:
            self.end(None)
            raise ClientDisconnect from None

    async def _discard(self) -> None:
        """Read the rest of a refused body. TCP resets a connection that is closed with unread
        bytes, and the client then loses the unread part of its answer.
        """
        if self.body.permit:
            self.body.permit.leave()
        reading = asyncio.ensure_future(self._read_rest())
        either: set[asyncio.Future[Any]] = {reading, self._ended}
        await asyncio.wait(either, timeout=LINGER_S, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()

    async def _read_rest(self) -> None:
        while (await self._receive()).get("more_body", False):
            pass

    def _with_headers(self, message: Message) -> Message:
        self.status = message["status"]
        headers = Headers(raw=message["headers"])
        self._streams = headers.get("content-type", "").startswith("text/event-stream")
        added = [*self.answer_headers]
        added += [header for header in GUARDED if header[0].decode() not in headers]
        if self.body.has_more(self.headers):
            added.append((b"connection", b"close"))
        return {**message, "headers": [*message["headers"], *added]}

    async def _watch(self) -> None:
        """Wait for the message after the body: a disconnect, or the end of the answer."""
        await self.body.complete.wait()
        await self._receive()
        if not self._complete:
            self.end(None)


class Gate:
    """The outermost ASGI app. `app` answers the requests that pass, and serves the sessions that
    one of `keys` or `secrets` opens. `running` are the requests without an answer; `jobs` runs
    the app's jobs.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        metrics: Metrics,
        settings: ServerSettings,
        secrets: ClientSecrets,
        keys: ApiKeys,
        jobs: JobRunner | None = None,
    ) -> None:
        self.app, self.admission, self.jobs = app, admission, jobs
        self.running: set[RequestContext] = set()
        self.deadline = settings.request_timeout
        self.keep_alive_seconds = settings.keep_alive_seconds
        self.most_message_bytes = settings.max_append_bytes * 4 // 3 + SLACK_MESSAGE_BYTES
        self._metrics, self._secrets = metrics, secrets
        self._keys, self._idempotent = keys, IdempotentAnswers(app, self.deadline)
        self._origins = OriginPolicy(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or session; pass other scopes to the app."""
        if scope["type"] == "websocket":
            await self._hold(Handshake(_with_usual_path(scope), receive, send))
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.admission.body_limit(Headers(scope=scope))
        context = RequestContext(_with_usual_path(scope), receive, send, limit)
        request_id = self._name(context)
        self.running.add(context)
        route = route_of(context.scope["path"])
        traced = route not in (*PROBES, PAGE)
        with tracing.span(route, context.headers) if traced else nullcontext():
            try:
                await self._answer(context)
            except EndpointError as error:
                if not context.routed:
                    self._metrics.refused.labels(error.code).inc()
                await context.fail(error)
            finally:
                self.running.discard(context)
                self._log_request(context, request_id)

    def _name(self, asked: RequestContext | Handshake) -> str:
        given = asked.headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        asked.answer_headers.append((b"x-request-id", request_id.encode()))
        asked.answer_headers += self._origins.answer_headers(asked.headers)
        REQUEST.set(RequestInLog(request_id))
        return request_id

    async def _answer(self, context: RequestContext) -> None:
        scope, headers = context.scope, context.headers
        path, method = scope["path"], scope["method"]
        self._check_sender(context)
        if self._origins.is_preflight(method, headers):
            context.answer_headers += PREFLIGHT
            await context.run(Response(status_code=204))
            return
        # The page's files are public.
        if route_of(path) != PAGE and not (path in WITHOUT_TOKEN and method in READING):
            # The routes' `request.state`.
            scope.setdefault("state", {})["principal"] = self._keys.authorize(token_of(headers))
            _sender(context)  # the lines of the request name it
        if path not in (*TRANSCRIBING, *RENDERING) or method != "POST":
            self.admission.check_length(headers)
            await context.run(self.app)
            return
        self.admission.check_draining()
        principal = scope["state"]["principal"]
        app, account = self.app, principal.account
        if path != JOBS and (key := key_of(headers)):
            app = partial(self._idempotent.answer, principal, key)
            with self._idempotent.rejoining(principal, key) as rejoins:
                if rejoins:
                    self.admission.check_length(headers)
                    await context.run(app, self.deadline)
                    return
        with ExitStack() as held:
            if account:
                held.enter_context(account.request())
            permit = held.enter_context(self.admission.permits.take())
            self.admission.check_length(headers)
            check_type(path, headers)
            self.admission.permits.check_room(announced(headers), permit)
            context.body.permit, permit.account = permit, account
            scope["state"] |= {"permit": permit, "held": held}
            await context.run(app, self.deadline)

    async def _hold(self, handshake: Handshake) -> None:
        """Serve a session, or refuse it like a request."""
        request_id = self._name(handshake)
        try:
            self._check_sender(handshake)
            if handshake.scope["path"] != REALTIME:
                raise Refusal(Kind.NOT_FOUND, "no such path")
            config = self._open(handshake)
            self.admission.check_live()
            account = handshake.scope["state"]["principal"].account
            counted = account.request() if account else nullcontext()
            with counted, self.admission.live.take() as place:
                try:
                    await handshake.run(self.app, place, config)
                finally:
                    self._metrics.charge(account, place.audio_seconds)
        except EndpointError as refusal:
            self._metrics.refused.labels(refusal.code).inc()
            await handshake.fail(refusal)
        finally:
            self._log_session(handshake, request_id)

    def _open(self, handshake: Handshake) -> SessionConfig:
        """Return the settings with which the session begins. Raises Refusal."""
        token, prefix = handshake.token, PREFIX.encode()
        config, principal = SessionConfig(), None
        if token.startswith(prefix):
            try:
                secret = self._secrets.find(token)
                creator, config = self._keys.authorize(secret.key), secret.config
                principal = replace(creator, name=f"{creator.name}:secret")
            except Refusal:
                if not self._keys.begins_with(prefix):
                    raise
        principal = principal or self._keys.authorize(token)
        handshake.scope.setdefault("state", {})["principal"] = principal
        return config

    def _check_sender(self, asked: RequestContext | Handshake) -> None:
        """Raise EndpointError for ambiguous framing, and for foreign hosts and pages."""
        scope, headers = asked.scope, asked.headers
        check_framing(scope["http_version"], headers)
        self._origins.check(scope["method"], scope["path"], headers)

    def _count(self, asked: RequestContext | Handshake, status: int, code: str) -> None:
        self._metrics.requests.labels(route_of(asked.scope["path"]), status, code).inc()
        if (principal := _principal(asked)) and principal.account:
            key, requests = principal.account.name, self._metrics.key_requests
            requests.labels(key, Kind.QUOTA_EXCEEDED.name)  # begins at 0, for its first increase
            requests.labels(key, code).inc()

    def _log_request(self, context: RequestContext, request_id: str) -> None:
        metrics, route = self._metrics, route_of(context.scope["path"])
        status = CLIENT_GONE if context.gone else context.status or CLIENT_GONE
        code = "CLIENT_GONE" if status == CLIENT_GONE else context.code
        self._count(context, status, code)
        metrics.seconds.labels(route).observe(context.seconds)
        if status == CLIENT_GONE:
            metrics.cancelled.inc()
        if received := context.body.received:
            metrics.body_bytes.observe(received)
        if context.first_event_s is not None:
            metrics.first_event.observe(context.first_event_s)
        level = logging.DEBUG if route in (*PROBES, PAGE) else logging.INFO
        method = context.scope["method"]
        method = method if method in METHODS else "other"
        sender = _sender(context)
        tracing.describe(status, code, sender)
        logger.log(
            level, LINE, method, route, status, code, context.seconds, "", sender, request_id
        )

    def _log_session(self, handshake: Handshake, request_id: str) -> None:
        route, place = route_of(handshake.scope["path"]), handshake.place
        status, code = handshake.status or CLIENT_GONE, handshake.code
        self._count(handshake, status, code)
        audio = ""
        if status == UPGRADED and place is not None:
            closed = handshake.close_status or NO_STATUS
            audio = f", {place.audio_seconds:.1f} s of audio, closed with {closed}"
        seconds = time.monotonic() - handshake.started
        sender = _sender(handshake)
        logger.info(LINE, "GET", route, status, code, seconds, audio, sender, request_id)


def route_of(path: str) -> str:
    """Return a path's route, "other" if it has none: logged paths and names may be secrets."""
    if path in ROUTES:
        return path
    if path.startswith(f"{JOBS}/"):
        return f"{JOBS}/{{job}}"
    return PAGE if path == PAGE or path.startswith(f"{PAGE}/") else "other"


def _sender(asked: RequestContext | Handshake) -> str:
    """Return the log's name of who sent a request; of a path without a key, nobody is asked."""
    principal = _principal(asked)
    name = principal.name if principal else ANONYMOUS
    if request := REQUEST.get():
        request.key = name
    return name


def _principal(asked: RequestContext | Handshake) -> Principal | None:
    found: Principal | None = asked.scope.get("state", {}).get("principal")
    return found


def _with_usual_path(scope: Scope) -> Scope:
    """Rewrite `/predict/` to `/predict`, and Azure's paths to OpenAI's, but keep `/app/`."""
    azure = AZURE.fullmatch(scope["path"])
    path = f"/v1{azure[1]}" if azure else scope["path"].rstrip("/") or "/"
    return {**scope, "path": path, "raw_path": path.encode()} if path in ROUTES else scope
