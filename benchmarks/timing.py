"""Measures time and memory of several actions.

Compared functions run interleaved in one process, so that a slow minute of the machine affects all
of them.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.counts import Interval, bootstrap

MIN_REPEATS, MAX_REPEATS = 3, 15
STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")

Action = Callable[[], object]


def time_interleaved(
    actions: Mapping[str, Action], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the wall seconds of each action in each repeat; every other one reverses the order."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats):
        for name in actions if repeat % 2 == 0 else reversed(list(actions)):
            seconds[name].append(time_once(actions[name], device))
    return seconds


def time_once(action: Action, device: torch.device) -> float:
    """Return the wall seconds until the device has finished; garbage is collected only before."""
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


def repeats_within(seconds: float, one_repeat: float) -> int:
    """Return how many repeats fit into a budget of seconds, from MIN_REPEATS to MAX_REPEATS."""
    return max(MIN_REPEATS, min(MAX_REPEATS, int(seconds / one_repeat)))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Return the ratio of two lists' medians from the same repeats, with its 95% interval."""
    above, below = np.asarray(numerator), np.asarray(denominator)
    return bootstrap(
        len(above), lambda drawn: np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    )


def reset_peak() -> None:
    """Return free memory to the system and reset the peak to the current memory."""
    ctypes.CDLL(None).malloc_trim(0)
    RESET_PEAK.write_text("5")  # proc(5): resets the peak


def resident_peak() -> float:
    """Return the peak of the process's resident memory since `reset_peak`, in MiB."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
