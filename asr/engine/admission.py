"""Who gets the next free rows, and how long newcomers may hold up the rows that run.

The one decision: windows, not requests, are the unit. A free row goes to the session with the
fewest rows, among several to the one that has waited longest for its turn. So a short recording
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

# Seconds for which the windows of newcomers are encoded between two steps; on a CPU, where windows
# are encoded one by one, at least one. A step of whisper-base takes a few hundredths of a second.
HOLD_SECONDS = 0.1


class Admission:
    """Chooses among the waiting sequences of all lanes.

    At most `max_rows` rows run in a lane. `hold_seconds` bounds encoding beside other sessions, and
    where `newcomer` says that one has come. With a `newcomer` a session that is alone leaves a
    quarter of the rows free: the windows of a long recording, admitted together, would also end
    together. `elsewhere` names sessions whose turns are to be remembered though they are not among
    those to choose from: they wait in another lane.
    """

    def __init__(self, hold_seconds: float = HOLD_SECONDS) -> None:
        self.max_rows = MAX_ROWS
        self.hold_seconds = hold_seconds
        self.newcomer: Callable[[], bool] | None = None
        self.elsewhere: Callable[[], Iterable[Hashable]] = tuple
        self._rests_until = -math.inf
        self.clock: Callable[[], float] = time.perf_counter
        self._served = 0
        self._turns: dict[Hashable, int] = {}  # when each session was given a row last, or came

    def choose(
        self,
        waiting: Iterable[Sequence],
        rows: Counter[Hashable],
        free: int,
        most: float = math.inf,
    ) -> list[Sequence]:
        """Up to `free` of the waiting sequences, for rows that are free.

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
        order = [(rows[each], self._turns[each], place) for place, each in enumerate(sessions)]
        heapq.heapify(order)
        while order and len(chosen) < free:
            taken, _, place = heapq.heappop(order)
            queue = queues[sessions[place]]
            if taken >= min(most, queue[0].options.batch_size):
                continue
            chosen.append(queue.popleft())
            turn += 1
            if queue:
                heapq.heappush(order, (taken + 1, turn, place))
        return chosen

    def share(self, limit: int, rows: Counter[Hashable]) -> int:
        """How many of a lane's `limit` rows one session may have now.

        Where several sessions run, each gets its first row at once, and more only when as much time
        has passed in steps as the last newcomers took.
        """
        if len(rows) > 1 and self.clock() < self._rests_until:
            return 1
        return limit if self.newcomer is None else limit - limit // 4

    def count(self, admitted: Iterable[Sequence], started: float) -> None:
        """Remember whose turn it was, and how long it took since `started`."""
        now = self.clock()
        self._rests_until = now + (now - started)
        for each in admitted:
            self._served += 1
            self._turns[each.session] = self._served

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
