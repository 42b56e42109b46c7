"""The endpoint as the routes see it: its requests are counted.

What one request took is read off the events that pass by; what the engine does as a whole, the
metrics ask the endpoint when they are read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from answer.response import Answer
from endpoint import Decoded, Endpoint, Event, Finished, answer_of
from server.metrics import Metrics
from transcription_request import TranscriptionRequest


@dataclass(frozen=True)
class Service:
    """An endpoint whose events are counted."""

    endpoint: Endpoint
    metrics: Metrics

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """The answer to a request. Raises EndpointError; cancelling the task frees its rows."""
        return await answer_of(self.stream(request))

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """The endpoint's events."""
        began = time.monotonic()
        async with aclosing(self.endpoint.stream(request)) as events:
            async for event in events:
                if isinstance(event, Decoded):
                    self.metrics.until_decoded.observe(time.monotonic() - began)
                elif isinstance(event, Finished):
                    self.metrics.audio_seconds.inc(event.answer.duration)
                yield event
