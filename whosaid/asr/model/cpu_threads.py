"""Limits the number of OpenMP threads to the processors that are free.

A parallel product waits for its slowest thread: two threads beside a busy neighbour on two
processors are slower than one. The kernel counts how busy each processor was. Time that neither the
calling thread nor OpenMP's threads used belongs to others. Processors are sampled while idle too
(`watch`), so that a request begins with a number that fits.
"""

import math
import os
import threading
import time
from dataclasses import dataclass

import psutil
import torch

from whosaid.runtime.device import set_threads

# Seconds between samples, at least, while decoding; between samples while idle; and the age from
# which a sample says nothing about the present.
INTERVAL, IDLE_INTERVAL, STALE = 0.1, 0.25, 1.0


@dataclass(frozen=True)
class CpuSample:
    """Seconds of processor time up to the time `taken`: `busy` on our `processors`, `own` of the
    sampling thread and OpenMP's, and `other_threads` of this process.
    """

    taken: float
    busy: float
    own: float
    processors: int
    other_threads: float = 0.0


class CpuThreads:
    """Sets the calling thread's number of OpenMP threads, at most `most`, if `enabled`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.enabled = most > 1
        self._last: CpuSample | None = None
        self._wanted = most
        self._idle = False

    def adjust(self) -> None:
        """Set one thread for each free processor; takes half a millisecond if a sample is due."""
        if not self.enabled:
            return
        self._update()
        self._idle = False
        if self._wanted != torch.get_num_threads():
            set_threads(self._wanted)

    def watch(self) -> float | None:
        """Sample while idle; return the seconds until the next sample, None if there is none."""
        if self.enabled:
            self._update()
        return None if self._last is None else IDLE_INTERVAL

    def restore(self) -> None:
        """Set `most` threads for other users of torch; call this if nothing is left to decode."""
        self._idle = True
        if self.enabled and torch.get_num_threads() != self.most:
            set_threads(self.most)

    def _update(self) -> None:
        now = time.perf_counter()
        age = math.inf if self._last is None else now - self._last.taken
        if age < INTERVAL:
            return
        last, self._last = self._last, self._sample(now)
        if last is None or self._last is None or age > STALE:
            self._wanted = self.most
            return
        busy = others(last, self._last)
        if self._idle:
            # The other threads may have prepared the next request and be done by now.
            busy = max(0.0, busy - (self._last.other_threads - last.other_threads) / age)
        self._wanted = threads_beside(self.most, busy, self._last.processors)

    def _sample(self, now: float) -> CpuSample | None:
        """Return a sample; None if the kernel does not count each of our processors."""
        try:
            times, allowed = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
        except (OSError, AttributeError):  # AttributeError: not Linux
            return None
        # A container may see fewer processors, or ours under other numbers.
        if max(allowed) >= len(times) or len(allowed) < self.most:
            return None
        ours = [times[number] for number in allowed]
        busy = sum(sum(each[:8]) - each.idle - each.iowait for each in ours)
        other_threads = seconds_of_other_threads()
        own = time.process_time() - other_threads
        return CpuSample(now, busy, own, len(ours), other_threads)


def seconds_of_other_threads() -> float:
    """Return the processor time of Python's other threads, in seconds; OpenMP's are not counted."""
    python = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    threads = psutil.Process().threads()
    return float(sum(sum(each[1:]) for each in threads if each.id in python))


def others(before: CpuSample, after: CpuSample) -> float:
    """Return how many processors other processes and threads kept busy between two samples."""
    busy, own = after.busy - before.busy, after.own - before.own
    return max(0.0, busy - own) / (after.taken - before.taken)


def threads_beside(most: int, busy: float, processors: int) -> int:
    """Return 1 to `most` threads, fewer if others keep `busy` of the `processors` busy."""
    return max(1, min(most, processors - round(busy)))
