"""What is recognised for one client, in small steps.

    recognition = transcriber.start(samples, options)
    while recognition.step():  # until only a step of the engine leads on
        ...

What is done between two steps of the engine is small (a language is heard in one window, or one
window is read), and the caller says when. So one thread can drive those of many clients beside each
other, and a caller without others runs one from beginning to end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Generic, TypeVar

from asr.decoding_plan import Planner
from asr.engine.engine import DecodeEngine, Session
from transcript import Chunk

T = TypeVar("T")


class Recognition(ABC, Generic[T]):
    """A recording, or a part of one, that is being recognised; for one thread at a time.

    `planner` says how it is decoded once its languages are known. `result` is None until all is
    done, and `session` until there is one of the engine.
    """

    def __init__(self, engine: DecodeEngine, planner: Planner) -> None:
        self.result: T | None = None
        self.session: Session | None = None
        self._engine, self._planner = engine, planner
        self._steps = self._run()

    @property
    def live(self) -> bool:
        """Whether it is of somebody who is speaking now, and goes before all others."""
        return self._planner.options.decode.live

    @property
    @abstractmethod
    def seconds(self) -> tuple[float, float]:
        """How many seconds of speech are recognised, and how many there are."""

    @property
    @abstractmethod
    def windows_read(self) -> int:
        """How many windows are recognised."""

    @property
    @abstractmethod
    def windows_left(self) -> int:
        """How many windows are to be recognised, as far as is known."""

    def step(self) -> bool:
        """Do one small thing: hear a window's language, or read one that was decoded.

        False where nothing is left to do before the engine's next step. Raises OutOfMemory where
        one window does not fit into the device's memory, and whatever models and readers raise;
        nothing follows then.
        """
        return next(self._steps, False)

    def run(self) -> T:
        """Take all steps, and those of the engine that they wait for."""
        for did_something in self._steps:
            if not did_something:
                self._engine.step()
        assert self.result is not None
        return self.result

    def take_chunks(self) -> tuple[Chunk, ...]:
        """The chunks that have become final since the last call, in order of time."""
        return ()

    def close(self) -> None:
        """Free the rows; nothing follows."""
        self._steps.close()

    @abstractmethod
    def _run(self) -> Generator[bool, None, None]:
        """All steps; each says whether it did something."""
