"""How far ahead of real time a client's audio is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Ahead:
    """Audio as if it were played from when it comes on: at most `most` seconds of it may be left.

    `now` returns seconds.
    """

    def __init__(self, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now = most, now
        self._played_at = -math.inf

    def came(self, seconds: float) -> None:
        """So many seconds of audio came."""
        self._played_at = max(self._played_at, self._now()) + seconds

    @property
    def wait(self) -> float:
        """Seconds until more may come; 0 where it may now."""
        return max(0.0, self._played_at - self._now() - self._most)
