"""One request and its answer, between the HTTP library and the routes.

Whatever ends a request early is handled here and nowhere else, by cancelling the task that answers
it, which frees its rows: a client that leaves, a body that is too large or too slow, the deadline,
the end of draining, an exception. What the client gets then depends only on how far the answer is:
a status, an error event at the end of a stream, or nothing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from errors import EndpointError
from server.error_response import error_event, error_response, translated
from server.errors import DeadlineExceeded
from server.incoming_body import IncomingBody

# The time that a client has to take an error that it may not be waiting for.
FAREWELL_S = 5.0
# What nginx logs of a client that did not wait for its answer.
CLIENT_GONE = 499
DISCONNECT: Message = {"type": "http.disconnect"}
# Of every answer that does not say otherwise, so that no browser takes it for a page, or a part of
# one: it is of the type that it says, in no frame, and for no other site's image or script. Answers
# hold transcripts and secrets, so no browser may keep one on its disk.
GUARDED = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Exchange:
    """Knows what went out: `status` is that of the answer and `code` that of its error; `gone` says
    that the client left before the answer was complete. `body` is what comes in.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.headers = Headers(scope=scope)
        self.body = IncomingBody(receive, self.headers, limit)
        self.started = time.monotonic()
        self.answer_headers: list[tuple[bytes, bytes]] = []
        self.status: int | None = None
        self.code = "OK"
        self.first_event_s: float | None = None
        self._complete = self._streams = False
        self._watches = False
        self._ended: asyncio.Future[EndpointError | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._watcher: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """How long ago the request came."""
        return time.monotonic() - self.started

    @property
    def gone(self) -> bool:
        """Whether the client left before it had its answer."""
        return self._ended.done() and self._ended.result() is None

    def end(self, error: EndpointError | None) -> None:
        """Answer with `error` now; None where nobody waits for an answer any more."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def run(self, app: ASGIApp, timeout: float | None = None) -> None:
        """Let `app` answer; with a `timeout` in seconds, watch the client and the clock meanwhile.

        Raises no Exception: each becomes an answer.
        """
        self._watches = timeout is not None
        task = asyncio.ensure_future(app(self.scope, self.receive, self.send))
        try:
            either: set[asyncio.Future[Any]] = {task, self._ended}
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._watcher:
                self._watcher.cancel()
            in_time = task.done()
            if not in_time:
                task.cancel()
                await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClientDisconnect):
            self.end(None)
        if self._ended.done():
            if why := self._ended.result():
                await self._fail(why)
        elif not in_time:
            await self._fail(DeadlineExceeded("the request took longer than the server allows"))
        elif error is not None and not self._complete:
            await self._fail(translated(error))

    async def fail(self, error: EndpointError) -> None:
        """Answer with `error` without asking any route."""
        await error_response(error, self.scope["path"])(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        """The next part of the body, or that the client is gone.

        Raises BodyTooLarge, SlowBody, or Busy where there is no room for what came.
        """
        if self.body.complete:
            if not self._watches:
                return await self._receive()
            await asyncio.wait({self._ended})
            return DISCONNECT
        message = await self.body.next_part()
        if message["type"] == "http.disconnect":
            self.end(None)
        elif self.body.complete and self._watches:
            self._watcher = asyncio.ensure_future(self._watch())
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            message = self._started(message)
        elif message["type"] == "http.response.body":
            if self._streams and self.first_event_s is None:
                self.first_event_s = self.seconds
            self._complete = not message.get("more_body", False)
        await self._send(message)

    def _started(self, message: Message) -> Message:
        self.status = status = message["status"]
        headers = Headers(raw=message["headers"])
        if failed := headers.get("x-error-message"):
            self.code = failed.partition(":")[0]
        self._streams = headers.get("content-type", "").startswith("text/event-stream")
        added = [*self.answer_headers]
        added += [header for header in GUARDED if header[0].decode() not in headers]
        if self.body.ends_connection(status):
            # Else the library reads the rest, however much it is, before the next request.
            added.append((b"connection", b"close"))
        return {**message, "headers": [*message["headers"], *added]}

    async def _watch(self) -> None:
        """Nothing comes after a body but the news that the client is gone, or has its answer."""
        await self._receive()
        if not self._complete:
            self.end(None)

    async def _fail(self, error: EndpointError) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                if self.status is None:
                    await self.fail(error)
                elif self._streams and not self._complete:
                    self.code = error.code
                    await self.send({"type": "http.response.body", "body": error_event(error)})
