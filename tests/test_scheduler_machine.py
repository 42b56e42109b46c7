"""The engine and the scheduler in any order of events, over batches of plain values.

Clients come with windows whose texts are accepted, rejected or fail, leave, and run out of memory;
after each event every sequence is in one place, and in the end every client has been answered.
Some are live: beside these all others have a part of the time. Beside short recordings long ones
have a part of it."""

from collections import Counter

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.plain_batches import (
    ENCODE_SECONDS,
    STEP_SECONDS,
    Device,
    Script,
    engine_of,
    request_of,
)
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.scheduler import GATHERING_STEPS, HOLD_SECONDS, Limits, Scheduler
from whosaid.asr.engine.sequence import DecodeSequence
from whosaid.asr.engine.session import Session
from whosaid.errors import OutOfMemory
from whosaid.scheduling.fair_shares import WORK_WEIGHTS, WorkClass

MOST_STEPS = 6
MOST_OVERTAKING = 3  # later ones that may go before one, for their windows are encoded together
# Rows of one class that later clients may have before one of another class.
MOST_BESIDE_CLASSES = 8
BESIDE_LIVE = 1 - WORK_WEIGHTS[WorkClass.LIVE] / sum(WORK_WEIGHTS.values())
LONG_BESIDE_SHORT = 1 / (1 + WORK_WEIGHTS[WorkClass.SHORT])
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


class WatchedScheduler(Scheduler):
    """Counts, in `overtaken`, the later ones of a lane that went before each."""

    def __init__(self, limits, rows_cost):
        super().__init__(limits, rows_cost)
        self.present: dict[DecodeSequence, None] = {}  # those that wait or run
        self.given = 0  # rows so far
        self.came = {}  # by session: the rows given when it came, or was given one last
        # By session that has no row, and whether of its class: rows given to later ones.
        self.overtaken = Counter()

    def add(self, sequences):
        for session in {each.session for each in sequences} - set(self.sessions):
            self._reset(session)
        self.present.update(dict.fromkeys(sequences))
        super().add(sequences)

    def entered(self, plan, entered, seconds):
        for each in plan.entering[:entered]:
            self._give_row(each)
        super().entered(plan, entered, seconds)

    def stepped(self, plan, finished, seconds):
        done = super().stepped(plan, finished, seconds)
        for each, _ in done:
            del self.present[each]
        return done

    def cancel(self, session):
        for each in [each for each in self.present if each.session is session]:
            del self.present[each]
        return super().cancel(session)

    def may_run(self, *works):
        """Return whether there is work of these classes, and memory for it."""
        return not self._starved and any(each.work in works for each in self.present)

    def _give_row(self, sequence):
        self.given += 1
        queue = self._queues[sequence.lane]
        running = {each.session for each in self.present if each in self._rows()}
        waiting = {
            session: work
            for work in WorkClass
            for session, sequences in queue.allowed(work)
            if not self._gathers(queue, session, sequences)
        }
        for session in waiting.keys() - running - {sequence.session}:
            later = self.came[sequence.session] > self.came[session]
            self.overtaken[session, waiting[session] is sequence.work] += later
        self._reset(sequence.session)

    def _reset(self, session):
        self.came[session] = self.given
        for of_its_class in True, False:
            del self.overtaken[session, of_its_class]

    def _rows(self):
        return {each for queue in self._queues.values() for each in queue.running}


class EngineMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.device = Device()
        self.sessions: list[Session] = []
        self.added: dict[Session, list] = {}
        self.long: set[Session] = set()  # those with windows of long recordings
        self.cancelled: set[Session] = set()
        self.answered: dict[Session, tuple] = {}  # what there was to look at, when it was looked at
        self.forget_seconds()

    def forget_seconds(self):
        self.beside_live = 0.0  # seconds for which there have been live windows
        self.of_others = 0.0  # those of them in which others did something
        self.beside_short = 0.0  # seconds for which there have been short ones and no live ones
        self.of_long = 0.0  # those of them that long ones took

    @initialize(
        limits=st.builds(
            Limits, max_rows=st.sampled_from([1, 2, 4, 32, None]), shared=st.booleans()
        ),
        rows_cost=st.booleans(),
        tells=st.booleans(),
        scratch=st.sampled_from([0, 0, 1]),
        may_be_lost=st.sampled_from([False, False, False, True]),
    )
    def start(self, limits, rows_cost, tells, scratch, may_be_lost):
        self.limits, self.may_be_lost = limits, may_be_lost
        self.device.tells, self.device.scratch = tells, scratch
        self.engine = engine_of(self.device, limits, WatchedScheduler, rows_cost=rows_cost)
        self.scheduler = self.engine.scheduler

    # Events

    @rule(options=OPTIONS, scripts=st.lists(SCRIPTS, min_size=1, max_size=6), long=st.booleans())
    def come(self, options, scripts, long):
        session = self.engine.session(options)
        self.sessions.append(session)
        self.added[session] = []
        self.add(session, scripts, long)

    @precondition(lambda self: self.sessions)
    @rule(number=st.integers(0, 99), scripts=st.lists(SCRIPTS, max_size=3), long=st.booleans())
    def come_again(self, number, scripts, long):
        session = self.sessions[number % len(self.sessions)]
        if session not in self.cancelled and session.error is None:
            self.add(session, scripts, long)

    def add(self, session, scripts, long):
        requests = [request_of(each, long) for each in scripts]
        self.added[session] += requests
        if any(each.windows_left for each in requests):
            self.long.add(session)
        session.add(requests)

    @rule(options=OPTIONS, script=SCRIPTS, count=st.integers(8, 24))
    def keep_coming(self, options, script, count):
        """Add one client after another, each with one window of a few steps."""
        for _ in range(count):
            self.come(options, [script], long=False)
            for _ in range(4):
                self.step_once()

    @rule(count=st.integers(1, 20))
    def step(self, count):
        for _ in range(count):
            self.step_once()

    @rule(callers=st.sets(st.sampled_from([*WorkClass])), count=st.integers(1, 20))
    def step_beside_callers(self, callers, count):
        """The caller takes small steps in its turns."""
        self.forget_seconds()
        for _ in range(count):
            work = self.scheduler.callers_turn(callers)
            if work is None:
                assert not callers or self.scheduler.busy or self.engine.lost is not None
                self.engine.step()
                continue
            assert work in callers
            self.device.clock.now += STEP_SECONDS
            self.scheduler.charge_caller(work, STEP_SECONDS)
        self.forget_seconds()

    def step_once(self):
        """A step of a busy engine lets a window in, decodes, fails or finds no room."""
        busy, given = self.scheduler.busy, self.scheduler.given
        failures, done = self.device.failures, len(self.device.works)
        live_ones = self.scheduler.may_run(WorkClass.LIVE)
        short_ones = self.scheduler.may_run(WorkClass.SHORT) and not live_ones
        rows = self.engine.step()
        failed = self.device.failures > failures
        no_room = any(each.full for each in self.scheduler._queues.values())
        moved = rows or self.scheduler.given > given or failed or no_room
        assert moved or not busy or self.engine.lost is not None
        works = self.device.works[done:]
        lost = self.engine.lost is not None
        if failed or lost or not (live_ones and self.scheduler.may_run(WorkClass.LIVE)):
            self.beside_live = self.of_others = 0.0
        else:
            self.others_wait_for_live_ones(works)
        if failed or lost or not (short_ones and self.scheduler.may_run(WorkClass.SHORT)):
            self.beside_short = self.of_long = 0.0
        else:
            self.long_ones_leave_time_to_short_ones(works)
        self.everything_is_in_its_place()
        self.nobody_is_passed_over()

    def others_wait_for_live_ones(self, works):
        """Up to a unit of each class beside their part of the time."""
        assert len({each.lane for each in works}) <= 1
        others = [each.seconds for each in works if not each.lane.live]
        assert len(others) <= 1
        self.beside_live += sum(each.seconds for each in works)
        self.of_others += sum(others)
        once = max(ENCODE_SECONDS, STEP_SECONDS)
        assert self.of_others <= self.beside_live * BESIDE_LIVE + 2 * once

    def long_ones_leave_time_to_short_ones(self, works):
        self.beside_short += sum(each.seconds for each in works)
        self.of_long += sum(each.seconds for each in works if each.lane.long)
        turn = HOLD_SECONDS + ENCODE_SECONDS + STEP_SECONDS
        assert self.of_long <= self.beside_short * LONG_BESIDE_SHORT + turn

    @precondition(lambda self: self.sessions)
    @rule(number=st.integers(0, 99))
    def cancel(self, number):
        session = self.sessions[number % len(self.sessions)]
        self.engine.cancel(session)
        self.cancelled.add(session)

    @rule(where=WHERE, error=st.sampled_from([MemoryError(), ValueError("a kernel failed")]))
    def fail_once(self, where, error):
        self.device.faults[where] = error

    @rule(total=st.sampled_from([10_000, 40, 13, 7, 6, 5, 2, 1]))
    def others_take_memory(self, total):
        self.device.total = total

    @rule()
    def run_out_of_memory_elsewhere(self):
        """Language detection may run out of memory, for example."""
        held = sum(each.memory.capacity for each in self.device.batches)
        if not self.device.lost:
            try:
                self.engine.make_room()
            except OutOfMemory:
                assert not held

    @precondition(lambda self: self.may_be_lost and len(self.sessions) > 3)
    @rule()
    def lose_the_device(self):
        self.device.lost = True

    # What holds at any time

    @invariant()
    def everything_is_in_its_place(self):
        if self.engine.lost is not None:
            return
        queues = self.scheduler._queues
        running = {lane: list(queue.running) for lane, queue in queues.items()}
        waiting = {lane: list(queue)[len(queue.running) :] for lane, queue in queues.items()}
        for found in running, waiting:
            for lane, sequences in found.items():
                assert {each.lane for each in sequences} <= {lane}
        for lane, rows in running.items():
            batch = self.engine.batches[lane]
            assert Counter(batch.rows) == Counter(rows)
            assert len(rows) <= min(self.limits.max_rows or 128, max(batch.memory.capacity, 0))
            assert not queues[lane].entering
        present = [each for some in (running, waiting) for part in some.values() for each in part]
        assert len(present) == len(set(present))
        assert set(present) == set(self.scheduler.present)
        assert self.scheduler.waiting == sum(map(len, waiting.values()))
        assert self.scheduler.running == sum(map(len, running.values()))
        assert set(self.scheduler.sessions) == {each.session for each in present}
        rows = Counter(each.session for part in running.values() for each in part)
        assert all(count <= session.most_rows for session, count in rows.items())

    @invariant()
    def everybody_is_answered_once(self):
        if not self.sessions:
            return
        present = Counter(each.request for each in self.scheduler.present)
        here = {each.session for each in self.scheduler.present}
        for session in self.sessions:
            told = len(session.finished), len(self.added[session]), session.error
            told += (session in self.cancelled, self.engine.lost is not None)
            if session not in here and self.answered.get(session) == told:
                continue
            self.answered[session] = told
            answered = Counter(request for request, _ in session.finished)
            if session in self.cancelled or session.error is not None:
                added = [] if self.engine.lost is not None else self.added[session]
                assert not any(each in present for each in added)
                assert max(answered.values(), default=1) == 1
            else:
                waiting = Counter({each: present[each] for each in self.added[session]})
                assert answered + waiting == Counter(self.added[session])
            expected = {ValueError, OutOfMemory, RuntimeError, type(None)}
            assert type(session.error) in expected, session.error

    @invariant()
    def nobody_is_passed_over(self):
        """Before nobody go many later ones; long recordings share their turns."""
        long = self.long
        overtaken = self.scheduler.overtaken
        for session in {session for session, _ in overtaken}:
            count = overtaken[session, True] + overtaken[session, False]
            if session in long or self.limits.shared:
                turns = len(long) if session in long else 1
                assert count <= MOST_BESIDE_CLASSES * turns * (4 if self.limits.shared else 1)
            else:
                assert overtaken[session, True] <= MOST_OVERTAKING
                assert overtaken[session, False] <= MOST_BESIDE_CLASSES

    def teardown(self):
        if hasattr(self, "engine"):
            self.drain()

    def drain(self):
        """Let everything end, because no more work arrives."""
        left = self.scheduler.present
        poisoned = sum(each.request.key.poison is not None for each in left)
        each = 2 * MOST_STEPS + GATHERING_STEPS
        bound = 100 + 2 * each * (len(left) + 1) * (poisoned + 1)
        self.device.scratch, self.device.total = 0, max(6, self.device.total)
        while self.scheduler.busy and self.engine.lost is None:
            bound -= 1
            assert bound > 0, "it does not end"
            self.step_once()
            self.everybody_is_answered_once()
        for session in self.sessions:
            if session not in self.cancelled and session.error is None:
                assert len(session.finished) == len(self.added[session])


# A failing case takes minutes to be made small.
TestEngine = pytest.mark.timeout(900)(EngineMachine.TestCase)
TestEngine.settings = hypothesis.settings(max_examples=40, stateful_step_count=30)
