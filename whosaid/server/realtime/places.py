"""Limits the number of live sessions, and ends them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum

from whosaid.errors import EndpointError
from whosaid.live.driver import LiveDriver
from whosaid.server.errors import Kind, Refusal

# WebSocket's close statuses (RFC 6455, section 7.4.1): done; the server shuts down or the client
# timed out; the server failed.
NORMAL, GOING_AWAY, INTERNAL_ERROR = 1000, 1001, 1011
# Seconds after which a refused client may retry; sessions end when people stop speaking.
RETRY_AFTER_S = 10
# If a pass takes this many times the session's cadence, no new session is accepted.
MOST_SLOWED = 5.0


@dataclass(frozen=True, slots=True)
class Ending:
    """The `status` with which a session closes, and the `error` that its client gets first."""

    status: int
    error: EndpointError | None = None


class Stage(IntEnum):
    """A session's stages, which only advance. A `FINISHING` session completes its received audio
    and accepts no more. When it has `ENDED`, its client gets the status. `GONE` means that the
    client has disconnected.
    """

    OPEN = 0
    FINISHING = 1
    ENDED = 2
    GONE = 3


class LivePlace:
    """A live session for the server. Session and server advance its `stage`; `ending` comes from
    the last advance. `audio_seconds` counts its audio, and `driver` transcribes it.
    """

    driver: LiveDriver | None = None

    def __init__(self) -> None:
        self.stage, self.ending = Stage.OPEN, Ending(NORMAL)
        self.audio_seconds = 0.0
        self._reached = {stage: asyncio.Event() for stage in Stage}

    def finish(self, ending: Ending) -> None:
        """Complete the session's audio, then end with `ending`; no effect if already ending."""
        self._move(Stage.FINISHING, ending)

    def end(self, ending: Ending) -> None:
        """End at once, without completing audio; no effect if it has ended."""
        self._move(Stage.ENDED, ending)

    def leave(self) -> None:
        self._move(Stage.GONE, self.ending)

    async def wait_until(self, stage: Stage, seconds: float) -> None:
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
    """At most `most` sessions; `taken` are the places of open ones."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: set[LivePlace] = set()
        self.opened = 0  # sessions opened since the start
        self._ended_seconds = 0.0

    @property
    def audio_seconds(self) -> float:
        """Return the audio of all sessions since the start."""
        return self._ended_seconds + sum(each.audio_seconds for each in self.taken)

    def check(self) -> None:
        """Raise Refusal if there is no place, or if sessions lag behind."""
        if len(self.taken) >= self.most:
            text = f"{self.most} live sessions are open, the most allowed"
            raise Refusal(Kind.BUSY, text, retry_after=RETRY_AFTER_S)
        if any(each.driver and each.driver.slowed > MOST_SLOWED for each in self.taken):
            raise Refusal(Kind.BUSY, "live sessions already lag behind", retry_after=RETRY_AFTER_S)

    @contextmanager
    def take(self) -> Iterator[LivePlace]:
        place = LivePlace()
        self.opened += 1
        self.taken.add(place)
        try:
            yield place
        finally:
            self.taken.discard(place)
            self._ended_seconds += place.audio_seconds
