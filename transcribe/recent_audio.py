"""The last audio of a source, for a live session that goes on where another was lost."""

from __future__ import annotations

import time
from collections.abc import Callable

from server.realtime.pace import Ahead
from transcribe.live_audio import BYTES_PER_SAMPLE

# A server reads a session's audio up to a minute ahead of real time, and words are to catch up.
MOST_SECONDS = 40.0
# As long as a server has by default to complete what it has heard; 115 MB at 16 kHz.
MOST_UNSENT_SECONDS = 3600.0


class RecentAudio:
    """What was read of a source with `rate` samples a second and was not sent, and before that the
    last MOST_SECONDS that were, and as much more as was sent ahead of real time, for that may not
    have been heard yet.

    `now` returns seconds.
    """

    def __init__(self, rate: int, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._now = rate, now
        self._ahead = Ahead(0.0, now)
        self._start = 0  # bytes before the first of these
        self._sent = 0  # bytes
        self._data = bytearray()

    @property
    def seconds(self) -> float:
        """All audio that was read."""
        return self._seconds(self._end)

    @property
    def sent(self) -> float:
        """Up to where it was sent, in seconds."""
        return self._seconds(self._sent)

    @property
    def missed(self) -> bool:
        """Whether what is to be sent next is no longer here: MOST_UNSENT_SECONDS came after it."""
        return self._sent < self._start

    def push(self, data: bytes) -> None:
        """Keep more audio."""
        self._data += data
        if (oldest := self._end - self._bytes(MOST_UNSENT_SECONDS)) > self._sent:
            self._drop(oldest)

    def take(self, most: int) -> bytes:
        """What is to be sent next, at most so many bytes; nothing where it is not here."""
        if self.missed:
            return b""
        place = self._sent - self._start
        data = bytes(self._data[place : place + most])
        self._sent += len(data)
        self._ahead.came(self._seconds(len(data)))
        self._drop(self._sent - self._bytes(MOST_SECONDS + self._ahead.wait))
        return data

    def go_back(self, seconds: float) -> float:
        """Send again what was read from that moment on, as far back as it is here; where it begins.

        Whoever heard it before hears no more.
        """
        place = BYTES_PER_SAMPLE * round(self._rate * seconds)
        last = self._end - self._end % BYTES_PER_SAMPLE
        self._sent = min(max(place, self._start), last)
        self._ahead = Ahead(0.0, self._now)
        return self.sent

    @property
    def _end(self) -> int:
        return self._start + len(self._data)

    def _drop(self, oldest: int) -> None:
        """Forget what comes before the sample of that byte."""
        if (rest := oldest - self._start) > 0:
            whole = rest - rest % BYTES_PER_SAMPLE
            del self._data[:whole]
            self._start += whole

    def _bytes(self, seconds: float) -> int:
        return BYTES_PER_SAMPLE * int(self._rate * seconds)

    def _seconds(self, count: int) -> float:
        return count / BYTES_PER_SAMPLE / self._rate
