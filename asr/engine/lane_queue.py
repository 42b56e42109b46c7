"""What waits and what runs in one lane, in its order, and who may be next there."""

from __future__ import annotations

from collections import abc, defaultdict, deque

from asr.engine.sequence import Lane, Sequence, Status
from asr.engine.session import Client

# Short recordings go first, but every so many turns it is the turn of who waits longest.
LONGEST_WAITING_EVERY = 8


class LaneQueue:
    """The sequences of a `lane`: those `waiting`, some of which are being prepared, and those
    `running`.

    `grown` says that rows were given since the last step.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        self.grown = False
        self._apart: deque[set[Sequence]] = deque()  # see `isolate`
        self._short_turns = 0  # since a long recording's turn

    def __iter__(self) -> abc.Iterator[Sequence]:
        """All of them; those that run come first."""
        yield from self.running
        yield from self.waiting

    @property
    def preparing(self) -> list[Sequence]:
        """Those on their way into a row."""
        return [each for each in self.waiting if each.status is Status.PREPARING]

    @property
    def empty(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    @property
    def short_turns_left(self) -> int:
        """How many short recordings may go before it is the turn of who waits longest."""
        return LONGEST_WAITING_EVERY - 1 - self._short_turns

    def runs(self, client: Client) -> bool:
        """Whether a client has a row here."""
        return any(each.client is client for each in self.running)

    def enter(self, sequence: Sequence) -> None:
        """One that waited is in a row."""
        self.waiting.remove(sequence)
        self.running[sequence] = None
        self.grown = True
        self._short_turns = 0 if sequence.long else self._short_turns + 1

    def requeue(self) -> None:
        """Put everything that runs back to the front, in its order."""
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()

    def isolate(self) -> None:
        """From now on what waits runs apart from all others, client by client."""
        groups: dict[Client, set[Sequence]] = defaultdict(set)
        for each in self.waiting:
            groups[each.client].add(each)
        self._apart = deque(groups.values())

    def allowed(self) -> abc.Sequence[Sequence]:
        """Those waiting that may run now: all, once nothing runs apart any more."""
        self.forget_done()
        group = next(iter(self._apart), None)
        return self.waiting if group is None else [each for each in self.waiting if each in group]

    def forget_done(self) -> None:
        """Let the next ones run apart where those before them are done, or went elsewhere."""
        groups = self._apart
        while groups and not any(
            each.lane == self.lane and each.status is not Status.DONE for each in groups[0]
        ):
            groups.popleft()


def clients_of(sequences: abc.Sequence[Sequence]) -> list[Client]:
    """Whose they are, each once, in their order."""
    return list(dict.fromkeys(each.client for each in sequences))
