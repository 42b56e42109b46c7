"""`Idempotency-Key`: a repeated request gets the answer of the first, which goes on without its
client (IETF draft-ietf-httpapi-idempotency-key-header).

Answers are kept in memory, errors and streams are not. Jobs keep theirs on the disk
(`server.jobs.store`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whosaid.server.admission import announced
from whosaid.server.clock import now
from whosaid.server.errors import Kind, Refusal
from whosaid.server.keys import Principal

HEADER = "idempotency-key"
REPLAYED = (b"idempotent-replayed", b"true")
LONGEST_KEY = 255
# Of kept answers: seconds, number and bytes.
KEPT_S, MOST, MOST_BYTES = 86_400.0, 1000, 64 * 2**20


def key_of(headers: Headers) -> str | None:
    """Return the request's key; None if it has none. Raises Refusal."""
    key = headers.get(HEADER)
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        text = f"Idempotency-Key has 1 to {LONGEST_KEY} characters"
        raise Refusal(Kind.INVALID_REQUEST, text)
    return key


def reused() -> Refusal:
    text = "another request had this Idempotency-Key: use a new key for each recording"
    return Refusal(Kind.IDEMPOTENCY_KEY_REUSED, text)


def failed() -> Refusal:
    text = "the first request with this Idempotency-Key failed: send it again"
    return Refusal(Kind.BUSY, text, retry_after=1)


class BodyDigest:
    """Digests a received body without its form's boundary, which is new in each attempt."""

    def __init__(self, receive: Receive, media_type: str) -> None:
        self._boundary = parse_options_header(media_type)[1].get(b"boundary", b"")
        self._receive, self.digest, self._tail = receive, sha256(), b""

    async def receive(self) -> Message:
        message = await self._receive()
        data = (self._tail + message.get("body", b"")).replace(self._boundary, b"")
        rest = len(self._boundary) if message.get("more_body") else 0
        self.digest.update(data[: max(0, len(data) - rest)])
        self._tail = data[max(0, len(data) - rest) :]
        return message

    async def whole(self) -> bytes:
        """Receive the rest of the body; return the digest of all."""
        while (await self.receive()).get("more_body", False):
            pass
        return self.digest.digest()


@dataclass
class KeptAnswer:
    """An answer's messages, once `task` is done; its `request`; the digest of the body. It runs
    `alone` without its client.
    """

    request: tuple[object, ...]
    body: bytes = b""
    task: asyncio.Task[None] | None = None
    messages: list[Message] = field(default_factory=list)
    since: float = 0.0
    alone: bool = False

    @property
    def size(self) -> int:
        return sum(len(message.get("body", b"")) for message in self.messages)


class IdempotentAnswers:
    """Runs requests with keys once, without their client at most `deadline` seconds."""

    def __init__(self, app: ASGIApp, deadline: float) -> None:
        self._app, self._deadline = app, deadline
        self._kept: dict[bytes, KeptAnswer] = {}  # the oldest first

    @contextmanager
    def rejoining(self, principal: Principal, key: str) -> Iterator[bool]:
        """Yield whether a request with the key runs without its client. For the block, the client
        that repeats it waits in that request's place, and so needs none of its own.
        """
        kept = self._kept.get(_digest(principal, key))
        if kept is None or kept.messages or not kept.alone:
            yield False
            return
        kept.alone = False
        try:
            yield True
        finally:
            kept.alone = True

    async def answer(
        self, principal: Principal, key: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request; raise Refusal if its key belongs to another."""
        self._expire()
        digest, headers = _digest(principal, key), Headers(scope=scope)
        has_place = "permit" in scope["state"]
        body = BodyDigest(receive, headers.get("content-type", ""))
        asked = scope["path"], scope["query_string"], headers.get("accept"), announced(headers)
        if (kept := self._kept.get(digest)) is None:
            if not has_place:
                raise failed()
            kept = self._kept[digest] = KeptAnswer(asked, since=now())
            kept.task = asyncio.create_task(self._run(digest, kept, scope, body, send))
            try:
                await asyncio.shield(kept.task)
            except asyncio.CancelledError:  # it goes on without its client, in its place
                held = scope["state"]["held"].pop_all()
                kept.task.add_done_callback(partial(_ended_alone, held))
                kept.alone = True
                raise
            replayed: tuple[tuple[bytes, bytes], ...] = ()
        else:
            if kept.request != asked:
                raise reused()
            assert kept.task is not None
            # Only once its body is read, it is noticed if the client leaves.
            own = b"" if has_place else await body.whole()
            await asyncio.wait({kept.task})
            replayed = (REPLAYED,)
            if not kept.messages:  # it failed: this request is the first again
                if not has_place:
                    raise failed()
                await self.answer(principal, key, scope, receive, send)
                return
            if (own or await body.whole()) != kept.body:
                raise reused()
        for message in kept.messages:
            if "headers" in message:
                message = {**message, "headers": [*message["headers"], *replayed]}
            await send(message)

    async def _run(
        self, digest: bytes, kept: KeptAnswer, scope: Scope, body: BodyDigest, send: Send
    ) -> None:
        messages: list[Message] = []
        streams = False

        async def record(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                media_type = Headers(raw=message["headers"]).get("content-type", "")
                streams = media_type.startswith("text/event-stream")
            if streams:
                await send(message)
            else:
                messages.append(message)

        try:
            async with asyncio.timeout(self._deadline):
                await self._app(scope, body.receive, record)
            kept.messages, kept.body = messages, body.digest.digest()
        finally:
            status = messages[0]["status"] if messages else None
            if status != 200 or not kept.messages:
                self._kept.pop(digest, None)

    def _expire(self) -> None:
        """Drop old answers, and the oldest if there are too many; running requests stay."""
        size = sum(kept.size for kept in self._kept.values())
        for digest, kept in list(self._kept.items()):
            old = now() - kept.since > KEPT_S
            if kept.messages and (old or size > MOST_BYTES or len(self._kept) > MOST):
                size -= kept.size
                del self._kept[digest]


def _digest(principal: Principal, key: str) -> bytes:
    return sha256(principal.owner + key.encode()).digest()


def _ended_alone(held: ExitStack, task: asyncio.Task[None]) -> None:
    held.close()
    if not task.cancelled():
        task.exception()  # nobody is left to be told
