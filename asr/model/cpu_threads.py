"""As many threads as others leave processors: other processes, and other threads of this one.

A parallel product waits for its slowest thread. Where another process is busy on one of our
processors, one thread in every product is descheduled for milliseconds, and all others wait for it:
two threads beside a busy neighbour on two processors are slower than one
(`benchmarks/speed/cpu.py`).

What others use is measured, not guessed. The kernel counts what each processor did (/proc/stat),
and what each thread of this process used; what is not the calling thread's, nor OpenMP's beneath
it, is how many processors others keep busy, over a fraction of a second. A thread that reads audio
disturbs as another process does. Where the kernel does not count so, nothing changes.

The count goes on while nothing is decoded (`watch`), so that a request begins with the threads
that others leave now: what they did while nobody asked for anything is no reason to hold back.
"""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.device import set_threads

# Seconds from one count to the next: at least while something is decoded, about so many while
# nothing is, and the age at which a count says nothing about now.
INTERVAL, IDLE_INTERVAL, STALE = 0.1, 0.25, 1.0
THREADS = Path("/proc/self/task")
IDLE_FIELDS = (3, 4)  # of a line of /proc/stat: idle, waiting for input or output


@dataclass(frozen=True)
class CpuSample:
    """Seconds that our `processors` were busy, and in which the thread that samples and OpenMP's
    computed, its `own`, up to `taken`; and those of this process's other threads.
    """

    taken: float
    busy: float
    own: float
    processors: int
    other_threads: float = 0.0


class CpuThreads:
    """Sets the calling thread's number of OpenMP threads; `most` is used where nobody disturbs.

    Not `enabled`, it leaves the number as it is.
    """

    def __init__(self, most: int, stat: Path = Path("/proc/stat")) -> None:
        self.most = most
        self.enabled = most > 1
        self._stat = stat
        self._last: CpuSample | None = None
        self._wanted = most
        self._idle = False

    def adjust(self) -> None:
        """Set as many threads as others leave, and count anew if the last count is old enough.

        Costs a fraction of a millisecond.
        """
        if not self.enabled:
            return
        self._count()
        self._idle = False
        if self._wanted != torch.get_num_threads():
            set_threads(self._wanted)

    def watch(self) -> float | None:
        """Count while nothing is decoded. Return the seconds after which to count again; None if
        nothing can be counted.
        """
        if self.enabled:
            self._count()
        return None if self._last is None else IDLE_INTERVAL

    def restore(self) -> None:
        """Set all threads when nothing is left to decode: others may ask torch for their number."""
        self._idle = True
        if self.enabled and torch.get_num_threads() != self.most:
            set_threads(self.most)

    def _count(self) -> None:
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
            # This process may have prepared what is decoded next, and be done.
            busy = max(0.0, busy - (self._last.other_threads - last.other_threads) / age)
        self._wanted = threads_beside(self.most, busy, self._last.processors)

    def _sample(self, now: float) -> CpuSample | None:
        try:
            lines = self._stat.read_text().splitlines()
            allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        except (OSError, AttributeError):  # another system than Linux
            return None
        ticks = processors = 0
        for line in lines:
            name, *fields = line.split()
            if name in allowed:
                processors += 1
                counts = [int(field) for field in fields[:8]]
                ticks += sum(counts) - sum(counts[place] for place in IDLE_FIELDS)
        if processors < self.most:  # a container's view of them: it tells nothing of the others
            return None
        busy = ticks / os.sysconf("SC_CLK_TCK")
        others_here = seconds_of_other_threads()
        return CpuSample(now, busy, time.process_time() - others_here, processors, others_here)


def seconds_of_other_threads() -> float:
    """What Python's other threads that live have computed; those of OpenMP are none of Python's."""
    clock = os.sysconf("SC_CLK_TCK")
    ticks = 0
    for thread in threading.enumerate():
        if thread.native_id is None or thread is threading.current_thread():
            continue
        with suppress(OSError):  # it has ended
            line = (THREADS / str(thread.native_id) / "stat").read_text()
            user, system = line.rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
    return ticks / clock


def others(before: CpuSample, after: CpuSample) -> float:
    """How many processors others kept busy between two samples."""
    busy, own = after.busy - before.busy, after.own - before.own
    return max(0.0, busy - own) / (after.taken - before.taken)


def threads_beside(most: int, busy: float, processors: int) -> int:
    """How many of `most` threads find a processor of their own, where others keep `busy` of them.

    A container's quota, OMP_NUM_THREADS or Ray may allow fewer threads than there are processors.
    """
    return max(1, min(most, processors - round(busy)))
