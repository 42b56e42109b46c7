"""Recognises speech for one client, in small steps.

A step between two units of the engine detects the language of one window, or reads one window. The
caller decides when to take it, so one thread drives the recognitions of many clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, TypeVar

from whosaid.asr.decoding_plan import Planner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.session import Session
from whosaid.scheduling.steps import give_way
from whosaid.transcript import Chunk

T = TypeVar("T")


class Awaited(Protocol):
    """Results of the engine, or more of a recording, for which a step waits."""

    @property
    def ready(self) -> bool: ...


class Recognition(ABC, Generic[T]):
    """Recognition of a recording, or of a part of one; for one thread at a time.

    `result` is None until everything is done, and `session` until requests go to the engine.
    """

    def __init__(self, engine: DecodeEngine, planner: Planner) -> None:
        self.result: T | None = None
        self.session: Session | None = None
        self._engine, self._planner = engine, planner
        self._steps: Coroutine[Any, Any, T] | None = None  # None before the first step
        self._awaited: Awaited | None = None

    @property
    def live(self) -> bool:
        """Return whether the speaker is speaking now; live work precedes all recordings."""
        return self._planner.options.decode.live

    @property
    def waiting(self) -> bool:
        """Return whether the next step needs results of the engine, or more of the recording."""
        return self._awaited is not None and not self._awaited.ready

    @property
    def starved(self) -> bool:
        """Return whether the next step needs more of the recording."""
        idle = self.session is None or self.session.done
        return idle and isinstance(self._awaited, Recognition) and self.waiting

    @property
    @abstractmethod
    def seconds(self) -> tuple[float, float]:
        """Return the seconds of speech that are recognised, and all seconds of speech."""

    @property
    @abstractmethod
    def windows_read(self) -> int: ...

    @property
    @abstractmethod
    def windows_left(self) -> int:
        """Return how many windows are not recognised yet, as far as is known."""

    def step(self) -> None:
        """Do one small piece of work, unless waiting. No step may follow a result or an error.
        Raises OutOfMemory if one window does not fit into the device's memory, and errors of models
        and readers.
        """
        if self._steps is None:
            self._steps = self._recognise()
        try:
            self._awaited = self._steps.send(None)
        except StopIteration as end:
            self._awaited, self.result = None, end.value

    def run(self) -> T:
        """Take all steps, and the engine's steps that they wait for."""
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
        """Return the result. Between steps, `give_way` with the Awaited, if any."""


async def finished(session: Session) -> list[tuple[Request, DecodeResult]]:
    """Wait until requests of a session have finished. Return them with their results."""
    while not (results := session.take()):
        await give_way(session)
    return results
