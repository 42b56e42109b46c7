"""Places of requests and the bytes of their bodies: who gets some, and who gives way.

Only bytes that have come count: what a head announces reserves nothing. They count until the body
is held no longer, which is before its answer. A body may grow while as many bytes again as it has
are free, or where there is no other; so small ones find room however many large ones come. Where a
place or bytes are short, senders that are slower than WAITED_FOR_BYTES_PER_S lose theirs to whoever
asks, the slowest first. A body that is complete loses nothing. Nobody waits for bytes: who finds
none is refused and gives back what it had, so that of several half-sent bodies the others go on,
and one that is left alone always gets through.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from errors import EndpointError
from server.errors import Busy, SlowBody

# The rate that a sender must keep while others wait for its place or its bytes, and for how many
# seconds it may fall behind.
WAITED_FOR_BYTES_PER_S, PATIENCE_S = 64 * 1024, 5.0
# OpenAI's client waits as told up to two minutes, and else gives up.
LONGEST_WAIT_S = 120
# Weight of the newest pause between two answers.
NEWEST = 0.2


class Pace:
    """Whether a sender keeps up with `bytes_per_s`; by `due` its next bytes must come.

    It may be `patience` seconds late, however much it sent before.
    """

    def __init__(self, bytes_per_s: float, patience: float, now: float) -> None:
        self.bytes_per_s, self.patience = bytes_per_s, patience
        self.due = now + patience

    def came(self, size: int, now: float) -> None:
        """Count `size` bytes."""
        self.due = min(self.due + size / self.bytes_per_s, now + self.patience)


class Place:
    """One request's place, and the `size` in bytes of what has come of its body.

    `end` tells its sender that it is refused; without one the body is `complete` already.
    """

    def __init__(self, places: Places, end: Callable[[EndpointError], None] | None) -> None:
        self.size = 0
        self.complete = end is None
        self.pace = Pace(WAITED_FOR_BYTES_PER_S, PATIENCE_S, places.now())
        self._places, self._end = places, end

    def grow(self, size: int) -> None:
        """Hold `size` bytes. Raises Busy where there is no room for them, SlowBody where the place
        was lost.
        """
        self.pace.came(size - self.size, self._places.now())
        self._places.make_room(size, self)
        self._places.held_bytes += size - self.size
        self.size = size

    def give_bytes_back(self) -> None:
        """Hold no bytes any more, as nobody holds the body."""
        self._places.give_bytes_back(self)

    def give_way(self) -> None:
        """Lose the place to others."""
        self._places.leave(self)
        if self._end is not None:
            self._end(too_slow())


class Places:
    """At most `most` requests that are not answered, with `max_bytes` of bodies together.

    `now` returns seconds.
    """

    def __init__(
        self, most: int, max_bytes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.max_bytes, self.now = most, max_bytes, now
        self.held_bytes = 0
        # In the order in which they came.
        self._taken: dict[Place, None] = {}
        self._seconds_per_answer = 1.0
        self._last_answer = self._next_place = now()

    @property
    def taken(self) -> int:
        """How many places are."""
        return len(self._taken)

    @contextmanager
    def take(self, end: Callable[[EndpointError], None] | None = None) -> Iterator[Place]:
        """A place until the block ends. Raises Busy with the seconds after which one may be
        free.
        """
        if self.taken >= self.most:
            slow = self._slowest()
            if slow is None:
                raise Busy(
                    f"{self.most} requests are waiting, and no more may", self._retry_after()
                )
            slow.give_way()
        if not self._taken:
            self._last_answer = self.now()
        place = Place(self, end)
        self._taken[place] = None
        try:
            yield place
        finally:
            self.leave(place)
            self._answered()

    def make_room(self, size: int, place: Place) -> None:
        """Let slow senders give way until `place` may have `size` bytes.

        Raises Busy, or SlowBody where its own sender is the slowest.
        """
        if place not in self._taken:
            raise too_slow()
        while self.held_bytes > place.size and (
            self.held_bytes - place.size + 2 * size > self.max_bytes
        ):
            slow = self._slowest()
            if slow is place:
                raise too_slow()
            if slow is None:
                raise Busy(
                    f"the bodies of all requests may have {self.max_bytes} bytes",
                    self._retry_after(),
                )
            slow.give_way()

    def give_bytes_back(self, place: Place) -> None:
        """Give the bytes of a place back, once; it is still taken."""
        if place in self._taken:
            self.held_bytes -= place.size
            place.size = 0

    def leave(self, place: Place) -> None:
        """Give a place and its bytes back, once."""
        self.give_bytes_back(place)
        self._taken.pop(place, None)

    def _slowest(self) -> Place | None:
        """The sender that is furthest behind, if any is; among equals the one that holds most."""
        senders = (each for each in self._taken if not each.complete)
        slowest = min(senders, key=lambda each: (each.pace.due, -each.size), default=None)
        return slowest if slowest is not None and slowest.pace.due < self.now() else None

    def _answered(self) -> None:
        now = self.now()
        pause, self._last_answer = now - self._last_answer, now
        self._seconds_per_answer += NEWEST * (pause - self._seconds_per_answer)

    def _retry_after(self) -> int:
        """Seconds until a place is free for this client: each refused one is told a later time, as
        far apart as answers are.
        """
        now = self.now()
        latest = now + LONGEST_WAIT_S
        self._next_place = min(max(now, self._next_place) + self._seconds_per_answer, latest)
        return min(max(1, math.ceil(self._next_place - now)), LONGEST_WAIT_S)


def too_slow() -> EndpointError:
    """What a sender is told that lost its place."""
    return SlowBody("the body came too slowly while others were waiting")
