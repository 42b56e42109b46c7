"""The samples of a session that are still needed, by their position in the session."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from whosaid.timebase import SAMPLE_RATE


class AudioBuffer:
    """Samples at 16 kHz, kept as 16-bit integers; positions count from the session's first one."""

    def __init__(self) -> None:
        self.start = self.stop = 0
        self._pieces: deque[NDArray[np.int16]] = deque()

    def append(self, samples: NDArray[np.float32]) -> None:
        """Append samples (n,), from -1 to 1; to the last piece if it has less than a second."""
        piece = np.rint(samples.clip(-1, 1) * 32767).astype(np.int16)
        if self._pieces and len(self._pieces[-1]) < SAMPLE_RATE:
            piece = np.concatenate([self._pieces.pop(), piece])
        self._pieces.append(piece)
        self.stop += len(samples)

    def drop_before(self, position: int) -> None:
        """Drop the pieces that end at or before `position`."""
        while self._pieces and self.start + len(self._pieces[0]) <= position:
            self.start += len(self._pieces.popleft())

    def samples(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the samples from `start` to `stop`, (n,) float32. Raises IndexError if some are
        missing, because fewer samples would shift all times.
        """
        if not self.start <= start <= stop <= self.stop:
            raise IndexError(f"{start} to {stop} of samples {self.start} to {self.stop}")
        found, begin = [np.zeros(0, np.int16)], self.start
        for piece in self._pieces:
            found.append(piece[max(0, start - begin) : max(0, stop - begin)])
            begin += len(piece)
        return np.concatenate(found).astype(np.float32) / np.float32(32767)
