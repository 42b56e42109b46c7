"""What the scheduler plans is done by batches, and what follows a failure by both.

Each lane has a batch, which is made where one is new. This knows no model and no device, so plain
values may stand in for batches.
"""

from __future__ import annotations

import logging
from collections import abc, defaultdict
from typing import TYPE_CHECKING

from asr.engine.recovery import Failure, Kind, Remedy, RowLimit, remedy
from asr.engine.request import Request
from asr.engine.scheduler import Load, Scheduler
from asr.engine.sequence import Lane, Sequence
from asr.engine.session import Client
from errors import OutOfMemory
from runtime.device_errors import is_device_lost, is_out_of_memory

if TYPE_CHECKING:
    from asr.engine.batch import Batch

logger = logging.getLogger("endpoint")

TOO_SMALL = "one window does not fit into the device's memory"


class Executor:
    """Carries out the plans of a scheduler, by `batches`, which make one where a lane is new.

    Once the device is `lost`, by that error, nothing is done any more.
    """

    def __init__(self, scheduler: Scheduler, batches: dict[Lane, Batch]) -> None:
        self.scheduler = scheduler
        self.batches = batches
        self.limits = defaultdict[Lane, RowLimit](RowLimit)
        self.lost: Exception | None = None

    def add(self, client: Client, requests: abc.Sequence[Request]) -> None:
        """Queue requests of a client."""
        scheduler = self.scheduler
        if self.lost is not None:
            client.error = self.lost
        else:
            scheduler.add([Sequence(client, each, scheduler.long_apart) for each in requests])

    def step(self, newcomers: bool = False, live: bool = False) -> int:
        """Run one step of every batch, live ones first. Returns how many rows were in it.

        Beside live windows, and for a while after them, one other batch does one small thing: a
        window enters it, or it takes a step. `newcomers` and `live` say that somebody has come of
        whom the engine has no window yet, and that one is live.
        """
        scheduler, rows = self.scheduler, 0
        for lane in scheduler.live_lanes:
            rows += self._step_lane(lane, newcomers) or 0
        if not scheduler.allows_others(live):
            return rows
        for lane in scheduler.other_lanes:
            if not scheduler.allows_lane(lane):
                continue
            began = scheduler.clock()
            stepped = self._step_lane(lane, newcomers)
            if stepped is not None:
                scheduler.count_other(lane, began)
                rows += stepped
                if scheduler.beside_live.small:
                    break
        return rows

    def cancel(self, client: Client) -> None:
        """Drop what a client still has queued or running."""
        if self.lost is not None:
            return
        in_rows = self.scheduler.cancel(client)
        for lane in {each.lane for each in in_rows}:
            self._evict(self.batches[lane], [each for each in in_rows if each.lane == lane])

    def make_room(self) -> None:
        """Give back what idle batches hold, else what all do, for something else that ran out of
        memory. Raises OutOfMemory where that is nothing.
        """
        if self._release(self._idle_batches()):
            return
        holding = [each for each in self.batches.values() if each.memory.capacity]
        if not holding:
            raise OutOfMemory(TOO_SMALL)
        self._begin_again(holding)

    # One step

    def _step_lane(self, lane: Lane, newcomers: bool) -> int | None:
        """One step of a batch, which hands out what is done. Returns how many rows were in it; None
        where nothing could be done.
        """
        if self.lost is not None:
            return None
        batch = self.batches[lane]
        try:
            return self._run_batch(batch, newcomers)
        except Exception as error:
            # An exception holds on to the device's memory, which is short.
            failure = None if is_out_of_memory(error) else error
        self._recover(batch, failure)
        return 0

    def _run_batch(self, batch: Batch, newcomers: bool) -> int | None:
        encoded, decodes = self._admit(batch, newcomers)
        if not decodes or not batch.rows:
            return 0 if encoded else None
        rows = len(batch.rows)
        finished = batch.step()
        self.limits[batch.lane].count_step(batch.memory.capacity)
        for sequence, result in self.scheduler.stepped(batch.lane, finished):
            sequence.client.finished.append((sequence.request, result))
        return rows

    def _admit(self, batch: Batch, newcomers: bool) -> tuple[int, bool]:
        """Let in whom the scheduler chooses. Returns how many entered, and whether the batch is to
        take a step.
        """
        limit = self.limits[batch.lane].rows
        load = Load(limit, self.scheduler.clock(), newcomers=newcomers)
        while True:
            plan = self.scheduler.plan(batch.lane, load)
            if not plan.entering:
                return load.encoded, plan.decodes
            began = self.scheduler.clock()
            if batch.memory.lacks(plan.rows):
                self._release([each for each in self._idle_batches() if each is not batch])
            entered = batch.enter(plan)
            self.scheduler.entered(plan, entered, began)
            if not entered:
                return load.encoded, True
            load = load._replace(encoded=load.encoded + entered)

    def _evict(self, batch: Batch, sequences: list[Sequence]) -> None:
        """Free rows. Where that fails the batch begins again, and its next step tells whose fault
        it is.
        """
        try:
            batch.evict(sequences)
            return
        except Exception as error:
            lost = error if is_device_lost(error) else None
        if lost is not None:
            self._give_up_device(lost)
        else:
            self._begin_again([batch])

    # When something fails

    def _recover(self, batch: Batch, error: Exception | None) -> None:
        """Carry out what follows a step that failed with `error`; None where memory ran out."""
        scheduler, lane, limit = self.scheduler, batch.lane, self.limits[batch.lane]
        suspects = scheduler.suspects(lane)
        rows = max(batch.attempted, batch.memory.capacity)
        idle = [each for each in self._idle_batches() if each is not batch]
        kind = kind_of(error)
        room_made = kind is Kind.OUT_OF_MEMORY and bool(idle) and limit.may_try_again(rows)
        others_hold = bool(idle) or scheduler.others_run(lane)
        follows = remedy(Failure(kind, len(suspects), rows, room_made, others_hold))
        if follows is Remedy.GIVE_UP_DEVICE:
            self._give_up_device(error)
            return
        self._begin_again([batch])
        if kind is Kind.OUT_OF_MEMORY:
            self._release(idle)
        if follows is Remedy.FEWER_ROWS:
            limit.halve(batch.attempted if batch.attempted > 1 else rows)
        elif follows is Remedy.WAIT_FOR_OTHERS:
            limit.wait_for_others()
            scheduler.wait_for_others(lane)
        elif follows is Remedy.ONE_BY_ONE:
            logger.warning("a step failed: its %d requests go on one by one", len(suspects))
            scheduler.isolate(lane)
        elif follows is Remedy.FAIL_SESSION:
            self._drop(suspects, error)
        elif follows is Remedy.FAIL_QUEUE:
            self._drop(scheduler.queued(lane), error)

    def _begin_again(self, batches: abc.Iterable[Batch]) -> None:
        """Let all that runs in batches begin again from their queues."""
        for batch in batches:
            self.scheduler.preempt(batch.lane)
            batch.clear()

    def _drop(self, clients: abc.Iterable[Client], error: Exception | None) -> None:
        """Drop the requests of clients and tell them why: too little memory, by default."""
        for client in clients:
            client.error = error or OutOfMemory(TOO_SMALL)
            self.cancel(client)

    def _give_up_device(self, error: Exception | None) -> None:
        """Tell every client; nothing is decoded any more, and nothing freed.

        Each call to the device would raise again, and freeing pinned memory would end the process
        before it has answered (pytorch#178154). The error's traceback keeps what the step held.
        """
        self.lost = error
        for client in self.scheduler.clients:
            client.error = error

    def _idle_batches(self) -> list[Batch]:
        """Those that hold memory and in which nothing runs."""
        return [
            batch
            for lane, batch in self.batches.items()
            if batch.memory.capacity and self.scheduler.is_idle(lane)
        ]

    def _release(self, idle: list[Batch]) -> bool:
        """Give back the memory of idle batches. Whether there was any."""
        for batch in idle:
            batch.clear()
        return bool(idle)


def kind_of(error: Exception | None) -> Kind:
    """What an error of a step means; None stands for too little memory."""
    if error is None:
        return Kind.OUT_OF_MEMORY
    return Kind.DEVICE_LOST if is_device_lost(error) else Kind.OTHER
