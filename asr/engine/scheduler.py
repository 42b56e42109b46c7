"""Who is decoded next: every sequence that waits or runs, by plain values, without a device.

Windows, not requests, are the unit. A free row goes to the client with the fewest rows, among
several to the one whose last turn is longest ago, and those of which little is left go before long
ones, which in a shared engine leave a quarter of the rows to them. So a short recording waits until
one row is free, not until a long one has ended, and nothing that runs is interrupted.

All rows of a step are alike, so there is a lane, a queue and a batch, for each number of beams. A
window whose text was rejected leaves its lane for that of more beams, at the front of its queue,
and waits there a while for others of its client that may follow: rows cost least together.

Live windows, of somebody who is speaking now, have lanes of their own, which go first, the oldest
window before all. While one is here the others have a part of the time (`asr.engine.shares`): they
keep their rows, which wait.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Values
from dataclasses import dataclass
from typing import NamedTuple

from asr.engine.recovery import MAX_ROWS
from asr.engine.request import DecodeResult
from asr.engine.sequence import FOLLOWING, Lane, Sequence, Status
from asr.engine.session import Client
from asr.engine.shares import LONG_SHARE, BesideLive, Share

MAX_ENCODER_BATCH = 16  # windows; bounds the encoder's memory beside the caches
# Short recordings go first, but every so many turns it is the turn of who waits longest.
LONGEST_WAITING_EVERY = 8
# Steps of plain rows for which a rejected text waits for others of its client.
GATHERING_STEPS = 64

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


class Room(NamedTuple):
    """Rows of a batch that may be given now.

    So many are `free`, `for_long` of them for long recordings; no client has more than `share`, or
    than its batch size.
    """

    free: int
    share: int
    for_long: float


class Scheduler:
    """Owns the sequences and their status; `clock` returns seconds."""

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limits, self.clock = limits, clock
        self.long_share, self.beside_live = Share(LONG_SHARE, clock), BesideLive(clock)
        # By lane: what waits or is being prepared, in order, and what runs.
        self._queues: dict[Lane, deque[Sequence]] = {}
        self._running: dict[Lane, dict[Sequence, None]] = {}
        self._apart: dict[Lane, deque[set[Sequence]]] = {}  # see `isolate`
        # The lanes that found no memory beside others, in the order of their turns.
        self._starved: deque[Lane] = deque()
        self._grown: set[Lane] = set()  # those given rows since their last step
        self._last_other: Lane | None = None  # that had its turn beside live ones
        self._served = 0  # rows that were given
        self._short_turns: Counter[Lane] = Counter()  # since a long one's turn
        self._turns: dict[Client, int] = {}  # when each client was given a row last, or came
        # Of live windows and of the others, each for themselves:
        self._plain_steps: Counter[bool] = Counter()
        self._rests_until = {True: -math.inf, False: -math.inf}

    # What waits and what runs

    @property
    def lanes(self) -> list[Lane]:
        """Those that have been in use."""
        return list(self._queues)

    @property
    def live_lanes(self) -> list[Lane]:
        """Those of live windows, which go first."""
        return [lane for lane in self._queues if lane.live]

    @property
    def other_lanes(self) -> list[Lane]:
        """Those of all other windows, the one first whose turn it is."""
        lanes = [lane for lane in self._queues if not lane.live]
        turn = 0 if self._last_other is None else lanes.index(self._last_other) + 1
        return lanes[turn:] + lanes[:turn]

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return any(self._queues.values()) or any(self._running.values())

    @property
    def waiting(self) -> int:
        """How many windows wait for a row."""
        return sum(map(len, self._queues.values()))

    @property
    def running(self) -> int:
        """How many windows are in rows."""
        return sum(map(len, self._running.values()))

    @property
    def clients(self) -> set[Client]:
        """Those that have a window here."""
        return {each.client for each in self._present()}

    def suspects(self, lane: Lane) -> list[Client]:
        """The clients for which a step of a batch has just failed: those that ran or were to."""
        present = [*self._running[lane], *self._preparing(lane)]
        return list(dict.fromkeys(each.client for each in present))

    def queued(self, lane: Lane) -> list[Client]:
        """The clients that have a window in a batch or its queue."""
        present = [*self._running[lane], *self._queues[lane]]
        return list(dict.fromkeys(each.client for each in present))

    def others_run(self, lane: Lane) -> bool:
        """Whether rows of other batches run."""
        return any(rows for each, rows in self._running.items() if each != lane)

    def is_idle(self, lane: Lane) -> bool:
        """Whether no row of a batch is in use."""
        return not self._running.get(lane) and not self._preparing(lane)

    # What happens

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue new sequences behind those that wait."""
        for each in sequences:
            assert each.status is Status.WAITING
            self._queue(each.lane).append(each)
            if each.lane.live:
                self.beside_live.see()

    def allows_others(self, live: bool = False) -> bool:
        """Whether something may be done now for windows that are not live: where no live one runs
        or may enter, and as far as they have a part of the time beside those.

        `live` says that one has come, or is about to, of which the engine does not know yet.
        """
        if live:
            self.beside_live.see()
        lanes = self.live_lanes
        waits = any(self._queues[lane] and self._may_enter(lane) for lane in lanes)
        runs = any(self._running[lane] for lane in lanes)
        return self.beside_live.allows(waits or (live and not self._starved), runs)

    def count_other(self, lane: Lane, began: float) -> None:
        """A lane that is not live had its turn, which has taken since `began`."""
        self._last_other = lane
        self.beside_live.count(began)

    def plan(self, lane: Lane, load: Load) -> Plan:
        """What a batch does next."""
        small = not lane.live and self.beside_live.small
        if small and load.encoded:
            return Plan([], 0, math.inf, decodes=False)
        steps_first = small and lane in self._grown and bool(self._running[lane])
        if steps_first or not self._queues[lane] or not self._may_enter(lane):
            return Plan([], 0, math.inf, decodes=True)
        others = load.newcomers or len(self.clients) > 1
        until = load.began + self.limits.hold_seconds
        if not (others or self.limits.shared):
            until = math.inf
        eligible = self._eligible(lane, load)
        if load.encoded and self.clock() >= until:
            return Plan([], 0, until, decodes=others or not eligible)
        entering = encoded_together(eligible)[: 1 if small else MAX_ENCODER_BATCH]
        for each in entering:
            self._set(each, Status.PREPARING)
        rows = len(self._running[lane]) + len(eligible)
        return Plan(entering, rows, until, decodes=True)

    def entered(self, plan: Plan, count: int, began: float) -> None:
        """The first `count` of those that were to enter are in rows; it has taken since `began`."""
        now = self.clock()
        for each in plan.entering[count:]:
            self._set(each, _queued(each))
        if count:
            lane = plan.entering[0].lane
            self._rests_until[lane.live] = now + (now - began)
            self._grown.add(lane)
        for each in plan.entering[:count]:
            self._queues[each.lane].remove(each)
            self._running[each.lane][each] = None
            self._set(each, Status.RUNNING)
            short = 0 if each.long else self._short_turns[each.lane] + 1
            self._short_turns[each.lane] = short
            self._served += 1
            self._turns[each.client] = self._served
            if each.long:
                self.long_share.count(began)

    def stepped(self, lane: Lane, finished: Values[Finished]) -> list[Finished]:
        """A batch has taken a step, and rows of it are free again. Returns what is done; rejected
        texts are retried.
        """
        self._grown.discard(lane)
        self._plain_steps[lane.live] += lane.num_beams == 1
        if lane.live:
            self.beside_live.see()
            self.beside_live.stepped()
        done, retried = [], []
        for sequence, result in finished:
            del self._running[lane][sequence]
            fallback = sequence.options.fallback
            if sequence.may_retry and fallback is not None and fallback.rejects(result):
                retried.append(sequence)
            else:
                self._set(sequence, Status.DONE)
                done.append((sequence, result))
        for each in reversed(retried):
            self._set(each, Status.RETRYING)
            each.retried = True
            each.gathers_until = self._plain_steps[lane.live] + GATHERING_STEPS
            each.client.stats.retries += 1
            self._queue(each.lane).appendleft(each)
        if not self._running[lane]:
            self._end_turn(lane)
        return done

    def cancel(self, client: Client) -> list[Sequence]:
        """Forget the sequences of a client. Returns those that were in rows."""
        rows = []
        for each in [each for each in self._present() if each.client is client]:
            if each.status is Status.RUNNING:
                del self._running[each.lane][each]
                rows.append(each)
            else:
                self._queues[each.lane].remove(each)
            self._set(each, Status.DONE)
        for lane, queue in self._queues.items():
            if not queue and not self._running[lane]:
                self._end_turn(lane)
        return rows

    # After a failure

    def preempt(self, lane: Lane) -> None:
        """Everything in a batch goes back to the front of its queue, in its order."""
        for each in self._preparing(lane):
            self._set(each, _queued(each))
        for each in reversed(self._running[lane]):
            self._set(each, _queued(each))
            self._queues[lane].appendleft(each)
        self._running[lane].clear()

    def isolate(self, lane: Lane) -> None:
        """From now on what is queued for a batch runs apart from all others, client by client: a
        step that several shared has failed. The one at fault fails again alone, and harms nobody
        else.
        """
        groups: dict[Client, set[Sequence]] = defaultdict(set)
        for each in self._queues[lane]:
            groups[each.client].add(each)
        self._apart[lane] = deque(groups.values())

    def wait_for_others(self, lane: Lane) -> None:
        """A batch waits until the rows of others have ended, and then runs alone until its own
        have: before that nothing else enters anywhere.
        """
        if lane not in self._starved:
            self._starved.append(lane)

    # Inside

    def _present(self) -> Iterator[Sequence]:
        for lane, queue in self._queues.items():
            yield from self._running[lane]
            yield from queue

    def _preparing(self, lane: Lane) -> list[Sequence]:
        queue = self._queues.get(lane, ())
        return [each for each in queue if each.status is Status.PREPARING]

    def _queue(self, lane: Lane) -> deque[Sequence]:
        if lane not in self._queues:
            self._queues[lane], self._running[lane] = deque(), {}
        return self._queues[lane]

    def _set(self, sequence: Sequence, status: Status) -> None:
        """The one transition function."""
        if status not in FOLLOWING[sequence.status]:
            raise AssertionError(f"{sequence.status} is not followed by {status}")
        sequence.status = status

    def _may_enter(self, lane: Lane) -> bool:
        """Whether no batch waits for memory, or it is the turn of this one and nothing runs."""
        return not self._starved or (self._starved[0] == lane and not self.running)

    def _end_turn(self, lane: Lane) -> None:
        if lane in self._starved:
            self._starved.remove(lane)

    def _eligible(self, lane: Lane, load: Load) -> list[Sequence]:
        """The waiting sequences whose turn it is, as far as rows may be had for them."""
        most, running = min(self.limits.max_rows, load.rows), self._running[lane]
        if len(running) >= most:
            return []
        allowed = [each for each in self._allowed(lane) if not self._is_gathering(each)]
        rows = Counter(
            each.client
            for other, batch in self._running.items()
            for each in batch
            if other.live == lane.live
        )
        share = most
        if len(rows) > 1 and self.clock() < self._rests_until[lane.live]:
            share = 1  # more only when as much time has passed in steps as the last newcomers took
        for_long = self._rows_for_long(most, allowed, running)
        due = LONGEST_WAITING_EVERY - 1 - self._short_turns[lane]
        return self._choose(allowed, rows, Room(most - len(running), share, for_long), due)

    def _allowed(self, lane: Lane) -> Values[Sequence]:
        """Those in the queue that may run now: all, once nothing runs apart any more."""
        queue, groups = self._queues[lane], self._apart.get(lane)
        while groups and not any(
            each.lane == lane and each.status is not Status.DONE for each in groups[0]
        ):
            groups.popleft()
        return [each for each in queue if each in groups[0]] if groups else queue

    def _is_gathering(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for others of its client, which plain rows may yet send after
        it. Not beside one that runs already: then the sooner it starts, the more they share.
        """
        lane, client = sequence.lane, sequence.client
        if not sequence.retried or self._plain_steps[lane.live] >= sequence.gathers_until:
            return False
        plain, running = self._running.get(lane._replace(num_beams=1), {}), self._running[lane]
        return any(each.client is client for each in plain) and not any(
            each.client is client for each in running
        )

    def _rows_for_long(
        self, most: int, waiting: list[Sequence], running: Iterable[Sequence]
    ) -> float:
        """How many more of a batch's rows long recordings may have now.

        Of those that wait a client's next one counts: the last windows of a long recording are no
        short one beside the others.
        """
        if not self.limits.shared:
            return math.inf
        long = sum(each.long for each in running)
        following = {each.client: each for each in reversed(waiting)}.values()
        beside_short = not all(each.long for each in [*following, *running])
        if not self.long_share.allows(beside_short):
            return 0
        return most - most // 4 - long

    def _choose(
        self, waiting: Iterable[Sequence], rows: Counter[Client], room: Room, due: int
    ) -> list[Sequence]:
        """As many of the waiting sequences as there is room for. `rows` are those that clients
        have. After `due` short recordings it is the turn of who waits longest, until that has been
        a long one. A client's own sequences keep their order.
        """
        queues: dict[Client, deque[Sequence]] = defaultdict(deque)
        for sequence in waiting:
            queues[sequence.client].append(sequence)
        self._turns = {each: self._turns.get(each, self._served) for each in self.clients}
        clients, turn = list(queues), self._served
        chosen: list[Sequence] = []
        for_long = room.for_long
        orders: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
        for place, each in enumerate(clients):
            heapq.heappush(orders[queues[each][0].long], (rows[each], self._turns[each], place))
        while len(chosen) < room.free:
            kinds = [long for long, order in orders.items() if order and (for_long > 0 or not long)]
            if not kinds:
                break
            long = kinds[0]
            if due <= 0:
                long = min(kinds, key=lambda kind: orders[kind][0])
            taken, _, place = heapq.heappop(orders[long])
            queue = queues[clients[place]]
            if taken >= min(room.share, queue[0].options.batch_size):
                continue
            chosen.append(queue.popleft())
            for_long -= long
            due = LONGEST_WAITING_EVERY - 1 if long else due - 1
            turn += 1
            if queue:
                heapq.heappush(orders[queue[0].long], (taken + 1, turn, place))
        return chosen


def _queued(sequence: Sequence) -> Status:
    """What a sequence is outside of rows."""
    return Status.RETRYING if sequence.retried else Status.WAITING


def encoded_together(sequences: list[Sequence]) -> list[Sequence]:
    """The first of the sequences, and those that are drafted for if it is, or as it is not."""

    def kind(each: Sequence) -> tuple[bool, int | None]:
        return each.options.assisted, each.options.drafts

    return [each for each in sequences if kind(each) == kind(sequences[0])]
