"""Parts of the time: how much of it one kind of work may take while another kind waits."""

from __future__ import annotations

import math
from collections.abc import Callable

# Beside short recordings the windows of long ones are encoded in this part of the time.
LONG_SHARE = 1 / 4
# Beside live windows everything else is done in this part of the time.
SHARE_BESIDE_LIVE = 1 / 4
# Steps of live rows between two other things: on a device that works ahead of the host time tells
# less than half of what these took.
LIVE_STEPS = 3
# Who speaks asks again soon: for so many seconds after a live window the others' work stays small.
LIVE_LINGERS = 10.0

Clock = Callable[[], float]


class Share:
    """What holds up everybody is done for some in a `part` of the time alone, while others wait."""

    def __init__(self, part: float, clock: Clock) -> None:
        self._part, self._clock = part, clock
        self._rests_until = -math.inf

    def allows(self, others_wait: bool) -> bool:
        """Whether something may be done for them now."""
        return not others_wait or self._clock() >= self._rests_until

    def count(self, started: float) -> None:
        """Remember how long something took that was done for them."""
        now = self._clock()
        self._rests_until = now + (now - started) * (1 / self._part - 1)


class BesideLive:
    """What may be done beside live windows, which go first: a part of the time, one small thing
    after the other (a window encoded, a step of one batch, a window read).

    So a live window waits for one such thing when it comes, and then for few.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._share = clock, Share(SHARE_BESIDE_LIVE, clock)
        self._small_until = -math.inf
        self._live_steps = 0

    def see(self) -> None:
        """A live window is here, or about to be."""
        self._small_until = self._clock() + LIVE_LINGERS

    def stepped(self) -> None:
        """Live rows have taken a step."""
        self._live_steps += 1

    @property
    def small(self) -> bool:
        """Whether other work is done in small things: there was a live window not long ago."""
        return self._clock() < self._small_until

    def allows(self, waits: bool, runs: bool) -> bool:
        """Whether something else may be done now; a live window `waits`, or runs in a row."""
        if runs and self._live_steps < LIVE_STEPS:
            return False
        return self._share.allows(waits or runs)

    def count(self, started: float) -> None:
        """Remember how long something else took."""
        self._share.count(started)
        self._live_steps = 0
