"""A live session without models or network: a driver with scripted events, and a client that speaks
ASGI with an app."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from pydantic import SecretStr

from tests.helpers.asgi import FakeEndpoint, scope
from tests.helpers.recogniser_stand_ins import CAN_DIARIZE
from whosaid.live import events
from whosaid.live.session import EmptyBuffer
from whosaid.live.settings import AudioFormat, LiveSettings
from whosaid.server.app import create_app
from whosaid.server.settings import ServerSettings
from whosaid.transcript import Chunk, Transcript, Word


class FakeDriver:
    """Gives the number of appended bytes as each item's text. It fails with `error`, waits before
    each append for `free`, and when it finishes for `done`."""

    def __init__(self, send) -> None:
        self.send = send
        self.calls: list[object] = []
        self.items, self.held, self.last = 0, 0, None
        self.settings, self.format = LiveSettings(), AudioFormat.PCM_24000
        self.error: Exception | None = None
        self.free, self.done = asyncio.Event(), asyncio.Event()
        self.free.set()
        self.done.set()
        self.closed = 0
        self.slowed = 0.0

    def _called(self, *what: object) -> None:
        self.calls.append(what if len(what) > 1 else what[0])
        if self.error:
            raise self.error

    async def append(self, data: bytes) -> None:
        self._called("append", data)
        await self.free.wait()
        self.held += len(data)

    async def commit(self) -> None:
        self._called("commit")
        if not self.held:
            raise EmptyBuffer("there is no audio")
        await self.send(self._item())

    async def clear(self) -> None:
        self._called("clear")
        self.held = 0
        await self.send([events.Cleared()])

    async def change(self, settings: LiveSettings, audio_format: AudioFormat) -> None:
        self._called("change", settings, audio_format)
        self.settings, self.format = settings, audio_format

    async def finish(self) -> None:
        self._called("finish")
        await self.done.wait()
        if self.held:
            await self.send(self._item())

    async def close(self) -> None:
        self.closed += 1

    def _item(self) -> list[events.LiveEvent]:
        self.items += 1
        item, previous, self.last = f"item_{self.items}", self.last, f"item_{self.items}"
        text, self.held = f"{self.held} bytes", 0
        word = Word(text, 0.0, 0.5, probability=0.75)
        chunk = Chunk(text, 0.0, 0.5, words=(word,), tokens=(65, 66), log_probs=(-0.5, -0.25))
        transcript = Transcript((chunk,), "en", ("cut short",))
        return [
            events.Committed(item, previous),
            events.ItemAdded(item, previous),
            events.Delta(item, text, (65, 66), (-0.5, -0.25), (word,)),
            events.Words(item, (word,), " and"),
            events.SegmentEvent(item, "seg_1", text, "A", 0.0, 0.5),
            events.Completed(item, transcript, text, 0.5),
            events.ItemDone(item, previous),
        ]


class Drivers:
    """Opens drivers and keeps them; `each` is done with a new one."""

    def __init__(self, each: Callable[[FakeDriver], None] = lambda driver: None) -> None:
        self.opened: list[FakeDriver] = []
        self.each = each

    def __call__(self, send) -> FakeDriver:
        driver = FakeDriver(send)
        self.each(driver)
        self.opened.append(driver)
        return driver


def live(drivers: Drivers, **settings):
    key = settings.pop("api_key", None)
    wanted = ServerSettings(page=False, api_key=key and SecretStr(key))
    endpoint = FakeEndpoint()
    endpoint.models.diarizer = settings.pop("diarizer", CAN_DIARIZE)
    return create_app(endpoint, wanted.model_copy(update=settings), drivers)


class Socket:
    """One WebSocket to `app`; messages to it wait for `takes`."""

    def __init__(self, app, headers=None, query="intent=transcription", protocols=()) -> None:
        offers = {"subprotocols": [*protocols], "extensions": {"websocket.http.response": {}}}
        path, asked = "/v1/realtime", query.encode()
        self.scope = scope("websocket", path, headers, asked, scheme="ws", **offers)
        self._app, self._coming, self._came = app, asyncio.Queue(), asyncio.Queue()
        self.takes = asyncio.Event()
        self.takes.set()
        self.accepted: dict | None = None
        self.status, self.headers, self.body = 0, {}, b""
        self.closed: int | None = None
        self.received = 0

    async def __aenter__(self) -> Socket:
        self._coming.put_nowait({"type": "websocket.connect"})
        self.running = asyncio.ensure_future(self._app(self.scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_) -> None:
        self.takes.set()
        self.leave()
        await asyncio.wait_for(self.running, 60)

    async def _receive(self) -> dict:
        message = await self._coming.get()
        self.received += 1
        return message

    async def _send(self, message: dict) -> None:
        await self.takes.wait()
        kind = message["type"]
        if kind == "websocket.accept":
            self.status, self.accepted = 101, message
        elif kind == "websocket.close":
            self.closed = message["code"]
            self._came.put_nowait({"type": "closed"})
        elif kind == "websocket.http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): each.decode() for name, each in message["headers"]}
        elif kind == "websocket.http.response.body":
            self.body += message["body"]
        else:
            self._came.put_nowait(json.loads(message["text"]))

    def send(self, kind: str | None = None, **fields) -> None:
        self.send_text(json.dumps({"type": kind, **fields} if kind else fields))

    def send_text(self, text: str) -> None:
        self._coming.put_nowait({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._coming.put_nowait({"type": "websocket.receive", "bytes": data})

    def leave(self, status: int = 1001) -> None:
        self._coming.put_nowait({"type": "websocket.disconnect", "code": status})

    async def read(self) -> dict:
        """Return the next event, or that the socket was closed."""
        return await asyncio.wait_for(self._came.get(), 60)

    async def read_until(self, kind: str) -> list[dict]:
        found = [await self.read()]
        while found[-1]["type"] != kind:
            found.append(await self.read())
        return found

    async def refused(self) -> dict:
        await asyncio.wait_for(self.running, 60)
        return json.loads(self.body)["error"]


def error_of(event: dict) -> tuple[str, str | None, str | None]:
    assert event["type"] == "error", event
    told = event["error"]
    return told["code"], told["param"], told["event_id"]
