"""As many threads as others leave processors: other processes, and other threads of this one.

A parallel product waits for its slowest thread. Where another process is busy on one of our
processors, one thread in every product is descheduled for milliseconds, and all others wait for it:
two threads beside a busy neighbour on two processors are slower than one
(`benchmarks/speed/cpu.py`).

What others use is measured, not guessed. The kernel counts what each processor did (/proc/stat),
and what each thread of this process used; what is not the calling thread's, nor OpenMP's beneath
it, is how many processors others keep busy, over a fraction of a second. A thread that reads audio
disturbs as another process does. Where the kernel does not count so, nothing changes.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.openmp import set_threads

# Seconds between counts, and age at which the last one says nothing about now. Between requests
# nothing is counted, and the next one begins with what was so since the last.
INTERVAL, STALE = 0.1, 60.0
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
        self._rested = False

    def adjust(self) -> None:
        """Count anew what others use, if the last count is old enough. Costs a fraction of a ms."""
        if not self.enabled:
            return
        now = time.perf_counter()
        if self._last is not None and now - self._last.taken < INTERVAL:
            return
        last, self._last = self._last, self._sample(now)
        if last is None or self._last is None or now - last.taken > STALE:
            return
        busy = others(last, self._last)
        if self._rested:
            # Since the last count this process may have prepared what is decoded now, and be done.
            ours = self._last.other_threads - last.other_threads
            busy = max(0.0, busy - ours / (now - last.taken))
        self._rested = False
        wanted = threads_beside(self.most, busy, self._last.processors)
        if wanted != torch.get_num_threads():
            set_threads(wanted)

    def restore(self) -> None:
        """Back to all threads, when nothing is left to do: others may ask torch for their number.

        The next request begins with what other processes did meanwhile.
        """
        self._rested = True
        if self.enabled and torch.get_num_threads() != self.most:
            set_threads(self.most)

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
