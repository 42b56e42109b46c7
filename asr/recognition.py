"""Speech that is recognised for one client, in small steps.

What happens between two steps of the engine is small: the language of one window is detected, or
one window is read. The caller decides when, so one thread drives the recognitions of many clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from asr.decoding_plan import Planner
from asr.engine.engine import DecodeEngine, Session
from asr.engine.request import DecodeResult, Request
from runtime.steps import Steps, give_way
from transcript import Chunk

T = TypeVar("T")


class Recognition(ABC, Generic[T]):
    """A recording, or a part of one, that is being recognised; for one thread at a time.

    `result` is None until everything is done, and `session` until requests go to the engine.
    """

    def __init__(self, engine: DecodeEngine, planner: Planner) -> None:
        self.result: T | None = None
        self.session: Session | None = None
        self._engine, self._planner = engine, planner
        self._steps: Steps[T] | None = None  # None before the first step
        self._awaited: Session | None = None

    @property
    def live(self) -> bool:
        """Return whether its speaker is speaking now: it goes before all recordings."""
        return self._planner.options.decode.live

    @property
    def waiting(self) -> bool:
        """Return whether it can do nothing before a step of the engine has results for it."""
        return self._awaited is not None and not self._awaited.ready

    @property
    @abstractmethod
    def seconds(self) -> tuple[float, float]:
        """Return how many seconds of speech are recognised, and how many there are."""

    @property
    @abstractmethod
    def windows_read(self) -> int:
        """Return how many windows are recognised."""

    @property
    @abstractmethod
    def windows_left(self) -> int:
        """Return how many windows are still to be recognised, as far as is known."""

    def step(self) -> None:
        """Do one small thing, unless it is waiting.

        No step may follow the one that sets `result`, or one that raises: OutOfMemory if one window
        does not fit into the device's memory, and whatever models and readers raise.
        """
        if self._steps is None:
            self._steps = Steps(self._recognise())
        self._awaited = self._steps.advance()
        if self._steps.done:
            self.result = self._steps.result

    def run(self) -> T:
        """Take all steps, and those of the engine that they wait for."""
        while self.result is None:
            if self.waiting:
                self._engine.step()
            else:
                self.step()
        return self.result

    def take_chunks(self) -> tuple[Chunk, ...]:
        """Return the chunks that have become final since the last call, in order of time."""
        return ()

    def close(self) -> None:
        """Free the rows; no step may follow."""
        if self._steps is not None:
            self._steps.close()

    @abstractmethod
    async def _recognise(self) -> T:
        """Return the result. Between two steps it gives way, and reports the session that it waits
        for, if any.
        """


async def finished(session: Session) -> list[tuple[Request, DecodeResult]]:
    """Wait until requests of a session have finished, and return them with their results."""
    while not (results := session.take()):
        await give_way(session)
    return results
