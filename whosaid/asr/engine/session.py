"""A client of the engine: requests with the same options, and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, Self

from whosaid.asr.engine.request import DEFAULT_ROWS, DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.transcript import DecodeStats


class SessionEngine(Protocol):
    """The methods of `asr.engine.engine.Engine` that a session calls."""

    def add(self, session: Session, requests: Sequence[Request]) -> None: ...

    def step(self) -> int: ...

    def cancel(self, session: Session) -> None: ...


class Session:
    """Requests with the same options; open one session per recording. At most `most_rows` of them
    occupy rows at once. After an `error` the session's remaining requests are lost.
    """

    def __init__(
        self, engine: SessionEngine, options: DecodeOptions, default_rows: int = DEFAULT_ROWS
    ) -> None:
        self.options = options
        self.most_rows = options.batch_size or default_rows
        self.stats = DecodeStats()
        self.finished: deque[tuple[Request, DecodeResult]] = deque()
        self.error: Exception | None = None
        self.served = 0  # serial number of its latest row; the smaller, the longer it waits
        self._engine = engine
        self._outstanding = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def done(self) -> bool:
        return self._outstanding == 0

    @property
    def ready(self) -> bool:
        """Return whether `take` returns results or raises now."""
        return bool(self.finished) or self.error is not None

    @property
    def free_rows(self) -> int:
        return max(0, self.most_rows - self._outstanding)

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises ValueError, and queues none, if a prefix does not suit."""
        if requests:
            self._engine.add(self, requests)
            self._outstanding += len(requests)

    def step(self) -> list[tuple[Request, DecodeResult]]:
        """Run one step of the engine unless results are ready, then `take`."""
        if self.done:
            return []
        if not self.ready:
            self._engine.step()
        return self.take()

    def take(self) -> list[tuple[Request, DecodeResult]]:
        """Return newly finished requests. Raises OutOfMemory, and errors of the models."""
        if self.error is not None:
            raise self.error
        finished = list(self.finished)
        self.finished.clear()
        self._outstanding -= len(finished)
        return finished

    def close(self) -> None:
        """Drop all requests that were not returned."""
        if not self.done:
            self._engine.cancel(self)
        self.finished.clear()
        self._outstanding = 0
