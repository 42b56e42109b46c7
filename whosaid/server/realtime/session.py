"""One client's session, from its first event to the close of its socket.

This task reads events and passes audio to the driver; the driver's task sends the transcript. While
the client does not read, nothing is decoded for it. While the driver has enough audio, or the
client is too far ahead of real time, nothing is read from the socket.
"""

import asyncio
import math
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from whosaid.endpoint import Endpoint
from whosaid.errors import EndpointError
from whosaid.live.driver import LiveDriver, Send
from whosaid.live.events import LiveEvent
from whosaid.live.session import EmptyBuffer
from whosaid.server.error_response import translated
from whosaid.server.errors import Kind, Refusal
from whosaid.server.openai_api.form import model_id
from whosaid.server.realtime import client_events, server_events
from whosaid.server.realtime.places import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL,
    Ending,
    LivePlace,
    Stage,
)
from whosaid.server.realtime.session_config import SessionConfig, below, ignored_wishes, merged
from whosaid.server.settings import ServerSettings

# Seconds without reading after which a client counts as gone.
STALLED_S = 60.0
# Bytes of audio passed on at once, so that other sessions get their turn between pieces.
PIECE_SECONDS = 8
# Longer messages are parsed in a thread.
LONG = 2**16

OpenDriver = Callable[[Send], LiveDriver]


class Ahead:
    """Tracks how far a client is ahead of real time: at most `most` seconds of its audio may be
    unplayed, if played from its arrival. `now` returns seconds.
    """

    def __init__(self, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now = most, now
        self._played_at = -math.inf

    def came(self, seconds: float) -> None:
        self._played_at = max(self._played_at, self._now()) + seconds

    @property
    def wait(self) -> float:
        """Return the seconds until more audio may be read."""
        return max(0.0, self._played_at - self._now() - self._most)


class RealtimeSession:
    """A session on an accepted `socket`, with the place and settings of its state."""

    def __init__(
        self,
        socket: WebSocket,
        endpoint: Endpoint,
        settings: ServerSettings,
        open_driver: OpenDriver,
    ) -> None:
        self._socket, self._endpoint, self._settings = socket, endpoint, settings
        self._place: LivePlace = socket.state.place
        self._config: SessionConfig = socket.state.config
        self._id = server_events.new_id("sess")
        self._expires_at = int(time.time() + settings.live_session_seconds)
        self._ahead = Ahead(settings.live_ahead_seconds)
        self._sending, self._driving = asyncio.Lock(), asyncio.Lock()
        self._place.driver = self._driver = open_driver(self._send_events)

    async def run(self, warnings: tuple[str, ...] = ()) -> None:
        """Serve until client or server ends the session. The first event has `warnings`."""
        reading = asyncio.ensure_future(self._read_all(warnings))
        try:
            await self._place.wait_until(Stage.FINISHING, self._settings.live_session_seconds)
            expired = Refusal(Kind.session_expired, "the session is over")
            self._place.finish(Ending(GOING_AWAY, expired))
            if self._place.stage is Stage.FINISHING:
                await self._finish()
            await self._close()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            await self._driver.close()

    # The end

    async def _finish(self) -> None:
        """Complete the session's audio within a request's time limit; a drain may end earlier."""
        await self._tell_why()
        completing = asyncio.ensure_future(self._complete(self._place.ending.status))
        await self._place.wait_until(Stage.ENDED, self._settings.request_timeout)
        text = "the received audio could not be completed within the time limit"
        self._place.end(Ending(INTERNAL_ERROR, Refusal(Kind.DEADLINE_EXCEEDED, text)))
        completing.cancel()
        await asyncio.wait({completing})

    async def _complete(self, status: int) -> None:
        try:
            async with self._driving:
                await self._driver.finish()
            self._place.end(Ending(status))
        except Exception as error:
            self._place.end(Ending(INTERNAL_ERROR, translated(error)))

    async def _close(self) -> None:
        if self._place.stage is Stage.GONE:
            return
        await self._tell_why()
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(STALLED_S):
                await self._socket.close(self._place.ending.status)

    async def _tell_why(self) -> None:
        if error := self._place.ending.error:
            await self._send(server_events.error_event(error, None))

    # Events of the client

    async def _read_all(self, warnings: tuple[str, ...]) -> None:
        """Handle events until the client is gone."""
        try:
            await self._read(warnings)
        except Exception as error:
            self._place.end(Ending(INTERNAL_ERROR, translated(error)))
        else:
            self._place.leave()

    async def _read(self, warnings: tuple[str, ...]) -> None:
        if self._config != SessionConfig():
            await self._change(self._config)
        await self._send(server_events.named("session.created", **self._shown(warnings)))
        while True:
            try:
                message = await self._receive()
            except TimeoutError:
                idle = Refusal(Kind.session_idle, "no event for LIVE_IDLE_SECONDS")
                self._place.finish(Ending(GOING_AWAY, idle))
                continue
            if message["type"] == "websocket.disconnect":
                return
            # While the client is too far ahead, no other message is read.
            while (seconds := self._ahead.wait) and self._place.stage is Stage.OPEN:
                await self._place.wait_until(Stage.FINISHING, seconds)
            await self._handle(message)

    async def _receive(self) -> MutableMapping[str, Any]:
        """Receive a message. Raises TimeoutError if the client is idle for too long."""
        if self._place.stage is not Stage.OPEN:
            return await self._socket.receive()
        async with asyncio.timeout(self._ahead.wait + self._settings.live_idle_seconds):
            return await self._socket.receive()

    async def _handle(self, message: MutableMapping[str, Any]) -> None:
        name: str | None = None
        text, data = message.get("text"), message.get("bytes") or b""
        most = self._settings.max_append_bytes
        try:
            if text is None:
                client_events.check_size(len(data), most)
                event: client_events.ClientEvent = data
            elif len(text) < LONG:
                fields = client_events.read_object(text)
                name = client_events.event_id(fields)
                event = client_events.read_event(fields, most)
            else:
                fields = await asyncio.to_thread(client_events.read_object, text)
                name = client_events.event_id(fields)
                event = await asyncio.to_thread(client_events.read_event, fields, most)
            if self._place.stage is not Stage.OPEN:
                told = "the session is ending, and accepts no more events"
                raise Refusal(Kind.session_ending, told)
            async with self._driving:
                await self._do(event, name)
        except EndpointError as error:
            await self._send(server_events.error_event(error, name))

    async def _do(self, event: client_events.ClientEvent, name: str | None) -> None:
        if isinstance(event, bytes):
            seconds = len(event) / self._config.format.bytes_per_second
            self._place.audio_seconds += seconds
            self._ahead.came(seconds)
            size = PIECE_SECONDS * self._config.format.bytes_per_second
            for place in range(0, len(event), size):
                await self._driver.append(event[place : place + size])
        elif isinstance(event, client_events.Commit):
            if event.final:
                self._place.finish(Ending(NORMAL))
            else:
                await self._commit(name)
        elif isinstance(event, client_events.Clear):
            await self._driver.clear()
        else:
            with below("session"):
                await self._change(merged(self._config, event.session, self._endpoint))
            shown = self._shown(ignored_wishes(event.session, self._endpoint))
            await self._send(server_events.named("session.updated", **shown))
            if event.type == client_events.OLD_UPDATE:
                await self._send(server_events.named(f"{client_events.OLD_UPDATE}d", **shown))

    async def _commit(self, name: str | None) -> None:
        """End the item. With turn detection an empty commit gets a warning, because such clients
        sometimes commit too late and treat an error as fatal.
        """
        try:
            await self._driver.commit()
        except EmptyBuffer as error:
            if self._config.settings.turn_detection is None:
                raise
            await self._send(server_events.warning_event(error, name))

    async def _change(self, config: SessionConfig) -> None:
        await self._driver.change(config.settings, config.format)
        self._config = config

    # Events to the client

    def _shown(self, warnings: tuple[str, ...]) -> server_events.Message:
        shown = self._config.shown(self._id, self._expires_at, model_id(self._endpoint))
        return {"session": shown, **({"warnings": list(warnings)} if warnings else {})}

    async def _send_events(self, events: list[LiveEvent]) -> None:
        token_bytes = self._endpoint.transcriber.token_bytes
        encoder = server_events.EventEncoder(self._config.include, token_bytes)
        await self._send(*filter(None, map(encoder.message, events)))

    async def _send(self, *messages: server_events.Message) -> None:
        """Send the messages; return when they are in the socket's buffer, or the client is gone."""
        async with self._sending:
            for message in messages:
                if self._place.stage is Stage.GONE:
                    return
                try:
                    async with asyncio.timeout(STALLED_S):
                        await self._socket.send_text(to_json(message).decode())
                except (WebSocketDisconnect, RuntimeError, TimeoutError):
                    self._place.leave()
