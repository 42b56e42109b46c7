"""A client of the engine: requests go in, results come out as they finish.

    with engine.session(DecodeOptions(batch_size=8)) as session:
        session.add(requests)
        while not session.done:
            for request, result in session.step():
                ...

A step advances the rows of all sessions, whoever calls it, so a result never waits for another
session's requests, and the caller may use the engine (to detect a language, say) inside its loop.
"""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from asr.engine.request import DecodeOptions, DecodeResult, Request
from transcript import DecodeStats


@dataclass(eq=False)
class Client:
    """What the engine knows of a session: how it decodes, and what has become of its requests.

    After an `error` its other requests are lost.
    """

    options: DecodeOptions
    stats: DecodeStats = field(default_factory=DecodeStats)
    finished: deque[tuple[Request, DecodeResult]] = field(default_factory=deque)
    error: Exception | None = None


class Engine(Protocol):
    """What a session needs of its engine."""

    def add(self, client: Client, requests: abc.Sequence[Request]) -> None:
        """Queue requests of a client."""

    def step(self) -> int:
        """Run one step."""

    def cancel(self, client: Client) -> None:
        """Drop what a client still has queued or running."""


class Session:
    """Requests decoded with the same options; open as many as there are recordings."""

    def __init__(self, engine: Engine, options: DecodeOptions) -> None:
        self._engine = engine
        self._client = Client(options)
        self._outstanding = 0

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
    def options(self) -> DecodeOptions:
        """How the requests are decoded."""
        return self._client.options

    @property
    def stats(self) -> DecodeStats:
        """Steps, tokens, drafts, seconds by part."""
        return self._client.stats

    @property
    def done(self) -> bool:
        """Whether every request was returned."""
        return self._outstanding == 0

    @property
    def ready(self) -> bool:
        """Return whether `take` has something to return or to raise."""
        return bool(self._client.finished) or self._client.error is not None

    @property
    def free_rows(self) -> int:
        """How many more requests can be decoded beside those that were added."""
        return max(0, self.options.batch_size - self._outstanding)

    def add(self, requests: abc.Sequence[Request]) -> None:
        """Queue requests. Any number: those beyond `batch_size` rows wait for the first to end.

        Raises ValueError where one has a prefix that is not for these options; none is queued then.
        """
        if requests:
            self._engine.add(self._client, requests)
            self._outstanding += len(requests)

    def step(self) -> list[tuple[Request, DecodeResult]]:
        """Run one step, unless there are results already, and `take` them."""
        if self.done:
            return []
        if not self._client.finished and self._client.error is None:
            self._engine.step()
        return self.take()

    def take(self) -> list[tuple[Request, DecodeResult]]:
        """The requests that finished since the last call, maybe none.

        Raises OutOfMemory where not even one window fits into the device's memory, and whatever the
        models raise; the session's other requests are lost then.
        """
        if self._client.error is not None:
            raise self._client.error
        finished = list(self._client.finished)
        self._client.finished.clear()
        self._outstanding -= len(finished)
        return finished

    def close(self) -> None:
        """Drop what was added and has not been returned."""
        if not self.done:
            self._engine.cancel(self._client)
        self._client.finished.clear()
        self._outstanding = 0
