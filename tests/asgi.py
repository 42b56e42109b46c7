"""A client without a network: it speaks ASGI with an app, part by part, and may leave at any time;
and an endpoint that answers when a test says so.
"""

from __future__ import annotations

import asyncio
import functools
import json
from dataclasses import dataclass, field
from types import SimpleNamespace

from pydantic import SecretStr
from recogniser_stand_ins import resident

from config import InferenceConfig, WrongParameter
from whosaid.answer.response import Answer
from whosaid.asr import EngineCounts, Progress, TranscriptionOptions
from whosaid.audio.decode import AudioLimits
from whosaid.endpoint import Decoded, Endpoint, Finished
from whosaid.errors import InvalidParameter
from whosaid.request import TranscriptionRequest, Upload
from whosaid.server.app import create_app
from whosaid.server.settings import ServerSettings
from whosaid.transcript import DecodeStats, Transcript

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
    comes until `gone` is set. A client that reads "Connection: close" sends no more.
    """

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


def client(app, method="POST", path="/", headers=None, parts=(b"",), ends=True, query=b""):
    """A client of this machine whose headers announce nothing that `headers` do not."""
    given = {"host": "localhost", **(headers or {})}
    return Client(
        app,
        parts,
        ends,
        type="http",
        method=method,
        path=path,
        raw_path=path.encode(),
        root_path="",
        query_string=query,
        headers=[(name.lower().encode(), str(value).encode()) for name, value in given.items()],
        http_version="1.1",
        scheme="http",
        server=("test", 80),
        client=("test", 1),
        state={},
    )


def asynchronous(test):
    """Run a test that is a coroutine function."""

    @functools.wraps(test)
    def run(*arguments, **options):
        asyncio.run(test(*arguments, **options))

    return run


async def call(app, *arguments, **options) -> Reply:
    return await client(app, *arguments, **options).run()


JSON = {"content-type": "application/json", "content-length": "1"}
HELLO = (b'{"inputs": "AAAA"}',)


class FakeTokenizer:
    """Every token is a letter."""

    def convert_ids_to_tokens(self, ids):
        return [chr(each) for each in ids]


class FakeRecogniser:
    """Says what the metrics ask for."""

    transcriber = SimpleNamespace(
        models=SimpleNamespace(name="org/whisper", tokenizer=FakeTokenizer()),
        engine=SimpleNamespace(scheduler=SimpleNamespace(running=2, waiting=3)),
    )
    counts = EngineCounts(7, 9, 5, decoded=DecodeStats(tokens=11, drafted=6, accepted=4, retries=1))

    def __init__(self) -> None:
        self.alive = True


class FakeEndpoint(Endpoint):
    """Answers when `release` is set: with `error`, or with an empty transcript. Audio is decoded
    unless `decode` was cleared.
    """

    held_audio_bytes = 4

    def __init__(self) -> None:
        self._models = resident(FakeRecogniser())
        self.counts = self.recogniser.counts
        self.limits = AudioLimits(7200, MAX_AUDIO_BYTES)
        self.outstanding, self.freed = 0, 0
        self.release, self.began = asyncio.Event(), asyncio.Event()
        self.decode = asyncio.Event()
        self.decode.set()
        self.error: Exception | None = None
        self.seen: list[TranscriptionRequest] = []

    def parse(self, data, as_text=False) -> TranscriptionRequest:
        try:
            config = InferenceConfig.read(data.get("parameters") or {}, as_text=as_text)
        except WrongParameter as error:
            raise InvalidParameter(error.reason, error.param) from error
        return self.request_of(data["inputs"], config)

    def request_of(self, inputs, config, warnings=()) -> TranscriptionRequest:
        return TranscriptionRequest(
            Upload(inputs), config, TranscriptionOptions(), warnings=warnings
        )

    async def stream(self, request):
        self.seen.append(request)
        self.outstanding += 1
        try:
            await self.decode.wait()
            request.upload.take()
            yield Decoded(1.5)
            self.began.set()
            yield Progress(0.5, 1.5, ())
            await self.release.wait()
            if self.error:
                raise self.error
            yield Finished(Answer(1.5, Transcript((), "en")))
        finally:
            self.outstanding -= 1
            self.freed += 1


def served(**settings):
    """An endpoint, and the app that serves it."""
    endpoint = FakeEndpoint()
    key = settings.pop("api_key", None)
    store = settings.pop("store", None)
    wanted = ServerSettings(
        page=False, max_queue=settings.pop("max_queue", 2), api_key=key and SecretStr(key)
    ).model_copy(update=settings)
    return endpoint, create_app(endpoint, wanted, store=store)
