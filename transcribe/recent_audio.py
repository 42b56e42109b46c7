"""The last audio of a source, for a live session that goes on where another was lost."""

from __future__ import annotations

import time
from collections.abc import Callable

from server.realtime.pace import Ahead
from transcribe.live_audio import BYTES_PER_SAMPLE

# A server reads a session's audio up to a minute ahead of real time, and words are to catch up.
MOST_SECONDS = 40.0


class RecentAudio:
    """What was read of a source with `rate` samples a second: the last MOST_SECONDS of it, and as
    much more as it is ahead of real time, for that may not have been heard yet.

    `now` returns seconds.
    """

    def __init__(self, rate: int, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._ahead = Ahead(0.0, now)
        self._start = 0  # bytes before the first of these
        self._data = bytearray()

    @property
    def seconds(self) -> float:
        """All audio that was read."""
        return self._seconds(self._start + len(self._data))

    def push(self, data: bytes) -> None:
        """Keep more audio."""
        self._data += data
        self._ahead.came(self._seconds(len(data)))
        most = BYTES_PER_SAMPLE * int(self._rate * (MOST_SECONDS + self._ahead.wait))
        if (rest := len(self._data) - most) > 0:
            whole = rest - rest % BYTES_PER_SAMPLE
            del self._data[:whole]
            self._start += whole

    def since(self, seconds: float) -> tuple[float, bytes]:
        """What was read from that moment on, as far back as it is here, and where it begins."""
        place = BYTES_PER_SAMPLE * round(self._rate * seconds) - self._start
        last = len(self._data) - len(self._data) % BYTES_PER_SAMPLE
        place = min(max(place, 0), last)
        return self._seconds(self._start + place), bytes(self._data[place:])

    def _seconds(self, count: int) -> float:
        return count / BYTES_PER_SAMPLE / self._rate
