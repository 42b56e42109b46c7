"""OpenMP's threads, which belong to the thread that computes.

Beneath every thread that has computed with torch OpenMP keeps a team, as long as that thread lives.
While all teams together have more threads than there are processors, even if all but one sleep, no
thread waits actively for the next product any more, and every product costs a wake-up: an 8 s
recording took 0.20 s on two processors instead of 0.11 s (demo models, by hand).

So on a CPU one thread, the engine's, computes for as long as the process lives, and every other
ends with its work, or computes alone. With a GPU it is the other way round: threads beneath matter
little there, but cuDNN keeps its plans for each thread that has used it, some megabytes of the
host's memory, and leaks them when the thread ends (pytorch#169153). Whatever computes there does so
in threads that last.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def set_threads(count: int) -> None:
    """Set how many threads compute for the calling thread, and for those yet to begin.

    At its first use of torch a thread takes over the number that was set last in any of them; only
    afterwards it keeps its own.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


def compute_beside(work: Callable[[], T], threads: int, device: torch.device) -> T:
    """What `work` returns, computed with `threads` threads beneath it, beside the engine: on a CPU
    in a thread that ends with it, else in the caller's, which should last.
    """
    if device.type != "cpu":
        set_threads(threads)
        return work()
    with ThreadPoolExecutor(1, initializer=set_threads, initargs=(threads,)) as pool:
        return pool.submit(work).result()
