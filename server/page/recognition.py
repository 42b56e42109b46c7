"""One recording through the service, as the page follows it.

The one decision: a page that nobody looks at any more is noticed between two events, because Gradio
ends a generator only where it yields. So a tick comes every second, whether anything happened or
not, and a closed tab frees its rows within it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import InvalidRequest
from handler import TranscriptionRequest
from server.errors import DeadlineExceeded
from server.service import Event, Service

TICK = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing new happened for a second."""


async def recording_bytes(recording: str | None) -> int:
    """How many bytes an uploaded file has; 0 where there is none, which `read_request` refuses."""
    try:
        return (await asyncio.to_thread(os.stat, recording)).st_size if recording else 0
    except OSError:
        return 0


async def read_request(
    service: Service, recording: str | None, parameters: dict[str, Any]
) -> TranscriptionRequest:
    """The request for an uploaded file. Raises ClientError."""
    if not recording:
        raise InvalidRequest("choose or record something first")
    try:
        data = await asyncio.to_thread(Path(recording).read_bytes)
    except OSError as error:
        raise InvalidRequest("the recording is no longer here: choose it again") from error
    return service.handler.parse({"inputs": data, "parameters": parameters})


async def follow(
    service: Service, request: TranscriptionRequest, seconds: float
) -> AsyncGenerator[Event | Tick]:
    """The events of a request, and ticks between them.

    Raises EndpointError: the request's own, and DeadlineExceeded after `seconds`. Closing the
    iterator frees the request's rows.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    async with aclosing(_with_ticks(service.stream(request))) as events:
        async for event in events:
            yield event
            if now() > deadline:
                raise DeadlineExceeded(f"not answered within {seconds:g} s")


async def _with_ticks(events: AsyncGenerator[Event]) -> AsyncGenerator[Event | Tick]:
    """`events`, and a tick after every second without one."""
    following = asyncio.ensure_future(anext(events))
    try:
        while True:
            await asyncio.wait({following}, timeout=TICK)
            if not following.done():
                yield Tick()
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            yield event
            following = asyncio.ensure_future(anext(events))
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await following
        await events.aclose()
