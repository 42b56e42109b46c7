"""A client of the engine: requests go in, results come out as they finish.

    with engine.session(DecodeOptions(batch_size=8)) as session:
        session.add(requests)
        while not session.done:
            for request, result in session.step():
                ...

The one decision: a step advances the rows of all sessions, whoever calls it, and nothing is locked
between two steps. So sessions of many threads share the rows, a result never waits for another
session's requests, and the caller may use the engine (to detect a language, say) inside its loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Requests
from types import TracebackType
from typing import Protocol, Self

from asr.engine.request import DecodeOptions, DecodeResult, Request
from transcript import DecodeStats


class Engine(Protocol):
    """What a session needs of its engine; every call takes the engine's lock for itself."""

    def add(self, session: Session, requests: Requests[Request]) -> None:
        """Queue requests of a session."""

    def step(self, session: Session) -> None:
        """Run one step unless the session has results already."""

    def cancel(self, session: Session) -> None:
        """Drop what a session still has queued or running."""


class Session:
    """Requests decoded with the same options. For one thread; open as many as there are clients."""

    def __init__(self, engine: Engine, options: DecodeOptions) -> None:
        self.options = options
        self.stats = DecodeStats()
        self._engine = engine
        self._outstanding = 0
        self._finished: deque[tuple[Request, DecodeResult]] = deque()
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def done(self) -> bool:
        """Whether every request was returned."""
        return self._outstanding == 0

    @property
    def free_rows(self) -> int:
        """How many more requests can be decoded beside those that were added."""
        return max(0, self.options.batch_size - self._outstanding)

    @property
    def has_results(self) -> bool:
        """Whether `step` returns without running one: results are there, or an error is."""
        return bool(self._finished) or self._error is not None

    def add(self, requests: Requests[Request]) -> None:
        """Queue requests. Any number: those beyond `batch_size` rows wait for the first to end."""
        if requests:
            self._outstanding += len(requests)
            self._engine.add(self, requests)

    def step(self) -> list[tuple[Request, DecodeResult]]:
        """Run one step, unless there are results already, and `take` them."""
        if self.done:
            return []
        self._engine.step(self)
        return self.take()

    def take(self) -> list[tuple[Request, DecodeResult]]:
        """The requests that finished since the last call, maybe none.

        Raises OutOfMemory where not even one window fits into the device's memory, and whatever the
        models raise; the session's other requests are lost then.
        """
        if self._error is not None:
            raise self._error
        finished = list(self._finished)
        self._finished.clear()
        self._outstanding -= len(finished)
        return finished

    def close(self) -> None:
        """Drop what was added and has not been returned."""
        if not self.done:
            self._engine.cancel(self)
        self._finished.clear()
        self._outstanding = 0

    def finish(self, request: Request, result: DecodeResult) -> None:
        """Called by the engine: a request is done."""
        self._finished.append((request, result))

    def fail(self, error: Exception) -> None:
        """Called by the engine: the requests were lost."""
        self._error = error
