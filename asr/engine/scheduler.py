"""Who is decoded next: every sequence that waits or runs, by plain values, without a device.

Windows, not requests, are the unit. A free row goes to the client with the fewest rows, among
several to the one whose last turn is longest ago, and those of which little is left go before long
ones, which in a shared engine leave a quarter of the rows to them. So a short recording waits until
one row is free, not until a long one has ended, and nothing that runs is interrupted.

All rows of a step are alike, so there is a lane, a queue and a batch, for each number of beams. A
window whose text was rejected leaves its lane for that of more beams, at the front of its queue,
and waits there a while for others of its client that may follow: rows cost least together.

On a CPU a step takes longer the more rows it has. A shared engine has lanes of their own for long
recordings there, which beside short ones have a quarter of the time.

Live windows, of somebody who is speaking now, have lanes of their own, which go first, the oldest
window before all. While one is here the others have a part of the time (`asr.engine.shares`): they
keep their rows, which wait.
"""

from __future__ import annotations

import math
import time
from collections import Counter, abc, deque
from dataclasses import dataclass
from typing import NamedTuple

from asr.engine.fair_share import FairShare, Room
from asr.engine.lane_queue import LaneQueue, clients_of
from asr.engine.recovery import MAX_ROWS
from asr.engine.request import DecodeResult
from asr.engine.sequence import FOLLOWING, Lane, Sequence, Status
from asr.engine.session import Client
from asr.engine.shares import LONG_SHARE, BesideLive, Share

MAX_ENCODER_BATCH = 16  # windows; bounds the encoder's memory beside the caches
# Steps of plain rows for which a rejected text waits for others of its client.
GATHERING_STEPS = 64

# After a client has left a row, other rows take steps for so many times the seconds of encoding a
# window before another is encoded: clients that leave then take about as much as clients that stay.
IN_VAIN = 4

Finished = tuple[Sequence, DecodeResult]


@dataclass(frozen=True)
class Limits:
    """At most `max_rows` run in a batch. Beside other clients, and where one may come (`shared`),
    windows are encoded for `hold_seconds` between two steps; on a CPU, where they are encoded one
    by one, at least one. A step of whisper-base takes a few hundredths of a second.
    """

    max_rows: int = MAX_ROWS
    hold_seconds: float = 0.1
    shared: bool = False


DEFAULT_LIMITS = Limits()


class Load(NamedTuple):
    """What the scheduler is told of a batch and of the step that `began`.

    Memory may hold so many `rows`; `encoded` windows have entered in this step. `newcomers` is
    whether somebody has come of whom the engine has no window yet.
    """

    rows: int
    began: float
    encoded: int = 0
    newcomers: bool = False


class Plan(NamedTuple):
    """What a batch does next: let the sequences that are `entering` into rows of its lane.

    More may follow, `rows` in all; encoding pauses at the time `until`. Where none enters the batch
    takes a step if it `decodes`.
    """

    entering: list[Sequence]
    rows: int
    until: float
    decodes: bool


class Scheduler:
    """Owns the sequences and their status; `clock` returns seconds."""

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        clock: abc.Callable[[], float] = time.perf_counter,
        rows_cost: bool = False,
    ) -> None:
        """`rows_cost` says that a step takes longer the more rows it has."""
        self.limits, self.clock = limits, clock
        self.long_apart = limits.shared and rows_cost
        self.long_share, self.beside_live = Share(LONG_SHARE, clock), BesideLive(clock)
        self._lanes: dict[Lane, LaneQueue] = {}
        # The lanes that found no memory beside others, in the order of their turns.
        self._starved: deque[Lane] = deque()
        self._last_other: Lane | None = None  # that had its turn beside live ones
        self._fair_share = FairShare()
        self._plain_steps: Counter[Lane] = Counter()  # by lane of one beam
        # Of live windows and of the others, each for themselves:
        self._rests_until = {True: -math.inf, False: -math.inf}
        # Seconds that a window's encoding took beside live windows, and those of steps that the
        # other rows are owed for windows encoded in vain.
        self._encoding, self._owed = 0.0, 0.0

    # What waits and what runs

    @property
    def lanes(self) -> list[Lane]:
        """Those that have been in use."""
        return list(self._lanes)

    @property
    def live_lanes(self) -> list[Lane]:
        """Those of live windows, which go first."""
        return [lane for lane in self._lanes if lane.live]

    @property
    def other_lanes(self) -> list[Lane]:
        """Those of all other windows, the one first whose turn it is."""
        lanes = [lane for lane in self._lanes if not lane.live]
        turn = 0 if self._last_other is None else lanes.index(self._last_other) + 1
        return lanes[turn:] + lanes[:turn]

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return not all(each.empty for each in self._lanes.values())

    @property
    def waiting(self) -> int:
        """How many windows wait for a row."""
        return sum(len(each.waiting) for each in self._lanes.values())

    @property
    def running(self) -> int:
        """How many windows are in rows."""
        return sum(len(each.running) for each in self._lanes.values())

    @property
    def clients(self) -> set[Client]:
        """Those that have a window here."""
        return {each.client for each in self._present()}

    def suspects(self, lane: Lane) -> list[Client]:
        """The clients for which a step of a batch has just failed: those that ran or were to."""
        queue = self._lanes[lane]
        return clients_of([*queue.running, *queue.preparing])

    def queued(self, lane: Lane) -> list[Client]:
        """The clients that have a window in a batch or its queue."""
        return clients_of(list(self._lanes[lane]))

    def others_run(self, lane: Lane) -> bool:
        """Whether rows of other batches run."""
        return any(each.running for each in self._lanes.values() if each.lane != lane)

    def is_idle(self, lane: Lane) -> bool:
        """Whether no row of a batch is in use."""
        queue = self._lanes.get(lane)
        return queue is None or not (queue.running or queue.preparing)

    # What happens

    def add(self, sequences: abc.Iterable[Sequence]) -> None:
        """Queue new sequences behind those that wait."""
        for each in sequences:
            assert each.status is Status.WAITING
            self._lane(each.lane).waiting.append(each)
            if each.lane.live:
                self.beside_live.see()

    def allows_others(self, live: bool = False) -> bool:
        """Whether something may be done now for windows that are not live: where no live one runs
        or may enter, and as far as they have a part of the time beside those.

        `live` says that one has come, or is about to, of which the engine does not know yet.
        """
        if live:
            self.beside_live.see()
        runs, waits = self._wanted(self.live_lanes)
        return self.beside_live.allows(waits or (live and not self._starved), runs)

    def allows_lane(self, lane: Lane) -> bool:
        """Whether a lane that is not live may have its turn: one of long recordings as far as it
        has a part of the time beside short ones.
        """
        return not lane.long or self.long_share.allows(self._short_ones_wait())

    def count_other(self, lane: Lane, began: float) -> None:
        """A lane that is not live had its turn, which has taken since `began`."""
        self._last_other = lane
        self.beside_live.count(began)
        if self._lanes[lane].grown:
            self._encoding = self.clock() - began
        else:
            self._owed = max(0.0, self._owed + began - self.clock())
        if lane.long:
            self.long_share.count(began)

    def plan(self, lane: Lane, load: Load) -> Plan:
        """What a batch does next."""
        queue = self._lanes[lane]
        small = not lane.live and self.beside_live.small
        if small and load.encoded:
            return Plan([], 0, math.inf, decodes=False)
        steps_first = small and (queue.grown or self._owed > 0) and bool(queue.running)
        if steps_first or not queue.waiting or not self._may_enter(lane):
            return Plan([], 0, math.inf, decodes=True)
        others = load.newcomers or len(self.clients) > 1
        until = load.began + self.limits.hold_seconds
        if not (others or self.limits.shared):
            until = math.inf
        eligible = self._eligible(queue, load)
        if load.encoded and self.clock() >= until:
            return Plan([], 0, until, decodes=others or not eligible)
        entering = encoded_together(eligible)[: 1 if small else MAX_ENCODER_BATCH]
        for each in entering:
            self._set(each, Status.PREPARING)
        rows = len(queue.running) + len(eligible)
        return Plan(entering, rows, until, decodes=True)

    def entered(self, plan: Plan, count: int, began: float) -> None:
        """The first `count` of those that were to enter are in rows; it has taken since `began`."""
        now = self.clock()
        for each in plan.entering[count:]:
            self._set(each, _queued(each))
        if count:
            self._rests_until[plan.entering[0].lane.live] = now + (now - began)
        for each in plan.entering[:count]:
            self._lanes[each.lane].enter(each)
            self._set(each, Status.RUNNING)
            self._fair_share.give(each.client)
            if each.long:
                self.long_share.count(began)

    def stepped(self, lane: Lane, finished: abc.Sequence[Finished]) -> list[Finished]:
        """A batch has taken a step, and rows of it are free again. Returns what is done; rejected
        texts are retried.
        """
        queue = self._lanes[lane]
        queue.grown = False
        self._plain_steps[lane] += lane.num_beams == 1
        if lane.live:
            self.beside_live.see()
            self.beside_live.stepped()
        done, retried = [], []
        for sequence, result in finished:
            del queue.running[sequence]
            fallback = sequence.options.fallback
            if sequence.may_retry and fallback is not None and fallback.rejects(result):
                sequence.rejected = result
                retried.append(sequence)
            else:
                self._set(sequence, Status.DONE)
                done.append((sequence, result))
        for each in reversed(retried):
            self._set(each, Status.RETRYING)
            each.gathers_until = self._plain_steps[_plain(lane)] + GATHERING_STEPS
            each.client.stats.retries += 1
            self._lane(each.lane).waiting.appendleft(each)
        queue.forget_done()
        if not queue.running:
            self._end_turn(lane)
        return done

    def cancel(self, client: Client) -> list[Sequence]:
        """Forget the sequences of a client. Returns those that were in rows.

        Beside live windows the rows of all others pay for those that leave: a window is encoded
        for each newcomer between two of their steps. So they are owed steps first.
        """
        rows = []
        for each in [each for each in self._present() if each.client is client]:
            if each.status is Status.RUNNING:
                del self._lanes[each.lane].running[each]
                rows.append(each)
                if not each.lane.live and self.beside_live.small:
                    self._owed += IN_VAIN * self._encoding
            else:
                self._lanes[each.lane].waiting.remove(each)
            self._set(each, Status.DONE)
        for queue in self._lanes.values():
            queue.forget_done()
            if queue.empty:
                self._end_turn(queue.lane)
        return rows

    # After a failure

    def preempt(self, lane: Lane) -> None:
        """Everything in a batch goes back to the front of its queue, in its order."""
        queue = self._lanes[lane]
        for each in [*queue.preparing, *queue.running]:
            self._set(each, _queued(each))
        queue.requeue()

    def isolate(self, lane: Lane) -> None:
        """From now on what is queued for a batch runs apart from all others, client by client: a
        step that several shared has failed. The one at fault fails again alone, and harms nobody
        else.
        """
        self._lanes[lane].isolate()

    def wait_for_others(self, lane: Lane) -> None:
        """A batch waits until the rows of others have ended, and then runs alone until its own
        have: before that nothing else enters anywhere.
        """
        if lane not in self._starved:
            self._starved.append(lane)

    # Inside

    def _present(self) -> abc.Iterator[Sequence]:
        for queue in self._lanes.values():
            yield from queue

    def _lane(self, lane: Lane) -> LaneQueue:
        return self._lanes.setdefault(lane, LaneQueue(lane))

    def _set(self, sequence: Sequence, status: Status) -> None:
        """The one transition function."""
        if status not in FOLLOWING[sequence.status]:
            raise AssertionError(f"{sequence.status} is not followed by {status}")
        sequence.status = status

    def _may_enter(self, lane: Lane) -> bool:
        """Whether no batch waits for memory, or it is the turn of this one and nothing runs."""
        return not self._starved or (self._starved[0] == lane and not self.running)

    def _wanted(self, lanes: abc.Iterable[Lane]) -> tuple[bool, bool]:
        """Whether windows of lanes run, and whether some wait that may enter."""
        queues = [self._lanes[lane] for lane in lanes]
        waits = any(each.waiting and self._may_enter(each.lane) for each in queues)
        return any(each.running for each in queues), waits

    def _short_ones_wait(self) -> bool:
        """Whether short recordings have rows apart from those of long ones, or may have some: the
        last windows of a long one are no short one beside its others.
        """
        short = [each for each in self._lanes if not (each.live or each.long)]
        runs, waits = self._wanted(short)
        if runs or not waits:
            return runs
        long = {each.client for lane, queue in self._lanes.items() if lane.long for each in queue}
        return any(each.client not in long for lane in short for each in self._lanes[lane].waiting)

    def _end_turn(self, lane: Lane) -> None:
        if lane in self._starved:
            self._starved.remove(lane)

    def _eligible(self, queue: LaneQueue, load: Load) -> list[Sequence]:
        """The waiting sequences whose turn it is, as far as rows may be had for them."""
        most, live = min(self.limits.max_rows, load.rows), queue.lane.live
        if len(queue.running) >= most:
            return []
        allowed = [each for each in queue.allowed() if not self._is_gathering(each)]
        rows = Counter(
            each.client
            for other in self._lanes.values()
            for each in other.running
            if other.lane.live == live
        )
        share = most
        if len(rows) > 1 and self.clock() < self._rests_until[live]:
            share = 1  # more only when as much time has passed in steps as the last newcomers took
        room = Room(
            free=most - len(queue.running),
            share=share,
            for_long=self._rows_for_long(queue, most, allowed),
            short_turns=queue.short_turns_left,
        )
        self._fair_share.keep(self.clients)
        return self._fair_share.choose(allowed, rows, room)

    def _is_gathering(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for others of its client, which plain rows may yet send after
        it. Not beside one that runs already: then the sooner it starts, the more they share.
        """
        if not sequence.retried:
            return False
        lane, client = sequence.lane, sequence.client
        if self._plain_steps[_plain(lane)] >= sequence.gathers_until:
            return False
        plain = self._lanes.get(_plain(lane))
        return plain is not None and plain.runs(client) and not self._lanes[lane].runs(client)

    def _rows_for_long(self, queue: LaneQueue, most: int, waiting: list[Sequence]) -> float:
        """How many more of a batch's rows long recordings may have now.

        Of those that wait a client's next one counts: the last windows of a long recording are no
        short one beside the others.
        """
        if queue.lane.long or not self.limits.shared:
            return math.inf
        running = queue.running
        long = sum(each.long for each in running)
        following = {each.client: each for each in reversed(waiting)}.values()
        beside_short = not all(each.long for each in [*following, *running])
        if not self.long_share.allows(beside_short):
            return 0
        return most - most // 4 - long


def _queued(sequence: Sequence) -> Status:
    """What a sequence is outside of rows."""
    return Status.RETRYING if sequence.retried else Status.WAITING


def _plain(lane: Lane) -> Lane:
    """Where the first attempts of a lane's windows run."""
    return lane._replace(num_beams=1)


def encoded_together(sequences: list[Sequence]) -> list[Sequence]:
    """The first of the sequences, and those that are drafted for if it is, or as it is not."""

    def kind(each: Sequence) -> tuple[bool, int | None]:
        return bool(each.options.assisted), each.options.drafts

    return [each for each in sequences if kind(each) == kind(sequences[0])]
