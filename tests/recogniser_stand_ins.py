"""A transcriber for `asr.Recogniser` without a model: what it says is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from asr import Limits, TranscriptionOptions
from asr.engine.scheduler import Scheduler
from asr.model.cpu_threads import CpuThreads
from transcript import DecodeStats, Transcript


class StandInEngine:
    """Counts its steps; `before` is called with their number and whether somebody has come."""

    def __init__(
        self,
        before: Callable[[int, bool], None] = lambda *_: None,
        hold_seconds: float = Limits.hold_seconds,
        rows: int = 2,
    ) -> None:
        self.steps, self.before, self.rows = 0, before, rows
        self.threads = CpuThreads(1)
        self.scheduler = Scheduler(Limits(hold_seconds=hold_seconds))

    def step(self, newcomers: bool = False, live: bool = False) -> int:
        self.before(self.steps, newcomers)
        self.steps += 1
        return self.rows


class StandInSession:
    stats = DecodeStats(tokens=10, drafted=4, accepted=3, retries=1)


class StandInTranscription:
    """Its only step calls `say`."""

    session, windows_left, windows_read, seconds, live = None, 1, 0, (0.0, 0.0), False

    def __init__(self, say: Callable[[], Transcript]) -> None:
        self.say, self.result, self.closed = say, None, 0

    def step(self) -> bool:
        self.result = self.say()
        return True

    def take_chunks(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        self.closed += 1


class StandInTranscriber:
    """Says what it was made with, or raises it, and remembers what it was asked."""

    def __init__(self, answer: Transcript | Exception, engine: StandInEngine | None = None) -> None:
        self.answer, self.engine = answer, engine or StandInEngine()
        self.asked: list[TranscriptionOptions] = []

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        return options

    def find_speech(self, samples: np.ndarray) -> tuple[tuple[float, float], ...]:
        return ((0.0, len(samples) / 16_000),)

    def starting_steps(
        self, samples: np.ndarray, options: TranscriptionOptions, draft: tuple[int, ...] = ()
    ) -> Iterator[StandInTranscription]:
        self.asked.append(options)
        yield
        return StandInTranscription(self.say)

    def say(self) -> Transcript:
        """Called in the thread that computes."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
