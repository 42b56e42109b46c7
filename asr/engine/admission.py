"""Who gets the next free rows, and how long newcomers may hold up the rows that run.

The one decision: windows, not requests, are the unit. A free row goes to the session with the
fewest rows, among several to the one that has waited longest for its turn, and those of which
little is left go before long ones, which leave a quarter of the rows to them. So a short recording
waits until one row is free, not until a long one has ended, and nothing that runs is interrupted.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable

from asr.engine.sequence import Sequence
from asr.engine.state_memory import MAX_ROWS

# Short recordings go first, but every so many turns it is the turn of who waits longest.
LONGEST_WAITING_EVERY = 8
# A recording with more windows left is long: two minutes.
LONG_WINDOWS = 4
# Beside short recordings the windows of long ones are encoded in this part of the time.
LONG_SHARE = 1 / 4
# Seconds for which the windows of newcomers are encoded between two steps; on a CPU, where windows
# are encoded one by one, at least one. A step of whisper-base takes a few hundredths of a second.
HOLD_SECONDS = 0.1


class Admission:
    """Chooses among the waiting sequences of all lanes.

    At most `max_rows` rows run in a lane. `hold_seconds` bounds encoding beside other sessions, and
    where `newcomer` says that one has come. With a `newcomer` long recordings together leave a
    quarter of the rows free, for others that may come. `elsewhere` names sessions whose turns are
    to be remembered though they are not among those to choose from: they wait in another lane.
    """

    def __init__(self, hold_seconds: float = HOLD_SECONDS) -> None:
        self.max_rows = MAX_ROWS
        self.hold_seconds = hold_seconds
        self.newcomer: Callable[[], bool] | None = None
        self.elsewhere: Callable[[], Iterable[Hashable]] = tuple
        self._rests_until = self._long_rest_until = -math.inf
        self.clock: Callable[[], float] = time.perf_counter
        self._served = 0
        self._turns: dict[Hashable, int] = {}  # when each session was given a row last, or came

    def choose(
        self,
        waiting: Iterable[Sequence],
        rows: Counter[Hashable],
        free: int,
        most: float = math.inf,
        for_long: float = math.inf,
    ) -> list[Sequence]:
        """Up to `free` of the waiting sequences, for rows that are free; `for_long` of long ones.

        `rows` counts those that each session has. No session gets more than its batch size, or than
        `most`; its own sequences keep their order.
        """
        queues: dict[Hashable, deque[Sequence]] = defaultdict(deque)
        for sequence in waiting:
            queues[sequence.session].append(sequence)
        present = {*queues, *rows, *self.elsewhere()}
        self._turns = {each: self._turns.get(each, self._served) for each in present}
        sessions, turn = list(queues), self._served
        chosen: list[Sequence] = []
        orders: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
        for place, each in enumerate(sessions):
            long = is_long(queues[each][0])
            heapq.heappush(orders[long], (rows[each], self._turns[each], place))
        while len(chosen) < free:
            kinds = [long for long, order in orders.items() if order and (for_long > 0 or not long)]
            if not kinds:
                break
            long = kinds[0]
            if (turn + 1) % LONGEST_WAITING_EVERY == 0:
                long = min(kinds, key=lambda kind: orders[kind][0])
            taken, _, place = heapq.heappop(orders[long])
            queue = queues[sessions[place]]
            if taken >= min(most, queue[0].options.batch_size):
                continue
            chosen.append(queue.popleft())
            for_long -= long
            turn += 1
            if queue:
                heapq.heappush(orders[long], (taken + 1, turn, place))
        return chosen

    def share(self, limit: int, rows: Counter[Hashable]) -> int:
        """How many of a lane's `limit` rows one session may have now.

        Where several sessions run, each gets its first row at once, and more only when as much time
        has passed in steps as the last newcomers took.
        """
        return 1 if len(rows) > 1 and self.clock() < self._rests_until else limit

    def rows_for_long(
        self, limit: int, waiting: Iterable[Sequence], running: Iterable[Sequence]
    ) -> float:
        """How many more of a lane's `limit` rows long recordings may have now."""
        if self.newcomer is None:
            return math.inf
        runs_long = [is_long(each) for each in running]
        if not self.may_serve_long(
            not all(runs_long) or any(not is_long(each) for each in waiting)
        ):
            return 0
        return limit - limit // 4 - sum(runs_long)

    def may_serve_long(self, beside_short: bool) -> bool:
        """Whether something that holds up all rows may be done for a long recording."""
        return not beside_short or self.clock() >= self._long_rest_until

    def count_long(self, started: float) -> None:
        """Remember how long something took that was done for long recordings."""
        now = self.clock()
        self._long_rest_until = now + (now - started) * (1 / LONG_SHARE - 1)

    def count(self, admitted: Iterable[Sequence], started: float) -> None:
        """Remember whose turn it was, and how long it took since `started`."""
        now = self.clock()
        self._rests_until = now + (now - started)
        for each in admitted:
            self._served += 1
            self._turns[each.session] = self._served
            if is_long(each):
                self.count_long(started)

    def pause(self, waiting: Iterable[Sequence], rows: Counter[Hashable]) -> Callable[[], bool]:
        """Says, when called, whether encoding newcomers must pause for a step: after a while, and
        never where one session is alone.
        """
        deadline = self.clock() + self.hold_seconds
        alone = len({*rows, *(each.session for each in waiting)}) <= 1

        def must_pause() -> bool:
            others = not alone or (self.newcomer is not None and self.newcomer())
            return others and self.clock() >= deadline

        return must_pause


def is_long(sequence: Sequence) -> bool:
    """Whether much of its recording is left."""
    return sequence.request.windows_left > LONG_WINDOWS


class Quarantine:
    """Sequences that run apart from all others, session by session, because a step that several
    sessions shared has failed: the one at fault fails again alone, and harms nobody else.
    """

    def __init__(self) -> None:
        self._groups: deque[set[Sequence]] = deque()

    def begin(self, sequences: Iterable[Sequence]) -> None:
        """Put sequences apart, those of each session together."""
        groups: dict[Hashable, set[Sequence]] = defaultdict(set)
        for each in sequences:
            groups[each.session].add(each)
        self._groups = deque(groups.values())

    def allowed(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
        """Those of the waiting sequences that may run now: all, once nothing is apart any more."""
        present = {*waiting, *running}
        while self._groups and not self._groups[0] & present:
            self._groups.popleft()
        if not self._groups:
            return list(waiting)
        return [each for each in waiting if each in self._groups[0]]


def encoded_together(sequences: list[Sequence]) -> list[Sequence]:
    """The first of the sequences, and those that are drafted for if it is, or as it is not."""

    def kind(each: Sequence) -> tuple[bool, int | None]:
        return each.options.assisted, each.options.drafts

    return [each for each in sequences if kind(each) == kind(sequences[0])]
