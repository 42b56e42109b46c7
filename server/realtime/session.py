"""One client's session, from its first event to the close of its socket.

Two tasks talk through the driver: this one reads events and hands audio on, and the driver sends
what was heard. Nothing is queued between them and the socket. While the client does not take what
is sent the driver waits, and decodes nothing more for it; while the driver has enough, or the
client is too far ahead of real time, nothing is read, and the client's own sending stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from endpoint import Endpoint
from errors import EndpointError
from live.events import LiveEvent
from live.settings import AudioFormat, LiveSettings
from server.error_response import translated
from server.openai_api.models import model_id
from server.realtime.client_events import (
    Audio,
    Clear,
    ClientEvent,
    Commit,
    event_id,
    read_bytes,
    read_event,
    read_object,
)
from server.realtime.errors import SessionEnding, SessionExpired, SessionIdle
from server.realtime.pace import Ahead
from server.realtime.places import GOING_AWAY, INTERNAL_ERROR, NORMAL, Ending, LivePlace
from server.realtime.server_events import Message, Told, error_event, named, new_id
from server.realtime.session_config import SessionConfig, below, merged
from server.settings import ServerSettings

# A client that takes nothing of what is sent for so long is gone.
STALLED_S = 60.0
# Audio is handed on in pieces, so that others' is heard between them.
PIECE_SECONDS = 8
# Longer messages are read in a thread of their own.
LONG = 2**16

SendEvents = Callable[[list[LiveEvent]], Awaitable[None]]


class Driver(Protocol):
    """What turns a session's audio into events: `live.driver.LiveDriver`.

    It begins with the default settings. Every call may raise EndpointError, but for `close`.
    """

    @property
    def slowed(self) -> float:
        """How many times as long as it asked for the client waits for new words now."""

    async def append(self, data: bytes) -> None:
        """Hear more audio; returns when still more may come."""

    async def commit(self) -> None:
        """The current item ends."""

    async def clear(self) -> None:
        """Forget the audio that is not committed."""

    async def change(self, settings: LiveSettings, audio_format: AudioFormat) -> None:
        """Hear what comes next otherwise."""

    async def finish(self) -> None:
        """No more audio comes; returns when every item is completed and told."""

    async def close(self) -> None:
        """Forget all that is under way, and free its rows."""


OpenDriver = Callable[[SendEvents], Driver]


class RealtimeSession:
    """A session on an accepted `socket`, that begins as `config`, with a driver of its own."""

    def __init__(
        self,
        socket: WebSocket,
        place: LivePlace,
        config: SessionConfig,
        endpoint: Endpoint,
        settings: ServerSettings,
        open_driver: OpenDriver,
    ) -> None:
        self._socket, self._place, self._endpoint = socket, place, endpoint
        self._settings, self._config = settings, config
        self._id, self._expires_at = (
            new_id("sess"),
            int(time.time() + settings.live_session_seconds),
        )
        self._told = self._tells()
        self._ahead = Ahead(settings.live_ahead_seconds)
        self._sending, self._driving = asyncio.Lock(), asyncio.Lock()
        self._gone = asyncio.get_running_loop().create_future()
        place.driver = self._driver = open_driver(self._send_events)

    async def run(self) -> None:
        """Serve the client until it or the server ends the session, then free all it had."""
        reading = asyncio.ensure_future(self._read_all())
        try:
            ends = self._settings.live_session_seconds
            await self._wait(reading, self._place.finishing, timeout=ends)
            if not self._is_over(reading):
                self._place.finish(Ending(GOING_AWAY, SessionExpired("the session is over")))
                await self._finish(reading)
            await self._close(reading)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            await self._driver.close()

    # How it ends

    def _is_over(self, reading: asyncio.Future[None]) -> bool:
        """Whether nothing can be completed any more: the client is gone, the server ends at once,
        or reading has failed.
        """
        return reading.done() or self._gone.done() or self._place.ended.done()

    async def _wait(
        self, reading: asyncio.Future[None], until: asyncio.Future[Any], timeout: float
    ) -> None:
        """Until it is over, or `until` is done, or the seconds are."""
        either: set[asyncio.Future[Any]] = {reading, self._gone, self._place.ended, until}
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self, reading: asyncio.Future[None]) -> None:
        """Complete what was heard."""
        ending = self._place.finishing.result()
        if ending.error:
            await self._send(error_event(ending.error, None))
        finishing = asyncio.ensure_future(self._complete())
        await self._wait(reading, finishing, timeout=self._settings.drain_timeout)
        finishing.cancel()
        await asyncio.wait({finishing})

    async def _complete(self) -> None:
        try:
            async with self._driving:
                await self._driver.finish()
        except Exception as error:
            self._place.end(Ending(INTERNAL_ERROR, translated(error)))

    async def _close(self, reading: asyncio.Future[None]) -> None:
        """Say how it ended to a client that is still there."""
        if reading.done() and not reading.cancelled() and (error := reading.exception()):
            self._place.end(Ending(INTERNAL_ERROR, translated(error)))
        if self._gone.done():
            return
        ending = self._place.finishing.result() if self._place.finishing.done() else Ending(NORMAL)
        if self._place.ended.done():
            ending = self._place.ended.result()
            if ending.error:
                await self._send(error_event(ending.error, None))
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(STALLED_S):
                await self._socket.close(ending.status)

    # What the client sends

    async def _read_all(self) -> None:
        """Handle what comes until the client is gone."""
        if self._config != SessionConfig():
            await self._change(self._config)
        await self._send(named("session.created", session=self._shown()))
        while True:
            await self._let_time_pass()
            try:
                message = await self._receive()
            except TimeoutError:
                idle = SessionIdle("nothing came for as long as may be")
                self._place.finish(Ending(GOING_AWAY, idle))
                continue
            if message["type"] == "websocket.disconnect":
                self._leave()
                return
            await self._handle(message)

    async def _let_time_pass(self) -> None:
        """Read nothing while the client is too far ahead, unless the session ends."""
        while (seconds := self._ahead.wait) and not self._place.finishing.done():
            await asyncio.wait({self._place.finishing}, timeout=seconds)

    async def _receive(self) -> MutableMapping[str, Any]:
        """Raises TimeoutError where nothing comes though something should."""
        if self._place.finishing.done():
            return await self._socket.receive()
        async with asyncio.timeout(self._settings.live_idle_seconds):
            return await self._socket.receive()

    async def _handle(self, message: MutableMapping[str, Any]) -> None:
        """Do what an event asks for, or tell the client what is wrong with it."""
        name: str | None = None
        text, data = message.get("text"), message.get("bytes")
        most = self._settings.max_append_bytes
        try:
            if text is None:
                event: ClientEvent = read_bytes(data or b"", most)
            elif len(text) < LONG:
                fields = read_object(text)
                name = event_id(fields)
                event = read_event(fields, most)
            else:
                fields = await asyncio.to_thread(read_object, text)
                name = event_id(fields)
                event = await asyncio.to_thread(read_event, fields, most)
            if self._place.finishing.done():
                raise SessionEnding("the session ends, and takes nothing more")
            async with self._driving:
                await self._do(event)
        except EndpointError as error:
            await self._send(error_event(error, name))

    async def _do(self, event: ClientEvent) -> None:
        if isinstance(event, Audio):
            seconds = len(event.data) / self._config.format.bytes_per_second
            self._place.audio_seconds += seconds
            self._ahead.came(seconds)
            size = PIECE_SECONDS * self._config.format.bytes_per_second
            for place in range(0, len(event.data), size):
                await self._driver.append(event.data[place : place + size])
        elif isinstance(event, Commit):
            if event.final:
                self._place.finish(Ending(NORMAL))
            else:
                await self._driver.commit()
        elif isinstance(event, Clear):
            await self._driver.clear()
        else:
            with below("session"):
                await self._change(merged(self._config, event.session, self._endpoint))
            await self._send(named("session.updated", session=self._shown()))

    async def _change(self, config: SessionConfig) -> None:
        """Hear what comes next as `config` says. Raises EndpointError."""
        await self._driver.change(config.settings, config.format)
        self._config = config
        self._told = self._tells()

    # What the client is told

    def _shown(self) -> Message:
        return self._config.shown(self._id, self._expires_at, model_id(self._endpoint))

    def _tells(self) -> Told:
        return Told(self._config.include, self._endpoint.recogniser.models.tokenizer)

    async def _send_events(self, events: list[LiveEvent]) -> None:
        await self._send(*filter(None, map(self._told.message, events)))

    async def _send(self, *messages: Message) -> None:
        """Returns when the client has taken them, but for what the socket holds, or is gone."""
        async with self._sending:
            for message in messages:
                if self._gone.done():
                    return
                try:
                    async with asyncio.timeout(STALLED_S):
                        await self._socket.send_text(to_json(message).decode())
                except (WebSocketDisconnect, RuntimeError, TimeoutError):
                    self._leave()

    def _leave(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
