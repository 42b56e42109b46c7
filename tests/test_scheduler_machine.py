"""The executor and the scheduler in any order of events, over batches of plain values.

Clients come with windows whose texts are accepted, rejected or fail, leave, and run out of memory;
after each event everything is where its status says, and in the end everybody has been answered.
Some are live: these go before all others, which do one thing after the other beside them. Where
rows cost time, those of long recordings have a part of it beside short ones.
"""

from __future__ import annotations

from collections import Counter
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_batches import (
    ENCODE_SECONDS,
    STEP_SECONDS,
    Device,
    Script,
    executor_of,
    request_of,
)

from asr.engine.fallback import Fallback
from asr.engine.lane_queue import LONGEST_WAITING_EVERY
from asr.engine.request import DecodeOptions
from asr.engine.scheduler import GATHERING_STEPS, Limits, Scheduler
from asr.engine.sequence import FOLLOWING, Sequence, Status
from asr.engine.session import Client
from asr.engine.shares import LIVE_STEPS, LONG_SHARE, SHARE_BESIDE_LIVE
from errors import OutOfMemory

MOST_STEPS = 6
MOST_OVERTAKING = 3  # later ones that may go before one, for their windows are encoded together
OPTIONS = st.builds(
    DecodeOptions,
    assisted=st.booleans(),
    batch_size=st.sampled_from([24, 1, 2, 3]),
    num_beams=st.sampled_from([1, 2, 5]),
    fallback=st.sampled_from([None, Fallback(), Fallback(2)]),
    live=st.booleans(),
)
STEPS = st.integers(1, MOST_STEPS)
POISON = st.sampled_from([None, None, None, None, "entry", "step", "read"])
SCRIPTS = st.builds(Script, steps=st.tuples(STEPS, STEPS), rejected=st.booleans(), poison=POISON)
WHERE = st.sampled_from(["entry", "step", "read", "eviction"])
QUEUED = {Status.WAITING, Status.RETRYING}


class WatchedScheduler(Scheduler):
    """Keeps account, in `overtaken`, of whom others of their lane went before."""

    def __init__(self, limits, clock, rows_cost):
        super().__init__(limits, clock, rows_cost)
        self.given = 0  # rows so far
        self.came = {}  # by client: the rows given when it came, or was given one last
        self.overtaken = Counter()  # by client that has no row: rows given to later ones
        self.live_steps = 0  # since others did something

    def add(self, sequences):
        sequences = list(sequences)
        for client in {each.client for each in sequences} - self.clients:
            self.came[client] = self.given
            del self.overtaken[client]
        super().add(sequences)

    def entered(self, plan, count, began):
        for each in plan.entering[:count]:
            self._give_row(each)
        super().entered(plan, count, began)

    def stepped(self, lane, finished):
        self.live_steps += lane.live
        return super().stepped(lane, finished)

    def count_other(self, lane, began):
        if any(self._lanes[each].running for each in self.live_lanes):
            assert self.live_steps >= LIVE_STEPS
        self.live_steps = 0
        super().count_other(lane, began)

    @property
    def live_ones_may_run(self):
        """Whether there are any, and memory for them."""
        present = not all(self._lanes[lane].empty for lane in self.live_lanes)
        return present and not self._starved

    @property
    def short_ones_may_run(self):
        """Whether somebody has only short ones, apart from the long ones of others, and there is
        memory for them.
        """
        if not self.long_apart or self._starved:
            return False
        others = [each for lane in self._lanes.values() for each in lane if not each.lane.live]
        return bool({e.client for e in others} - {e.client for e in others if e.lane.long})

    def _give_row(self, sequence):
        self.given += 1
        running = {each.client for lane in self._lanes.values() for each in lane.running}
        waiting = {
            each.client
            for each in self._lanes[sequence.lane].allowed()
            if each.status in QUEUED and not self._is_gathering(each)
        }
        for client in waiting - running - {sequence.client}:
            self.overtaken[client] += self.came[sequence.client] > self.came[client]
        self.came[sequence.client] = self.given
        del self.overtaken[sequence.client]


class EngineMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.device = Device()
        self.clients: list[Client] = []
        self.added: dict[Client, list] = {}
        self.long: set[Client] = set()  # those with windows of long recordings
        self.cancelled: set[Client] = set()
        self.present: dict[Sequence, None] = {}  # those that are not done
        self.answered: dict[Client, tuple] = {}  # what there was to look at, when it was looked at
        self.watch = mock.patch.object(Sequence, "__setattr__", self.assigned())
        self.watch.start()
        self.beside_live = 0.0  # seconds for which there have been live ones
        self.of_others = 0.0  # those of them in which others did something
        self.beside_short = 0.0  # seconds for which there have been short ones that may run
        self.of_long = 0.0  # those of them that lanes of long ones took

    def assigned(self):
        """`Sequence.__setattr__` that follows every status."""

        def assign(sequence, name, value):
            if name == "status":
                if "status" not in vars(sequence):
                    self.present[sequence] = None
                elif value not in FOLLOWING[sequence.status]:
                    raise AssertionError(f"{sequence.status} was followed by {value}")
                if value is Status.DONE:
                    del self.present[sequence]
            object.__setattr__(sequence, name, value)

        return assign

    @initialize(
        limits=st.builds(Limits, max_rows=st.sampled_from([1, 2, 4, 32]), shared=st.booleans()),
        rows_cost=st.booleans(),
        tells=st.booleans(),
        scratch=st.sampled_from([0, 0, 1]),
        may_be_lost=st.sampled_from([False, False, False, True]),
    )
    def start(self, limits, rows_cost, tells, scratch, may_be_lost):
        self.limits, self.may_be_lost = limits, may_be_lost
        self.device.tells, self.device.scratch = tells, scratch
        self.executor = executor_of(self.device, limits, WatchedScheduler, rows_cost)
        self.scheduler = self.executor.scheduler

    # Events

    @rule(options=OPTIONS, scripts=st.lists(SCRIPTS, min_size=1, max_size=6), long=st.booleans())
    def come(self, options, scripts, long):
        client = Client(options)
        self.clients.append(client)
        self.added[client] = []
        self.add(client, scripts, long)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 99), scripts=st.lists(SCRIPTS, max_size=3), long=st.booleans())
    def come_again(self, number, scripts, long):
        client = self.clients[number % len(self.clients)]
        if client not in self.cancelled and client.error is None:
            self.add(client, scripts, long)

    def add(self, client, scripts, long):
        requests = [request_of(each, long) for each in scripts]
        self.added[client] += requests
        if any(each.windows_left for each in requests):
            self.long.add(client)
        self.executor.add(client, requests)

    @rule(options=OPTIONS, script=SCRIPTS, count=st.integers(8, 24))
    def keep_coming(self, options, script, count):
        """One client after another, each with one window that takes a few steps."""
        for _ in range(count):
            self.come(options, [script], long=False)
            self.step_once()
            self.step_once()

    @rule(count=st.integers(1, 10), newcomers=st.booleans(), live=st.booleans())
    def step(self, count, newcomers, live):
        for _ in range(count):
            self.step_once(newcomers, live)

    def step_once(self, newcomers=False, live=False):
        """A step of a busy engine lets somebody in, decodes or fails, unless others rest for a live
        one that comes.
        """
        busy, given = self.scheduler.busy, self.scheduler.given
        failures, done = self.device.failures, len(self.device.works)
        small, live_ones = self.scheduler.beside_live.small, self.scheduler.live_ones_may_run
        short_ones = self.scheduler.short_ones_may_run
        rows = self.executor.step(newcomers, live)
        failed = self.device.failures > failures
        moved = rows or self.scheduler.given > given or failed
        assert moved or not busy or self.device.lost or live
        works = self.device.works[done:]
        others = [each.seconds for each in works if not each.lane.live]
        assert len(others) <= 1 or not (small and self.scheduler.beside_live.small)
        lost = self.executor.lost is not None
        if failed or lost or not (live_ones and self.scheduler.live_ones_may_run):
            self.beside_live = self.of_others = 0.0
        else:
            self.others_wait_for_live_ones(works, others)
        if failed or lost or not (short_ones and self.scheduler.short_ones_may_run):
            self.beside_short = self.of_long = 0.0
        else:
            self.long_ones_leave_time_to_short_ones(works)
        self.everything_is_in_its_place()
        self.nobody_is_passed_over()

    def others_wait_for_live_ones(self, works, others):
        assert works[0].lane.live
        assert len(others) <= 1
        assert all(each.lane.live for each in works[:-1])
        self.beside_live += sum(each.seconds for each in works)
        self.of_others += sum(others)
        once = max(ENCODE_SECONDS, STEP_SECONDS)
        assert self.of_others <= self.beside_live * SHARE_BESIDE_LIVE + once

    def long_ones_leave_time_to_short_ones(self, works):
        self.beside_short += sum(each.seconds for each in works)
        self.of_long += sum(each.seconds for each in works if each.lane.long)
        turn = self.limits.hold_seconds + ENCODE_SECONDS + STEP_SECONDS
        assert self.of_long <= self.beside_short * LONG_SHARE + turn

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 99))
    def cancel(self, number):
        client = self.clients[number % len(self.clients)]
        self.executor.cancel(client)
        self.cancelled.add(client)

    @rule(where=WHERE, error=st.sampled_from([MemoryError(), ValueError("a kernel failed")]))
    def fail_once(self, where, error):
        self.device.faults[where] = error

    @rule(total=st.sampled_from([10_000, 40, 13, 7, 6, 5, 2, 1]))
    def others_take_memory(self, total):
        self.device.total = total

    @rule()
    def run_out_of_memory_elsewhere(self):
        """As when a language is detected."""
        held = sum(each.memory.capacity for each in self.device.batches)
        if not self.device.lost:
            try:
                self.executor.make_room()
            except OutOfMemory:
                assert not held

    @precondition(lambda self: self.may_be_lost and len(self.clients) > 3)
    @rule()
    def lose_the_device(self):
        self.device.lost = True

    # What holds at any time

    @invariant()
    def everything_is_in_its_place(self):
        if self.executor.lost is not None:
            return
        lanes = self.scheduler._lanes
        running = {lane: list(queue.running) for lane, queue in lanes.items()}
        queued = {lane: list(queue.waiting) for lane, queue in lanes.items()}
        for status, found in ({Status.RUNNING}, running), (QUEUED, queued):
            for lane, sequences in found.items():
                assert {each.status for each in sequences} <= status
                assert {each.lane for each in sequences} <= {lane}
        for lane, rows in running.items():
            batch = self.executor.batches[lane]
            assert Counter(batch.rows) == Counter(rows)
            assert len(rows) <= min(self.limits.max_rows, max(batch.memory.capacity, 0))
        present = [each for some in (running, queued) for part in some.values() for each in part]
        assert len(present) == len(set(present))
        assert set(present) == set(self.present)
        assert self.scheduler.waiting + self.scheduler.running == len(present)
        rows = Counter(each.client for part in running.values() for each in part)
        assert all(count <= client.options.batch_size for client, count in rows.items())

    @invariant()
    def everybody_is_answered_once(self):
        present = Counter(each.request for each in self.present)
        here = {each.client for each in self.present}
        for client in self.clients:
            told = len(client.finished), len(self.added[client]), client.error
            told += (client in self.cancelled, self.executor.lost is not None)
            if client not in here and self.answered.get(client) == told:
                continue
            self.answered[client] = told
            answered = Counter(request for request, _ in client.finished)
            if client in self.cancelled or client.error is not None:
                added = [] if self.executor.lost is not None else self.added[client]
                assert not any(each in present for each in added)
                assert max(answered.values(), default=1) == 1
            else:
                waiting = Counter({each: present[each] for each in self.added[client]})
                assert answered + waiting == Counter(self.added[client])
            expected = {ValueError, OutOfMemory, RuntimeError, type(None)}
            assert type(client.error) in expected, client.error

    @invariant()
    def nobody_is_passed_over(self):
        """Before nobody go many later ones; long recordings share their turns."""
        long = self.long
        for client, count in self.scheduler.overtaken.items():
            if client in long or self.limits.shared:
                turns = len(long) if client in long else 1
                assert count <= LONGEST_WAITING_EVERY * turns * (4 if self.limits.shared else 1)
            else:
                assert count <= MOST_OVERTAKING

    def teardown(self):
        try:
            if hasattr(self, "executor"):
                self.drain()
        finally:
            self.watch.stop()

    def drain(self):
        """Once nobody comes any more everything ends."""
        left = self.present
        poisoned = sum(each.request.key.poison is not None for each in left)
        each = LIVE_STEPS + 2 * MOST_STEPS + GATHERING_STEPS
        bound = 100 + 2 * each * (len(left) + 1) * (poisoned + 1)
        self.device.scratch, self.device.total = 0, max(6, self.device.total)
        while self.scheduler.busy and self.executor.lost is None:
            bound -= 1
            assert bound > 0, "it does not end"
            self.step_once()
            self.everybody_is_answered_once()
        for client in self.clients:
            if client not in self.cancelled and client.error is None:
                assert len(client.finished) == len(self.added[client])


# A failing case takes minutes to be made small.
TestEngine = pytest.mark.timeout(900)(EngineMachine.TestCase)
TestEngine.settings = hypothesis.settings(max_examples=40, stateful_step_count=30)
