"""Answers requests of many clients with one set of models.

The one decision: whatever computes runs in few threads of its own, and the event loop only waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from handler import EndpointHandler, TranscriptionRequest, endpoint_errors
from response import Answer
from transcript import Chunk


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio was read: it is `duration` seconds long."""

    duration: float


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` seconds of speech are transcribed, and `chunks` are new and final.

    The chunks of all events of a request, joined, are those of its transcript, in order of time,
    before their words are given to speakers.
    """

    done: float
    total: float
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request."""

    answer: Answer


Event = Decoded | Progress | Finished


class Service:
    """Runs requests; submitted on the event loop, computed in threads."""

    def __init__(self, handler: EndpointHandler) -> None:
        self.handler = handler
        self._pool = ThreadPoolExecutor(1, "engine")
        self.outstanding = 0  # accepted requests that are not answered

    @property
    def alive(self) -> bool:
        """Whether requests are still computed."""
        return True

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """The answer to a request. Raises EndpointError; cancelling the task frees its rows."""
        async for event in self.stream(request):
            if isinstance(event, Finished):
                return event.answer
        raise AssertionError("a request ends with its answer")

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event, None]:
        """What becomes of a request: Decoded, any number of Progress, and Finished.

        Raises EndpointError; closing the iterator frees its rows.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def tell(event: Event | None) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        self.outstanding += 1
        try:
            running: Future[None] = self._pool.submit(self._run, request, tell)
            running.add_done_callback(lambda _: tell(None))
            while (event := await events.get()) is not None:
                yield event
            running.result()
        finally:
            self.outstanding -= 1

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, request: TranscriptionRequest, tell: Callable[[Event], None]) -> None:
        with endpoint_errors():
            audio = self.handler.decode(request)
            tell(Decoded(audio.duration))
            transcript, diarization = self.handler.recognise_and_diarize(audio, request)
            tell(Progress(audio.duration, audio.duration, transcript.chunks))
            tell(Finished(self.handler.answer(request, audio, transcript, diarization)))
