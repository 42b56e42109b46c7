"""Who is decoded next: every sequence that waits or runs, by plain values, without a device.

Windows, not requests, are the unit. A free row goes to the client with the fewest rows, among
several to the one whose last turn is longest ago, and those of which little is left go before long
ones, which in a shared engine leave a quarter of the rows to them. So a short recording waits until
one row is free, not until a long one has ended, and nothing that runs is interrupted.

All rows of a step are alike, so there is a queue and a batch for each number of beams. A window
whose text was rejected leaves its batch for that of more beams, at the front of its queue, and
waits there a while for others of its client that may follow: rows cost least together.
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
from asr.engine.sequence import FOLLOWING, Sequence, Status
from asr.engine.session import Client

MAX_ENCODER_BATCH = 16  # windows; bounds the encoder's memory beside the caches
# Short recordings go first, but every so many turns it is the turn of who waits longest.
LONGEST_WAITING_EVERY = 8
# Beside short recordings the windows of long ones are encoded in this part of the time.
LONG_SHARE = 1 / 4
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
    """What a batch does next: let the sequences that are `entering` into rows.

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


class LongShare:
    """Beside short recordings, what holds up all rows is done for long ones in a part of the time
    alone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rests_until = -math.inf

    def allows(self, beside_short: bool) -> bool:
        """Whether something may be done for a long recording now."""
        return not beside_short or self._clock() >= self._rests_until

    def count(self, started: float) -> None:
        """Remember how long something took that was done for long recordings."""
        now = self._clock()
        self._rests_until = now + (now - started) * (1 / LONG_SHARE - 1)


class Scheduler:
    """Owns the sequences and their status; `clock` returns seconds."""

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limits, self.clock = limits, clock
        self.long_share = LongShare(clock)
        # By number of beams: what waits or is being prepared, in order, and what runs.
        self._queues: dict[int, deque[Sequence]] = {}
        self._running: dict[int, dict[Sequence, None]] = {}
        self._apart: dict[int, deque[set[Sequence]]] = {}  # by number of beams: see `isolate`
        # The batches that found no memory beside others, in the order of their turns.
        self._starved: deque[int] = deque()
        self._plain_steps = 0
        self._served = 0  # rows that were given
        self._short_turns: Counter[int] = Counter()  # by number of beams: since a long one's turn
        self._turns: dict[Client, int] = {}  # when each client was given a row last, or came
        self._rests_until = -math.inf

    # What waits and what runs

    @property
    def batches(self) -> list[int]:
        """The numbers of beams that have been in use."""
        return list(self._queues)

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

    def suspects(self, num_beams: int) -> list[Client]:
        """The clients for which a step of a batch has just failed: those that ran or were to."""
        present = [*self._running[num_beams], *self._preparing(num_beams)]
        return list(dict.fromkeys(each.client for each in present))

    def queued(self, num_beams: int) -> list[Client]:
        """The clients that have a window in a batch or its queue."""
        present = [*self._running[num_beams], *self._queues[num_beams]]
        return list(dict.fromkeys(each.client for each in present))

    def others_run(self, num_beams: int) -> bool:
        """Whether rows of other batches run."""
        return any(rows for beams, rows in self._running.items() if beams != num_beams)

    def is_idle(self, num_beams: int) -> bool:
        """Whether no row of a batch is in use."""
        return not self._running.get(num_beams) and not self._preparing(num_beams)

    # What happens

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue new sequences behind those that wait."""
        for each in sequences:
            assert each.status is Status.WAITING
            self._queue(each.num_beams).append(each)

    def plan(self, num_beams: int, load: Load) -> Plan:
        """What a batch does next."""
        if not self._queues[num_beams] or not self._may_enter(num_beams):
            return Plan([], 0, math.inf, decodes=True)
        others = load.newcomers or len(self.clients) > 1
        until = load.began + self.limits.hold_seconds
        if not (others or self.limits.shared):
            until = math.inf
        eligible = self._eligible(num_beams, load)
        if load.encoded and self.clock() >= until:
            return Plan([], 0, until, decodes=others or not eligible)
        entering = encoded_together(eligible)[:MAX_ENCODER_BATCH]
        for each in entering:
            self._set(each, Status.PREPARING)
        rows = len(self._running[num_beams]) + len(eligible)
        return Plan(entering, rows, until, decodes=True)

    def entered(self, plan: Plan, count: int, began: float) -> None:
        """The first `count` of those that were to enter are in rows; it has taken since `began`."""
        now = self.clock()
        for each in plan.entering[count:]:
            self._set(each, _queued(each))
        if count:
            self._rests_until = now + (now - began)
        for each in plan.entering[:count]:
            self._queues[each.num_beams].remove(each)
            self._running[each.num_beams][each] = None
            self._set(each, Status.RUNNING)
            short = 0 if each.long else self._short_turns[each.num_beams] + 1
            self._short_turns[each.num_beams] = short
            self._served += 1
            self._turns[each.client] = self._served
            if each.long:
                self.long_share.count(began)

    def stepped(self, num_beams: int, finished: Values[Finished]) -> list[Finished]:
        """A batch has taken a step, and rows of it are free again. Returns what is done; rejected
        texts are retried.
        """
        self._plain_steps += num_beams == 1
        done, retried = [], []
        for sequence, result in finished:
            del self._running[num_beams][sequence]
            fallback = sequence.options.fallback
            if sequence.may_retry and fallback is not None and fallback.rejects(result):
                retried.append(sequence)
            else:
                self._set(sequence, Status.DONE)
                done.append((sequence, result))
        for each in reversed(retried):
            self._set(each, Status.RETRYING)
            each.retried, each.gathers_until = True, self._plain_steps + GATHERING_STEPS
            each.client.stats.retries += 1
            self._queue(each.num_beams).appendleft(each)
        if not self._running[num_beams]:
            self._end_turn(num_beams)
        return done

    def cancel(self, client: Client) -> list[Sequence]:
        """Forget the sequences of a client. Returns those that were in rows."""
        rows = []
        for each in [each for each in self._present() if each.client is client]:
            if each.status is Status.RUNNING:
                del self._running[each.num_beams][each]
                rows.append(each)
            else:
                self._queues[each.num_beams].remove(each)
            self._set(each, Status.DONE)
        for num_beams, queue in self._queues.items():
            if not queue and not self._running[num_beams]:
                self._end_turn(num_beams)
        return rows

    # After a failure

    def preempt(self, num_beams: int) -> None:
        """Everything in a batch goes back to the front of its queue, in its order."""
        for each in self._preparing(num_beams):
            self._set(each, _queued(each))
        for each in reversed(self._running[num_beams]):
            self._set(each, _queued(each))
            self._queues[num_beams].appendleft(each)
        self._running[num_beams].clear()

    def isolate(self, num_beams: int) -> None:
        """From now on what is queued for a batch runs apart from all others, client by client: a
        step that several shared has failed. The one at fault fails again alone, and harms nobody
        else.
        """
        groups: dict[Client, set[Sequence]] = defaultdict(set)
        for each in self._queues[num_beams]:
            groups[each.client].add(each)
        self._apart[num_beams] = deque(groups.values())

    def wait_for_others(self, num_beams: int) -> None:
        """A batch waits until the rows of others have ended, and then runs alone until its own
        have: before that nothing else enters anywhere.
        """
        if num_beams not in self._starved:
            self._starved.append(num_beams)

    # Inside

    def _present(self) -> Iterator[Sequence]:
        for num_beams, queue in self._queues.items():
            yield from self._running[num_beams]
            yield from queue

    def _preparing(self, num_beams: int) -> list[Sequence]:
        queue = self._queues.get(num_beams, ())
        return [each for each in queue if each.status is Status.PREPARING]

    def _queue(self, num_beams: int) -> deque[Sequence]:
        if num_beams not in self._queues:
            self._queues[num_beams], self._running[num_beams] = deque(), {}
        return self._queues[num_beams]

    def _set(self, sequence: Sequence, status: Status) -> None:
        """The one transition function."""
        if status not in FOLLOWING[sequence.status]:
            raise AssertionError(f"{sequence.status} is not followed by {status}")
        sequence.status = status

    def _may_enter(self, num_beams: int) -> bool:
        """Whether no batch waits for memory, or it is the turn of this one and nothing runs."""
        return not self._starved or (self._starved[0] == num_beams and not self.running)

    def _end_turn(self, num_beams: int) -> None:
        if num_beams in self._starved:
            self._starved.remove(num_beams)

    def _eligible(self, num_beams: int, load: Load) -> list[Sequence]:
        """The waiting sequences whose turn it is, as far as rows may be had for them."""
        most, running = min(self.limits.max_rows, load.rows), self._running[num_beams]
        if len(running) >= most:
            return []
        allowed = [each for each in self._allowed(num_beams) if not self._is_gathering(each)]
        rows = Counter(each.client for batch in self._running.values() for each in batch)
        share = most
        if len(rows) > 1 and self.clock() < self._rests_until:
            share = 1  # more only when as much time has passed in steps as the last newcomers took
        for_long = self._rows_for_long(most, allowed, running)
        due = LONGEST_WAITING_EVERY - 1 - self._short_turns[num_beams]
        return self._choose(allowed, rows, Room(most - len(running), share, for_long), due)

    def _allowed(self, num_beams: int) -> Values[Sequence]:
        """Those in the queue that may run now: all, once nothing runs apart any more."""
        queue, groups = self._queues[num_beams], self._apart.get(num_beams)
        while groups and not any(
            each.num_beams == num_beams and each.status is not Status.DONE for each in groups[0]
        ):
            groups.popleft()
        return [each for each in queue if each in groups[0]] if groups else queue

    def _is_gathering(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for others of its client, which plain rows may yet send after
        it. Not beside one that runs already: then the sooner it starts, the more they share.
        """
        if not sequence.retried or self._plain_steps >= sequence.gathers_until:
            return False
        plain = self._running.get(1, {})
        running, client = self._running[sequence.num_beams], sequence.client
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
