"""A client without a network: it speaks ASGI with an app, part by part, and may leave at any time;
and an endpoint that answers when a test says so."""

import asyncio
import json
from dataclasses import dataclass, field

from pydantic import SecretStr

from tests.helpers.recogniser_stand_ins import StandInRecogniser, resident
from whosaid.answer.response import Answer
from whosaid.asr import Transcribed
from whosaid.audio.decode import AudioLimits
from whosaid.endpoint import Decoded, Endpoint, Finished
from whosaid.endpoint.request import TranscriptionRequest
from whosaid.server.app import create_app
from whosaid.server.settings import ServerSettings
from whosaid.transcript import Transcript

MAX_AUDIO_BYTES = 3000


@dataclass
class Reply:
    """The answer, and the app's requests for messages."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    parts_read: int = 0

    @property
    def json(self) -> object:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.headers.get("x-error-message", "").partition(":")[0]


class Client:
    """One request to `app`; `parts` of the body arrive as they are asked for, after which nothing
    comes until `gone` is set. A client that reads "Connection: close" sends no more."""

    def __init__(self, app, parts=(b"",), ends=True, **scope) -> None:
        self.app, self.parts, self.ends = app, list(parts), ends
        self.gone, self.started, self.reply = asyncio.Event(), asyncio.Event(), Reply()
        self.scope = scope

    async def receive(self) -> dict:
        if self.reply.parts_read < len(self.parts) and not self.gone.is_set():
            part = self.parts[self.reply.parts_read]
            self.reply.parts_read += 1
            more = self.reply.parts_read < len(self.parts) or not self.ends
            return {"type": "http.request", "body": part, "more_body": more}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        reply = self.reply
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self.started.set()
        else:
            reply.body += message.get("body", b"")
            reply.complete = not message.get("more_body", False)
            if reply.headers.get("connection") == "close":
                self.gone.set()

    async def run(self) -> Reply:
        await self.app(self.scope, self.receive, self.send)
        self.gone.set()
        return self.reply


def scope(kind, path, headers, query, **more):
    """Return the scope of a request from this machine."""
    given = {"host": "localhost"} | (headers or {})
    lines = [(name.lower().encode(), str(value).encode()) for name, value in given.items()]
    where = {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": query}
    peers = {"server": ("test", 80), "client": ("test", 1), "http_version": "1.1", "state": {}}
    return {"type": kind, "headers": lines, **where, **peers, **more}


def client(app, method="POST", path="/", headers=None, parts=(b"",), ends=True, query=b""):
    """Return a client of this machine, with only the announcements in `headers`."""
    request = scope("http", path, headers, query, method=method, scheme="http")
    return Client(app, parts, ends, **request)


async def call(app, *arguments, **options) -> Reply:
    return await client(app, *arguments, **options).run()


JSON = {"content-type": "application/json", "content-length": "1"}
HELLO = (b'{"inputs": "AAAA"}',)


class FakeEndpoint(Endpoint):
    """Answers when `release` is set: with `error`, or with an empty transcript. Audio is decoded
    unless `decode` was cleared."""

    held_audio_bytes = 4

    def __init__(self) -> None:
        self._models = resident(StandInRecogniser())
        self.counts = self.recogniser.counts
        self.limits = AudioLimits(7200, MAX_AUDIO_BYTES)
        self.outstanding, self.freed, self.load_seconds = 0, 0, {"asr": 2.5}
        self.release, self.began = asyncio.Event(), asyncio.Event()
        self.decode = asyncio.Event()
        self.decode.set()
        self.error: Exception | None = None
        self.seen: list[TranscriptionRequest] = []

    async def stream(self, request):
        self.seen.append(request)
        self.outstanding += 1
        try:
            await self.decode.wait()
            request.upload.take()
            yield Decoded(1.5)
            self.began.set()
            yield Transcribed(0.5, 1.5, ())
            await self.release.wait()
            if self.error:
                raise self.error
            yield Finished(Answer(1.5, Transcript((), "en")))
        finally:
            self.outstanding -= 1
            self.freed += 1


def served(**settings):
    endpoint = FakeEndpoint()
    key = settings.pop("api_key", None)
    store = settings.pop("store", None)
    wanted = ServerSettings(
        page=False, max_queue=settings.pop("max_queue", 2), api_key=key and SecretStr(key)
    ).model_copy(update=settings)
    return endpoint, create_app(endpoint, wanted, store=store)
