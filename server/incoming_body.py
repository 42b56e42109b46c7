"""A request's body as it comes: counted, and no slower than it may be."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from server.admission import too_large
from server.errors import SlowBody
from server.places import Pace, Place

# A body must keep up with this rate, and may fall so many seconds behind.
SLOWEST_BYTES_PER_S, PATIENCE_S = 1024, 30.0
# So much of a body that nobody asks for is read all the same, so that the connection can be kept.
LITTLE_BYTES = 64 * 1024


class IncomingBody:
    """At most `limit` bytes, of which `received` have come; `place` counts them, where all bodies
    together are limited. It is `complete` when all have come.
    """

    def __init__(self, receive: Receive, headers: Headers, limit: int) -> None:
        self._receive, self._headers = receive, headers
        self.limit = limit
        self.place: Place | None = None
        self.received = 0
        self.complete = False
        self._pace = Pace(SLOWEST_BYTES_PER_S, PATIENCE_S, time.monotonic())

    async def next_part(self) -> Message:
        """The next message. Raises BodyTooLarge, SlowBody, or Busy where there is no room."""
        try:
            async with asyncio.timeout(self._pace.due - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise SlowBody("the body does not arrive") from None
        if message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            if not message.get("more_body", False):
                self.complete = True
                if self.place:
                    self.place.complete = True
        return message

    def ends_connection(self, status: int) -> bool:
        """Whether more may come than is worth keeping the connection for, where the answer has
        this status and nobody reads on.
        """
        if self.complete:
            return False
        if "transfer-encoding" in self._headers or "expect" in self._headers:
            return True
        left = int(self._headers.get("content-length", "0")) - self.received
        return left > (0 if status == SlowBody.status else LITTLE_BYTES)

    def _count(self, size: int) -> None:
        self.received += size
        self._pace.came(size, time.monotonic())
        if self.received > self.limit:
            raise too_large(self.limit)
        if self.place:
            self.place.grow(self.received)
