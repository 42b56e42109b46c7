"""The service as the routes see it: the same, and counted.

The one decision: the service knows nothing of metrics. What one request took is read off the events
that pass by; what the engine does as a whole, the metrics ask the service when they are read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from handler import TranscriptionRequest
from server.metrics import Metrics
from server.service import Decoded, Event, Finished, Service


class MeasuredService(Service):
    """Passes everything on to another service, and counts its events."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service, self._metrics = service, metrics

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What the other service has, as it is."""
        return getattr(self._service, name)

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """The other service's events."""
        began = time.monotonic()
        async with aclosing(self._service.stream(request)) as events:
            async for event in events:
                if isinstance(event, Decoded):
                    self._metrics.until_decoded.observe(time.monotonic() - began)
                elif isinstance(event, Finished):
                    self._metrics.audio_seconds.inc(event.answer.duration)
                yield event
