"""Lanes: one scheduler for each number of beams in use, so that every row of a step is alike.

The one decision: which lane a request runs in is decided by its current attempt. One whose next
attempt has another number of beams leaves its row and enters the other lane's queue at the front;
its audio is not encoded again. There it waits a while for others of its session that may follow:
rows cost least together. Lanes share nothing but the device: an idle one gives its memory back when
another is short of it, and where a lane does not fit beside those that run, it waits until they
have ended what they run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator

from asr.engine.scheduler import Scheduler
from asr.engine.sequence import Sequence

# Steps of plain rows for which a rejected text waits for others of its session.
GATHERING_STEPS = 64


class Lanes:
    """The schedulers by number of beams; that of plain rows, 1, is always there.

    `make` gives the scheduler of a lane that is used for the first time.
    """

    def __init__(self, make: Callable[[int, Lanes], Scheduler]) -> None:
        self._make = make
        self._lanes: dict[int, Scheduler] = {}
        self._waiting: Scheduler | None = None  # the lane that found no memory beside the others
        self.greedy = self.lane(1)

    def __iter__(self) -> Iterator[Scheduler]:
        """Every lane that has been used."""
        return iter(list(self._lanes.values()))

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return any(lane.running or lane.waiting for lane in self)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences, each in its lane."""
        for each in sequences:
            self.lane(each.num_beams).add([each])

    def move(self) -> None:
        """Queue what has left its lane in the lane of its next attempt, before what waits there."""
        for lane in self:
            for each in reversed(lane.take_leaving()):
                each.gathers_until = self.greedy.steps + GATHERING_STEPS
                self.lane(each.num_beams).waiting.appendleft(each)

    def is_gathering(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for others of its session, which plain rows may yet send after
        it. Not beside one that runs already: then the sooner it starts, the more they share.
        """
        if sequence.attempts == 1 or self.greedy.steps >= sequence.gathers_until:
            return False
        running = self.lane(sequence.num_beams).own_rows()
        return sequence.session in self.greedy.own_rows() and sequence.session not in running

    def may_step(self, lane: Scheduler) -> bool:
        """Whether a lane has its turn: not while it waits for the others to end.

        Until it has had its turn the others admit nothing.
        """
        others_run = any(each.running for each in self if each is not lane)
        if self._waiting is lane and not others_run:
            self._waiting = None
        lane.admits = self._waiting is None
        return self._waiting is not lane

    def wait_for_others(self, lane: Scheduler) -> bool:
        """Let `lane` wait until the others have ended what they run; False where nothing runs."""
        if not any(each.running for each in self if each is not lane):
            return False
        self._waiting = lane
        return True

    def release_idle(self) -> bool:
        """Give back the memory of lanes in which nothing runs. Whether there was any."""
        idle = [lane for lane in self if not lane.running and lane.memory.state is not None]
        for lane in idle:
            lane.memory.release()
        return bool(idle)

    def running_rows(self) -> Counter[Hashable]:
        """How many rows each session has, in all lanes."""
        return sum((lane.own_rows() for lane in self), Counter())

    def waiting_sessions(self) -> set[Hashable]:
        """Those that wait for a row in any lane."""
        return {each.session for lane in self for each in lane.waiting}

    def lane(self, num_beams: int) -> Scheduler:
        """The lane of rows with so many beams, made where it is new."""
        if num_beams not in self._lanes:
            self._lanes[num_beams] = self._make(num_beams, self)
        return self._lanes[num_beams]
