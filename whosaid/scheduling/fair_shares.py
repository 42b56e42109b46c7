"""Weighted fair queueing: which class of work runs next if several are ready.

Each class has a virtual time: its charged seconds, divided by its weight. The ready class with the
least virtual time runs next. So ready classes share the time by their weights, a single ready class
has all of it, and none waits for ever. (Start-time fair queueing: Goyal, Vin and Cheng 1996.)
"""

from collections.abc import Container, Mapping
from enum import Enum
from typing import Generic, TypeVar

K = TypeVar("K")


class WorkClass(Enum):
    """The classes of work on recordings, by weight, the heaviest first: live work delays a
    listener, and short recordings a client that could have its answer soon.
    """

    LIVE = 9.0
    SHORT = 3.0
    LONG = 1.0


WORK_WEIGHTS = {each: each.value for each in WorkClass}


class FairShares(Generic[K]):
    """Chooses among the classes in `weights`; if several are equal, the first of them.

    A class that is idle saves nothing: when it is ready again it starts at the virtual time of the
    class that was chosen last. The caller may charge any unit that is the same for all classes.
    """

    def __init__(self, weights: Mapping[K, float]) -> None:
        self._weights = weights
        self.reset()

    def reset(self) -> None:
        self._virtual = dict.fromkeys(self._weights, 0.0)
        self._now = 0.0  # virtual time of the class that was chosen last

    def next(self, ready: Container[K]) -> K | None:
        """Return which of the `ready` classes runs next; None if none is ready.

        Until a class is charged, the choice among the same classes stays the same.
        """
        waiting = [each for each in self._weights if each in ready]
        if not waiting:
            return None
        for each in waiting:
            self._virtual[each] = max(self._virtual[each], self._now)
        chosen = min(waiting, key=self._virtual.__getitem__)
        self._now = self._virtual[chosen]
        return chosen

    def charge(self, each: K, seconds: float) -> None:
        self._virtual[each] += seconds / self._weights[each]

    def lead(self, each: K) -> float:
        """Return the virtual time by which a class is ahead of the class that was chosen last."""
        return self._virtual[each] - self._now
