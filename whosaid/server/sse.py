"""Server-sent events: format, keep-alive and close, and the events of the native routes.

One task reads a request's events from first to last. Pings are sent beside that task. If the client
disconnects, the task ends, which frees the request's rows.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from config import InferenceConfig
from whosaid.answer.response import chunks_json, clamp_times, response
from whosaid.asr import Transcribed
from whosaid.endpoint import Decoded, Diarized, Event, Finished
from whosaid.errors import EndpointError
from whosaid.runtime.errors import endpoint_errors
from whosaid.server.error_response import error_event
from whosaid.transcript import Chunk

PING = b": ping\n\n"
PING_SECONDS = 15.0  # nginx closes a connection that is silent for 60 s
# Without the second header nginx holds events back until a buffer is full.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Events = AsyncGenerator[Event, None]
Messages = AsyncGenerator[Mapping[str, Any], None]
Parts = AsyncGenerator[bytes, None]


class EventStream(StreamingResponse):
    """Sends `messages` as they come, and a comment after PING_SECONDS without a message.

    Closes `messages` and their source, `events`, when the client disconnects.
    """

    def __init__(self, events: Events, messages: Messages) -> None:
        parts = with_pings(encode_all(messages), PING_SECONDS)
        self._closed_at_the_end = (parts, events)
        super().__init__(parts, headers=HEADERS, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for each in self._closed_at_the_end:
                await each.aclose()


async def wait_for_audio(events: Events) -> Decoded:
    """Return the first event. An error before it can set the HTTP status, and closes `events`."""
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    assert isinstance(first, Decoded), "a request begins with its audio"
    return first


async def native_messages(decoded: Decoded, events: Events, config: InferenceConfig) -> Messages:
    """Yield the native routes' messages for a request's events: its chunks, then the answer."""
    duration = round(decoded.duration, 2)
    yield {"type": "decoded", "duration": duration}
    before: dict[int | None, Chunk] = {}  # the last chunk of each channel
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Transcribed):
                last = [*before.values()]
                if decoded.estimated:
                    duration = max([duration, *(chunk.end for chunk in event.chunks)])
                chunks = clamp_times([*last, *event.chunks], duration)[len(last) :]
                before |= {chunk.channel: chunk for chunk in chunks}
                yield {
                    "type": "progress",
                    "done": round(event.done, 2),
                    "total": round(event.total, 2),
                    "chunks": chunks_json(chunks, config),
                }
            elif isinstance(event, Diarized):
                yield {"type": "speakers", "share": round(event.share, 2)}
            elif isinstance(event, Finished):
                answer = await asyncio.to_thread(response, event.answer, config)
                yield {"type": "answer", "answer": answer}


async def encode_all(messages: Messages) -> Parts:
    """Yield the messages as events, and an error event if they fail after the headers."""
    try:
        async with aclosing(messages):
            with endpoint_errors():
                async for message in messages:
                    yield await asyncio.to_thread(encode, message)
    except EndpointError as error:
        yield error_event(error)


def encode(message: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(message, inf_nan_mode="null") + b"\n\n"


async def with_pings(parts: Parts, seconds: float) -> Parts:
    """Yield the parts, and a comment after `seconds` without a part. Raises errors of `parts`."""
    read: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def read_all() -> None:
        try:
            async with aclosing(parts):
                async for part in parts:
                    read.put_nowait(part)
        finally:
            read.put_nowait(None)

    reader = asyncio.create_task(read_all())
    try:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    part = await read.get()
            except TimeoutError:
                yield PING
                continue
            if part is None:
                break
            yield part
        await reader
    finally:
        reader.cancel()
        await asyncio.wait({reader})
