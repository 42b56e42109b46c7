"""How a connection ends whose client does not do its part of it.

One still sends what nobody reads. The answer comes first: where a socket is closed that has unread
bytes, or gets some later, TCP sends a reset, and that discards what the client has not read of its
answer. So the server ends its own direction alone, and throws away what comes until the client ends
the other (RFC 9112, section 9.6; nginx's lingering_close), with bounds on seconds, bytes and
connections.

Another one never reads. What was written waits in the transport, whose `close` waits for it without
a limit, and so does whoever writes more. A client that takes less than the slowest one may is cut
off, as nginx's send_timeout does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

# nginx's lingering_time; as many bytes as the largest audio file may have by default.
LINGER_S, LINGER_BYTES = 30.0, 512 * 2**20
# Beyond so many at once a connection is closed as it is.
MOST_LINGERING = 1_000
# The rate at which what was written must be taken.
SLOWEST_BYTES_PER_S = 1024


class LingeringTransport:
    """A connection's transport, whose `close` waits while the client `sends`, and, as whoever
    writes does, while it takes what was written: each `patience` seconds as much as the slowest
    client does. Else the connection is aborted.

    The protocol should give to `discard` what comes while `lingers`, have it `watch` while writing
    is paused or the other transport ends by itself, and `release` it when the connection is lost.
    Everything else is the other transport's.
    """

    all_lingering: ClassVar[set[LingeringTransport]] = set()  # of the process

    def __init__(
        self,
        transport: asyncio.Transport,
        patience: float,
        sends: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport, self._patience, self._sends = transport, patience, sends
        self._left = 0
        self._end: asyncio.TimerHandle | None = None
        self._cut: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What the other transport has, as it is."""
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        """Whether nothing is written any more, and what comes is to be discarded."""
        return self._end is not None

    def is_closing(self) -> bool:
        """Whether it has been closed."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close it, once the client has ended too; the second time, at once."""
        if self.lingers:
            self._transport.abort()
        elif (
            self._transport.is_closing()
            or not self._sends()
            or len(self.all_lingering) >= MOST_LINGERING
        ):
            self._transport.close()
            self.watch()
        else:
            self._linger()

    def discard(self, size: int) -> None:
        """`size` bytes came, which nobody reads."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def watch(self) -> None:
        """Something waits for the client to take what was written."""
        if self._cut is None:
            self._look_later(self._transport.get_write_buffer_size())

    def unwatch(self) -> None:
        """Nothing waits for that any more, but for the end of a connection that was closed."""
        if self._cut and not self.is_closing():
            self._cut.cancel()
            self._cut = None

    def release(self) -> asyncio.Transport:
        """The other transport, which nothing here ends any more: it is another's, or lost."""
        self.all_lingering.discard(self)
        for timer in (self._end, self._cut):
            if timer:
                timer.cancel()
        return self._transport

    def _linger(self) -> None:
        self._left = LINGER_BYTES
        # Not `close`, which waits until the client has taken the answer.
        self._end = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self.all_lingering.add(self)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()

    def _look_later(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        self._cut = loop.call_later(self._patience, self._look, size)

    def _look(self, before: int) -> None:
        """Abort, unless the client has taken enough of so many bytes."""
        size = self._transport.get_write_buffer_size()
        if before - size < self._patience * SLOWEST_BYTES_PER_S:
            self._transport.abort()
        else:
            self._look_later(size)
