"""How long things take beside each other, and how sure that is.

The one decision: what is compared runs in one process and in turns, so a machine that slows down
for a minute slows all of them, and a ratio is read from medians over the same turns. Its interval
is a bootstrap over whole turns (Efron 1979, percentiles): with few turns it is coarse and says so
by being wide.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

LEAST_TURNS, MOST_TURNS = 3, 15
DRAWS = 4_000
TAIL = 2.5  # percent cut off on either side: an interval of 95%
MIB = 2**20
STATUS = Path("/proc/self/status")
FORGET_PEAK = Path("/proc/self/clear_refs")

Action = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """How many times as much, with the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def in_turns(
    actions: Mapping[str, Action], turns: int, device: torch.device
) -> dict[str, list[float]]:
    """Wall seconds of each action in each turn; every other turn goes through them backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(turns):
        for name in actions if turn % 2 == 0 else reversed(list(actions)):
            seconds[name].append(seconds_of(actions[name], device))
    return seconds


def seconds_of(action: Action, device: torch.device) -> float:
    """Wall seconds until the device is done with it; garbage of what ran before is not collected
    meanwhile.
    """
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started
    finally:
        gc.enable()


def turns_within(seconds: float, one_turn: float) -> int:
    """As many turns as fit into a budget, but never fewer than three nor more than are of use."""
    return max(LEAST_TURNS, min(MOST_TURNS, int(seconds / one_turn)))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Median over median of two lists measured in the same turns, with a 95% bootstrap interval
    over the turns.
    """
    above, below = np.asarray(numerator), np.asarray(denominator)
    drawn = np.random.default_rng(0).integers(len(above), size=(DRAWS, len(above)))
    ratios = np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    low, high = np.percentile(ratios, [TAIL, 100 - TAIL])
    return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def peak_memory(action: Action, device: torch.device) -> float:
    """MiB that an action needs at its peak above what is held before it.

    On CUDA what torch allocates, elsewhere the resident memory of the process as Linux counts it;
    freed memory is given back to the system first, so that reusing it counts as well.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        return float(torch.cuda.max_memory_allocated(device) - before) / MIB
    ctypes.CDLL(None).malloc_trim(0)
    FORGET_PEAK.write_text("5")  # proc(5): resets the peak to the present
    held = psutil.Process().memory_info().rss
    action()
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024 - float(held) / MIB
