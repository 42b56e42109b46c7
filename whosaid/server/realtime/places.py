"""How many sessions there are, and how the server ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from whosaid.errors import EndpointError
from whosaid.server.errors import Kind, Refusal

if TYPE_CHECKING:
    from whosaid.live.driver import LiveDriver

# WebSocket's statuses (RFC 6455, section 7.4.1): done, the server stops or has waited too long for
# the client, and the server has failed.
NORMAL, GOING_AWAY, INTERNAL_ERROR = 1000, 1001, 1011
# After which a refused client may ask again: sessions end when people stop speaking.
RETRY_AFTER_S = 10
# Where somebody's pass takes so many times as long as they asked for nobody new is let in.
MOST_SLOWED = 5.0


@dataclass(frozen=True, slots=True)
class Ending:
    """The `status` with which a session ends, and the `error` that its client gets before."""

    status: int
    error: EndpointError | None = None


class Stage(IntEnum):
    """A session's stages, which only advance. A session that is `FINISHING` completes the audio
    that it has and takes no more. If it has `ENDED`, its client gets the status. `GONE` means that
    the client left.
    """

    OPEN = 0
    FINISHING = 1
    ENDED = 2
    GONE = 3


class LivePlace:
    """A live session as the server sees it. Session and server move its `stage`; `ending` comes
    from the last move. `audio_seconds` counts its audio, and `driver` transcribes it.
    """

    driver: LiveDriver | None = None

    def __init__(self) -> None:
        self.stage, self.ending = Stage.OPEN, Ending(NORMAL)
        self.audio_seconds = 0.0
        self._reached = {stage: asyncio.Event() for stage in Stage}

    def finish(self, ending: Ending) -> None:
        """Complete the session's audio, then end with `ending`. No effect if it ends already."""
        self._move(Stage.FINISHING, ending)

    def end(self, ending: Ending) -> None:
        """End at once, whatever is completed by now. Changes nothing if it has ended."""
        self._move(Stage.ENDED, ending)

    def leave(self) -> None:
        self._move(Stage.GONE, self.ending)

    async def wait_until(self, stage: Stage, seconds: float) -> None:
        """Wait until it is so far, or so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._reached[stage].wait()

    def _move(self, stage: Stage, ending: Ending) -> None:
        if stage <= self.stage:
            return
        self.stage, self.ending = stage, ending
        for each in Stage:
            if each <= stage:
                self._reached[each].set()


class LivePlaces:
    """At most `most` sessions."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.opened = 0  # sessions that are open, and that were
        self._ended_seconds = 0.0
        self._taken: set[LivePlace] = set()

    @property
    def taken(self) -> int:
        return len(self._taken)

    @property
    def audio_seconds(self) -> float:
        """The audio of all sessions that are open, and that were."""
        return self._ended_seconds + sum(each.audio_seconds for each in self._taken)

    def check(self) -> None:
        """Raises Busy if there is no place, or sessions lag behind."""
        if self.taken >= self.most:
            text = f"{self.most} live sessions are open, and no more may be"
            raise Refusal(Kind.BUSY, text, retry_after=RETRY_AFTER_S)
        if any(each.driver and each.driver.slowed > MOST_SLOWED for each in self._taken):
            raise Refusal(
                Kind.BUSY, "live sessions wait for their words already", retry_after=RETRY_AFTER_S
            )

    @contextmanager
    def take(self) -> Iterator[LivePlace]:
        """Yield a place until the block ends. Raises Busy as `check` does."""
        self.check()
        place = LivePlace()
        self.opened += 1
        self._taken.add(place)
        try:
            yield place
        finally:
            self._taken.discard(place)
            self._ended_seconds += place.audio_seconds

    def finish_all(self, ending: Ending) -> None:
        for place in self._taken:
            place.finish(ending)

    def end_all(self, ending: Ending) -> None:
        for place in self._taken:
            place.end(ending)
