"""How a connection ends on which a client still sends what nobody reads.

The answer comes first. Where a socket is closed that has unread bytes, or gets some later, TCP
sends a reset, and that discards what the client has not read of its answer. So the server ends its
own direction alone, and throws away what comes until the client ends the other (RFC 9112, section
9.6; nginx's lingering_close), with bounds on seconds, bytes and connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

# nginx's lingering_time; as many bytes as the largest audio file may have by default.
LINGER_S, LINGER_BYTES = 30.0, 512 * 2**20
# Beyond so many at once a connection is closed as it is.
MOST_LINGERING = 1_000


class LingeringTransport:
    """A connection's transport, whose `close` waits while the client `sends`.

    The protocol should give to `discard` what comes while `lingers`, and say when it was `lost`.
    Everything else is the other transport's.
    """

    all_lingering: ClassVar[set[LingeringTransport]] = set()  # of the process

    def __init__(self, transport: asyncio.Transport, sends: Callable[[], bool]) -> None:
        self._transport, self._sends = transport, sends
        self._left = 0
        self._end: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What the other transport has, as it is."""
        return getattr(self._transport, name)

    @property
    def inner(self) -> asyncio.Transport:
        """The other transport."""
        return self._transport

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
        else:
            self._linger()

    def discard(self, size: int) -> None:
        """`size` bytes came, which nobody reads."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def lost(self) -> None:
        """The connection has ended."""
        self.all_lingering.discard(self)
        if self._end:
            self._end.cancel()

    def _linger(self) -> None:
        self._left = LINGER_BYTES
        # Not `close`, which waits until the client has taken the answer.
        self._end = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self.all_lingering.add(self)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
