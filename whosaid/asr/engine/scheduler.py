"""Chooses what is decoded next among waiting and running sequences, without a device.

The engine does one unit of work at a time: it lets windows of a lane into rows, or it takes a step
of a lane's batch. `scheduling.fair_shares` chooses the unit's class (live, short or long
recordings), then the part of the class (entering or stepping). Within a part lanes take turns.
Within a lane the session with the fewest rows is next; among equals, the session that was served
longest ago.

Each number of beams has a lane, with a queue and a batch. A window whose text was rejected moves to
the lane of more beams, at the front of its session's queue, and waits a while for others of its
session, because rows cost least together.

A step on a CPU takes longer the more rows it has, so a shared engine gives long recordings lanes of
their own there, and live windows have one. On a GPU all share rows: long recordings leave a quarter
of them free, and while somebody speaks, all recordings leave an eighth. Work is charged by the
seconds of `clock`. On CUDA, where the host does not wait, a step costs one, and entering a window
WINDOW_STEPS.
"""

import heapq
import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, count, islice, zip_longest
from typing import NamedTuple

from whosaid.asr.engine.request import MAX_ROWS, Share
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.sequence import LIVE_ALONE, DecodeSequence, Lane
from whosaid.asr.engine.session import Session
from whosaid.scheduling.fair_shares import WORK_WEIGHTS, FairShares, WorkClass

logger = logging.getLogger("endpoint")

MAX_ENCODER_BATCH = 16  # windows; bounds the encoder's memory beside the caches
# Encoding pauses after so long if other clients are there or may come. A CPU encodes windows one by
# one, and at least one. A step of whisper-base takes a few hundredths of a second.
HOLD_SECONDS = 0.1
ENCODED_AHEAD = 4  # windows on CUDA, beside steps
LONG_TOGETHER = 4  # windows of long recordings that enter at once, while a short one may come
# Steps of greedy rows for which a rejected text waits for others of its session.
GATHERING_STEPS = 64
# Steps without a failure after which all rows are tried again: other users of the memory may have
# released it.
RESTORING_STEPS = 512
# Seconds after a live window in which other windows enter one by one: a speaker asks again soon.
LIVE_LINGERS = 10.0
# On CUDA: steps of large-v3 that take as long as encoding a window, and seconds of one step.
WINDOW_STEPS, STEP_SECONDS = 8, 0.003
# Work for a client that leaves is charged again so many times. So the rows of others step before
# newcomers enter, and clients that leave take about as much as clients that stay.
IN_VAIN = 18

CPU_ROWS = 32  # more rows cost a client of a shared CPU more time than they save

Finished = tuple[DecodeSequence, DecodeResult]


class Part(Enum):
    """Parts of a class's work."""

    CALLER = auto()  # small steps of the caller: detecting languages, reading windows
    ENTER = auto()
    STEP = auto()


# Newcomers soon have a row, and rows still step while newcomers keep coming.
PART_WEIGHTS = {Part.CALLER: 3.0, Part.ENTER: 3.0, Part.STEP: 1.0}


@dataclass(frozen=True)
class Limits:
    """At most `max_rows` rows run in a batch, by default as many as its lane has, or CPU_ROWS on a
    CPU that clients share; other clients may come to a `shared` engine.
    """

    max_rows: int | None = None
    shared: bool = False


DEFAULT_LIMITS = Limits()


class Plan(NamedTuple):
    """One unit of work: let `entering` sequences into rows of a lane; without any, step its batch.
    The batch soon uses `rows` rows in all. Encoding pauses at the time `until`.
    """

    lane: Lane
    work: WorkClass
    entering: list[DecodeSequence]
    rows: int
    until: float = math.inf

    @property
    def part(self) -> Part:
        return Part.ENTER if self.entering else Part.STEP


@dataclass
class LaneQueue:
    """The sequences of a lane: `waiting` by class and session, `entering` rows now, or `running`.
    It has `rows` rows, of which at most `most` are tried. A `full` batch accepted no sequence the
    last time. A lane that `failed` was tried again with as many rows.
    """

    lane: Lane
    rows: int = MAX_ROWS
    most: int = MAX_ROWS
    waiting: dict[WorkClass, dict[Session, deque[DecodeSequence]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    entering: list[DecodeSequence] = field(default_factory=list)
    running: dict[DecodeSequence, None] = field(default_factory=dict)
    full: bool = False
    failed: bool = False
    isolates: bool = False
    steps: int = 0
    steps_since_failure: int = 0
    served: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))

    def __iter__(self) -> Iterator[DecodeSequence]:
        yield from self.running
        for queues in self.waiting.values():
            yield from chain.from_iterable(queues.values())

    @property
    def work(self) -> WorkClass:
        works = {each.work for each in self.running}
        return next(each for each in WorkClass if each in works)

    def runs(self, session: Session) -> bool:
        return any(each.session is session for each in self.running)

    def allowed(self, work: WorkClass) -> Iterator[tuple[Session, Sequence[DecodeSequence]]]:
        """Yield sequences that may enter, by session; one session while a failed step repeats."""
        isolated = next((each for each in self if each.isolated), None) if self.isolates else None
        self.isolates = isolated is not None
        for session, waiting in self.waiting[work].items():
            if isolated is None:
                yield session, waiting
            # A rejected window may wait before the isolated ones.
            elif session is isolated.session and (
                first := [each for each in waiting if each.isolated]
            ):
                yield session, first

    def add(self, sequence: DecodeSequence, front: bool = False) -> None:
        queue = self.waiting[sequence.work].setdefault(sequence.session, deque())
        if front:
            queue.appendleft(sequence)
        else:
            queue.append(sequence)

    def remove(self, sequence: DecodeSequence) -> None:
        queues = self.waiting[sequence.work]
        queues[sequence.session].remove(sequence)
        if not queues[sequence.session]:
            del queues[sequence.session]


class Scheduler:
    """Owns the sequences and chooses units of work; `clock` returns seconds."""

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, rows_cost: bool = False, counts_steps: bool = False
    ) -> None:
        """Set `rows_cost` if more rows cost time, `counts_steps` if `clock` is not the device's."""
        self.limits, self.clock = limits, time.perf_counter
        self.own_lanes = frozenset[WorkClass]() if counts_steps else LIVE_ALONE
        if limits.shared and rows_cost:
            self.own_lanes |= {WorkClass.LONG}
        self.max_rows = limits.max_rows or (CPU_ROWS if limits.shared and rows_cost else MAX_ROWS)
        self._counts_steps = counts_steps
        self._turns = FairShares(WORK_WEIGHTS)
        self._parts = {work: FairShares(PART_WEIGHTS) for work in WorkClass}
        self._queues: dict[Lane, LaneQueue] = {}
        self._windows: Counter[Session] = Counter()  # waiting or running
        self._served = count(1)  # numbers rows given and lanes served
        # Lanes that ran out of memory beside others, in the order in which they may run alone.
        self._starved: dict[Lane, None] = {}
        self._live_until = -math.inf

    # State

    @property
    def busy(self) -> bool:
        return bool(self._windows)

    @property
    def waiting(self) -> int:
        return sum(list(self._windows.values())) - self.running  # read by other threads too

    @property
    def running(self) -> int:
        return sum(len(each.running) for each in self._queues.values())

    @property
    def capacity(self) -> int:
        """Return the rows of the largest lane used so far."""
        most = [min(each.rows, each.most) for each in list(self._queues.values())]
        return min(self.max_rows, max(most, default=MAX_ROWS))

    @property
    def sessions(self) -> list[Session]:
        return list(self._windows)

    def others_run(self, lane: Lane) -> bool:
        return any(each.running for each in self._queues.values() if each.lane != lane)

    def is_idle(self, lane: Lane) -> bool:
        queue = self._queues.get(lane)
        return queue is None or not (queue.running or queue.entering)

    # The next unit

    def next(self) -> Plan | None:
        work, part, units = self._next_turn(())
        if work is None:
            return None
        unit = min(units, key=lambda each: self._queues[each.lane].served[part])
        queue = self._queues[unit.lane]
        queue.served[part] = next(self._served)
        if part is Part.STEP:
            return unit
        most, hold = self._unit_size(work)
        queue.entering = encoded_together(unit.entering)[:most]
        return unit._replace(entering=queue.entering, until=self.clock() + hold)

    def upcoming(self, lane: Lane) -> list[DecodeSequence]:
        """Return a lane's next windows, to encode beside its steps; on a CPU there are none."""
        if not self._counts_steps:
            return []
        waiting = self._queue(lane).waiting.values()
        sessions = chain.from_iterable(each.values() for each in waiting)
        turns = chain.from_iterable(zip_longest(*sessions))
        soon = [*islice(filter(None, turns), ENCODED_AHEAD)]
        if not soon or soon[0].encoded is not None:
            return []
        return [each for each in soon if each.encoded is None and each.request.target is None]

    def callers_turn(self, callers: Collection[WorkClass]) -> WorkClass | None:
        """Return the class in which the caller takes a small step before the next unit, if any."""
        if WorkClass.LIVE in callers:
            self._note_live()
        work, part, _ = self._next_turn(callers)
        return work if part is Part.CALLER else None

    def set_rows(self, lane: Lane, rows: int) -> None:
        self._queue(lane).rows = rows

    # Events

    def add(self, sequences: Sequence[DecodeSequence]) -> None:
        for each in sequences:
            if each.session not in self._windows:
                each.session.served = next(self._served)
            self._windows[each.session] += 1
            self._queue(each.lane).add(each)
            if each.work is WorkClass.LIVE:
                self._note_live()

    def entered(self, plan: Plan, entered: int, seconds: float) -> None:
        """Note that the first `entered` sequences of a plan are in rows."""
        queue = self._queues[plan.lane]
        queue.entering = []
        queue.full = not entered
        cost = WINDOW_STEPS if self._counts_steps else seconds / max(1, entered)
        for each in plan.entering[:entered]:
            queue.remove(each)
            queue.running[each] = None
            each.entry_cost = cost
            each.session.served = next(self._served)
        self._charge(plan.work, Part.ENTER, cost * entered)

    def stepped(self, plan: Plan, finished: Sequence[Finished], seconds: float) -> list[Finished]:
        """Note a step. Return the sequences that are done; rejected texts are queued again."""
        queue = self._queues[plan.lane]
        queue.steps += 1
        queue.failed = False
        queue.steps_since_failure += 1
        if queue.steps_since_failure >= RESTORING_STEPS:
            queue.most = MAX_ROWS
        if plan.work is WorkClass.LIVE:
            self._note_live()
        self._charge(plan.work, Part.STEP, 1.0 if self._counts_steps else seconds)
        done, retried = list[Finished](), list[DecodeSequence]()
        for sequence, result in finished:
            del queue.running[sequence]
            fallback = sequence.options.fallback
            if sequence.may_retry and fallback is not None and fallback.rejects(result):
                sequence.rejected, sequence.isolated = result, False
                retried.append(sequence)
            else:
                self._forget(sequence)
                done.append((sequence, result))
        for each in reversed(retried):
            each.gathers_until = self._queue(_plain(each.lane)).steps + GATHERING_STEPS
            each.session.stats.retries += 1
            self._queue(each.lane).add(each, front=True)
        if finished:
            self._rows_are_free()
        if not queue.running:
            self._starved.pop(queue.lane, None)
        return done

    def cancel(self, session: Session) -> dict[Lane, list[DecodeSequence]]:
        """Forget the sequences of a session. Return those that were in rows, by lane."""
        rows = defaultdict[Lane, list[DecodeSequence]](list)
        for queue in self._queues.values():
            for each in [each for each in queue if each.session is session]:
                if each in queue.running:
                    del queue.running[each]
                    rows[queue.lane].append(each)
                    self.charge_in_vain(each.work, Part.ENTER, each.entry_cost)
                else:
                    queue.remove(each)
                self._forget(each)
            if not [*queue]:
                self._starved.pop(queue.lane, None)
        self._rows_are_free()
        return rows

    def charge_caller(self, work: WorkClass, seconds: float) -> float:
        """Charge a small step of the caller. Return its cost."""
        cost = seconds / STEP_SECONDS if self._counts_steps else seconds
        self._charge(work, Part.CALLER, cost)
        return cost

    def charge_in_vain(self, work: WorkClass, part: Part, cost: float) -> None:
        """Charge again the work for a client that has left. Only one or two are charged at a time,
        so that many that leave at once do not keep newcomers waiting.
        """
        turns = self._parts[work]
        if turns.lead(part) * PART_WEIGHTS[part] <= IN_VAIN * cost:
            turns.charge(part, IN_VAIN * cost)

    # After a failure

    def suspects(self, lane: Lane) -> list[DecodeSequence]:
        """Return the sequences of a lane's failed unit."""
        queue = self._queues[lane]
        return [*queue.running, *queue.entering]

    def requeue(self, lane: Lane) -> None:
        """Move everything in a lane's rows to the front of the queue, in its order."""
        queue = self._queue(lane)
        for each in reversed(queue.running):
            queue.add(each, front=True)
        queue.running, queue.entering = {}, []
        self._rows_are_free()

    def isolate(self, sequences: Iterable[DecodeSequence]) -> None:
        """Run a failed step's sequences session by session, so that only one fails again."""
        for each in sequences:
            each.isolated = self._queues[each.lane].isolates = True

    def try_again(self, lane: Lane) -> bool:
        """Return whether a lane may try as many rows again: once until a step succeeds."""
        queue = self._queues[lane]
        before, queue.failed = queue.failed, True
        return not before

    def halve(self, lane: Lane, failed: int) -> None:
        """Try at most half of `failed` rows from now on."""
        queue = self._queues[lane]
        queue.most, queue.steps_since_failure = max(1, failed // 2), 0
        logger.warning("%d windows at once do not fit into memory: at most %d", failed, queue.most)

    def wait_for_others(self, lane: Lane) -> None:
        """Let a lane wait until others' rows have ended, and then run its rows alone."""
        self._starved.setdefault(lane)

    # Inside

    def _queue(self, lane: Lane) -> LaneQueue:
        return self._queues.setdefault(lane, LaneQueue(lane))

    def _note_live(self) -> None:
        self._live_until = self.clock() + LIVE_LINGERS

    @property
    def _speaks(self) -> bool:
        """Return whether a live window is decoded or may come soon."""
        return self.clock() < self._live_until

    def _charge(self, work: WorkClass, part: Part, cost: float) -> None:
        self._turns.charge(work, cost)
        self._parts[work].charge(part, cost)

    def _forget(self, sequence: DecodeSequence) -> None:
        self._windows[sequence.session] -= 1
        if not self._windows[sequence.session]:
            del self._windows[sequence.session]

    def _rows_are_free(self) -> None:
        for queue in self._queues.values():
            queue.full = False

    def _next_turn(
        self, callers: Collection[WorkClass]
    ) -> tuple[WorkClass | None, Part, list[Plan]]:
        """Return the class and part of the next turn, and the engine's units for it."""
        units = list(self._units())
        work = self._turns.next({*callers, *(each.work for each in units)})
        if work is None:
            return None, Part.STEP, []
        units = [each for each in units if each.work is work]
        parts = {each.part for each in units}
        if work in callers:
            parts.add(Part.CALLER)
        if Part.ENTER in parts and len(self._windows) == 1:
            parts.discard(Part.STEP)  # a session alone fills its rows first
        part = self._parts[work].next(parts)
        assert part is not None
        return work, part, [each for each in units if each.part is part]

    def _unit_size(self, work: WorkClass) -> tuple[int, float]:
        """Return the most windows that may enter in one unit, and the seconds of encoding."""
        if work is not WorkClass.LIVE and self._speaks:
            return 1, 0.0
        others = len(self._windows) > 1
        if work is WorkClass.LONG and others:
            return LONG_TOGETHER, 0.0
        return MAX_ENCODER_BATCH, HOLD_SECONDS if self.limits.shared or others else math.inf

    def _units(self) -> Iterator[Plan]:
        """Yield each unit that a lane could do next, with all sequences that could enter."""
        rows = Counter(each.session for queue in self._queues.values() for each in queue.running)
        for queue in self._queues.values():
            running = len(queue.running)
            if running:
                yield Plan(queue.lane, queue.work, [], running)
            if self._may_enter(queue):
                for work in WorkClass:
                    eligible = self._eligible(queue, work, rows)
                    if eligible:
                        yield Plan(queue.lane, work, eligible, running + len(eligible))

    def _may_enter(self, queue: LaneQueue) -> bool:
        """Return whether no lane waits for memory, or this lane may run alone now."""
        first = next(iter(self._starved), None)
        alone = first is None or (first == queue.lane and not self.running)
        return alone and not queue.full

    def _eligible(
        self, queue: LaneQueue, work: WorkClass, rows: Counter[Session]
    ) -> list[DecodeSequence]:
        """Return the next waiting sequences of a class, as far as there are free rows. `rows`
        counts the rows of each session; a session's own sequences keep their order.
        """
        free = self._free_rows(queue, work)
        if free <= 0 or not queue.waiting[work]:
            return []
        shares = Counter[Share | Session]()
        for session, number in rows.items():
            shares[session.options.share or session] += number

        def level(session: Session) -> float:
            share = session.options.share
            return shares[share or session] / (share.weight if share else 1)

        # (level, rows, when served last, tie-breaker, session, its sequences)
        order: list[tuple[float, int, float, int, Session, Iterator[DecodeSequence]]] = [
            (level(session), rows[session], session.served, number, session, iter(waiting))
            for number, (session, waiting) in enumerate(queue.allowed(work))
            if queue.lane.num_beams == 1 or not self._gathers(queue, session, waiting)
        ]
        heapq.heapify(order)
        chosen = list[DecodeSequence]()
        while order and len(chosen) < free:
            before, taken, served, number, session, waiting = heapq.heappop(order)
            if (now := level(session)) > before:  # another session of its share was chosen
                heapq.heappush(order, (now, taken, served, number, session, waiting))
            elif taken < session.most_rows and (sequence := next(waiting, None)):
                chosen.append(sequence)
                shares[session.options.share or session] += 1
                after = level(session), taken + 1, math.inf, len(chosen), session, waiting
                heapq.heappush(order, after)
        return chosen

    def _free_rows(self, queue: LaneQueue, work: WorkClass) -> int:
        most = min(self.max_rows, queue.rows, queue.most)
        free = most - len(queue.running)
        if work is WorkClass.LONG and self.limits.shared and WorkClass.LONG not in self.own_lanes:
            free = min(free, most - most // 4 - sum(each.work is work for each in queue.running))
        if work is not WorkClass.LIVE and self._speaks and WorkClass.LIVE not in self.own_lanes:
            others = sum(each.work is not WorkClass.LIVE for each in queue.running)
            free = min(free, most - most // 8 - others)
        return free

    def _gathers(
        self, queue: LaneQueue, session: Session, waiting: Sequence[DecodeSequence]
    ) -> bool:
        """Return whether rejected texts wait for others that the session's greedy rows may produce.
        If some of them run again already, the rest do not wait, to share the most steps.
        """
        first = min(waiting, key=lambda each: each.gathers_until)
        greedy = self._queues.get(_plain(queue.lane))
        if greedy is None or greedy.steps >= first.gathers_until:
            return False
        return greedy.runs(session) and not queue.runs(session)


def _plain(lane: Lane) -> Lane:
    """Return the lane of first attempts."""
    return lane._replace(num_beams=1)


def encoded_together(sequences: list[DecodeSequence]) -> list[DecodeSequence]:
    """Return the sequences whose drafts are prepared like those of the first."""
    kinds = [(bool(each.options.assisted), each.options.drafts) for each in sequences]
    return [each for each, kind in zip(sequences, kinds, strict=True) if kind == kinds[0]]
