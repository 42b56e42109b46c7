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
from server.places import Place
from transcription_request import TranscriptionRequest


@dataclass(frozen=True)
class Service:
    """An endpoint whose events are counted."""

    endpoint: Endpoint
    metrics: Metrics

    async def answer(self, request: TranscriptionRequest, place: Place | None) -> Answer:
        """The answer to a request. Raises EndpointError; cancelling the task frees its rows."""
        return await answer_of(self.stream(request, place))

    async def stream(
        self, request: TranscriptionRequest, place: Place | None = None
    ) -> AsyncGenerator[Event]:
        """The endpoint's events. The `place` of a request's body gives the bytes back once its
        audio is decoded; those of a body with clips stay, as the clips may be parts of it.
        """
        began = time.monotonic()
        async with aclosing(self.endpoint.stream(request)) as events:
            async for event in events:
                if isinstance(event, Decoded):
                    self.metrics.until_decoded.observe(time.monotonic() - began)
                    if place is not None and not request.config.known_speakers:
                        place.give_bytes_back()
                elif isinstance(event, Finished):
                    self.metrics.audio_seconds.inc(event.answer.duration)
                yield event
