"""Measures the time of several actions.

Compared functions run interleaved in one process, so that a slow minute of the machine affects all
of them.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from benchmarks.counts import Interval, bootstrap

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


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Return the ratio of two lists' medians from the same repeats, with its 95% interval."""
    above, below = np.asarray(numerator), np.asarray(denominator)
    return bootstrap(
        len(above), lambda drawn: np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    )
