"""Measures how far a client's audio is ahead of real time."""

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
        """Note `seconds` of audio that came."""
        self._played_at = max(self._played_at, self._now()) + seconds

    @property
    def wait(self) -> float:
        """Seconds until more may come; 0 if it may now."""
        return max(0.0, self._played_at - self._now() - self._most)
