"""How much decoded audio a server holds at once: an hour takes 230 MB, whatever its file takes.

The one decision: what a file decodes to is known only once it is decoded. So audio is decoded one
recording after another, in the order of arrival, and the next one begins as long as less than the
limit is held. The limit is passed by no more than one recording, and one that is larger than the
limit needs no rule of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from audio import Audio


class AudioMemory:
    """The samples that are held, in bytes; `limit` is in bytes. Of one event loop."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0
        self._turn = asyncio.Lock()  # goes to who waits longest
        self._room = asyncio.Event()
        self._room.set()

    @asynccontextmanager
    async def decoded(self, decode: Callable[[], Awaitable[Audio]]) -> AsyncGenerator[Audio]:
        """The audio that `decode` returns, once there is room; held until the block ends."""
        async with self._turn:
            await self._room.wait()
            audio = await decode()
            self._hold(audio.samples.nbytes)
        try:
            yield audio
        finally:
            self._hold(-audio.samples.nbytes)

    def _hold(self, more: int) -> None:
        self.held += more
        if self.held < self.limit:
            self._room.set()
        else:
            self._room.clear()
