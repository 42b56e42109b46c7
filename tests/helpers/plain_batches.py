"""Batches of plain values for `asr.engine.engine`: rows that count their steps, on a device whose
memory is a number and whose failures are scripted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from whosaid.asr.engine.engine import Engine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS, Limits, Scheduler
from whosaid.asr.engine.sequence import DecodeSequence, Lane
from whosaid.asr.engine.session import Session

SAMPLES = np.zeros(1, np.float32)
ENCODE_SECONDS, STEP_SECONDS = 0.04, 0.03
LOST = "CUDA error: unspecified launch failure"  # as `runtime.errors` knows it


@dataclass(frozen=True)
class Script:
    """The course of a window: the steps of its first and second text, whether the first is
    rejected, and the place of its failure, if any: `entry`, `step` or `read`."""

    steps: tuple[int, int] = (1, 1)
    rejected: bool = False
    poison: str | None = None


def request_of(script: Script = Script(), long: bool = False) -> Request:
    return Request(script, SAMPLES, (1,), windows_left=9 if long else 0)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Work(NamedTuple):
    """A window that was encoded, or a step of a lane's rows, and the seconds it took."""

    what: str
    lane: Lane
    seconds: float


@dataclass
class Device:
    """Memory for so many beams of rows; a step needs `scratch` beside what is held.

    `faults` are raised once, by the next `entry` or `step` or when rows are freed (`eviction`). It
    may tell how much is free (`tells`), as CUDA does, or fail. `works` is what it has done."""

    clock: Clock = field(default_factory=Clock)
    total: int = 10_000
    scratch: int = 0
    tells: bool = False
    lost: bool = False
    told_lost: bool = False
    faults: dict[str, Exception] = field(default_factory=dict)
    batches: list[PlainBatch] = field(default_factory=list)
    failures: int = 0
    works: list[Work] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.total - sum(each.memory.held for each in self.batches)

    def spend(self, work: Work) -> None:
        self.clock.now += work.seconds
        self.works.append(work)

    def work(self, what: str, sequences: list[DecodeSequence]) -> None:
        """Do something that may fail; a lost device is asked nothing more."""
        assert not self.told_lost
        if self.lost:
            self.told_lost = True
            self.fail(RuntimeError(LOST))
        if what in self.faults:
            self.fail(self.faults.pop(what))
        if any(each.request.key.poison == what for each in sequences):
            self.fail(ValueError(what))

    def fail(self, error: Exception) -> None:
        self.failures += 1
        raise error


class PlainMemory:
    """Takes memory as `asr.engine.memory` does."""

    def __init__(self, device: Device, num_beams: int) -> None:
        self.device, self.num_beams = device, num_beams
        self.capacity = 0

    @property
    def held(self) -> int:
        return self.capacity * self.num_beams

    def lacks(self, rows: int) -> bool:
        return self.device.tells and self._fitting + self.capacity < rows

    def ensure_capacity(self, rows: int) -> int:
        if self.device.tells:
            rows = max(1, min(rows, self.capacity + self._fitting))
        if self.capacity < rows:
            if self.capacity + self._fitting < rows:
                self.device.fail(MemoryError())
            self.capacity = rows
        return self.capacity

    @property
    def _fitting(self) -> int:
        return max(0, self.device.free) // self.num_beams


class PlainBatch:
    """Rows that end after as many steps as their script says."""

    def __init__(self, device: Device, lane: Lane) -> None:
        self.device, self.lane = device, lane
        self.memory = PlainMemory(device, lane.num_beams)
        self.rows: list[DecodeSequence] = []
        self.attempted = 0
        device.batches.append(self)

    def enter(self, plan):
        live = len(self.rows)
        self.attempted = plan.rows
        entering = plan.entering[: self.memory.ensure_capacity(plan.rows) - live]
        for number, each in enumerate(entering):
            if number and self.device.clock.now >= plan.until:
                entering = entering[:number]
                break
            self.device.spend(Work("encode", self.lane, ENCODE_SECONDS))
            each.steps = 0
        self.rows += entering
        self.attempted = len(self.rows)
        if entering:
            self.device.work("entry", entering)
        return len(entering)

    def encode_ahead(self, sequences):
        """Take no time: the device encodes beside its step."""

    def step(self):
        assert len(self.rows) <= self.memory.capacity
        self.attempted = len(self.rows)
        self.device.spend(Work("step", self.lane, STEP_SECONDS))
        self.device.work("step", self.rows)
        if self.device.free < self.device.scratch:
            self.device.fail(MemoryError())
        for each in self.rows:
            each.steps += 1
        ended = [each for each in self.rows if each.steps >= each.request.key.steps[each.retried]]
        self.device.work("read", ended)
        self.rows = [each for each in self.rows if each not in ended]
        return [(each, _result(each)) for each in ended]

    def evict(self, sequences):
        self.device.work("eviction", [])
        for each in sequences:
            self.rows.remove(each)

    def clear(self):
        assert not self.device.told_lost
        self.rows = []
        self.memory.capacity = 0


def _result(sequence: DecodeSequence) -> DecodeResult:
    rejected = sequence.request.key.rejected and not sequence.retried
    return DecodeResult((1,), 0.0, (), 0.0, text_logprob=-9.0 if rejected else 0.0)


class PlainBatches(dict[Lane, PlainBatch]):
    """Makes a lane's batch when it is first asked for."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __missing__(self, lane: Lane) -> PlainBatch:
        self[lane] = PlainBatch(self.device, lane)
        return self[lane]


def engine_of(
    device: Device,
    limits: Limits = DEFAULT_LIMITS,
    scheduler: type[Scheduler] = Scheduler,
    **named: bool,
) -> Engine:
    engine = Engine(scheduler(limits, **named), PlainBatches(device))
    engine.scheduler.clock = device.clock
    return engine


def session_of(engine: Engine, requests: list[Request], **options: object) -> Session:
    session = engine.session(DecodeOptions(**options))
    session.add(requests)
    return session


def most_rows(engine: Engine, lane: Lane) -> int:
    return engine.scheduler._queues[lane].most
