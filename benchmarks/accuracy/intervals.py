"""How sure a comparison of two rules on the same dialogues is.

The one decision: what is drawn again is whole dialogues, with both rules' errors on them (paired
bootstrap, Efron 1979, percentiles), because errors within a dialogue hang together: one voice taken
for another is many words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.metrics import Count

DRAWS = 10_000
TAIL = 2.5  # percent cut off on either side: an interval of 95%


@dataclass(frozen=True)
class Interval:
    """A value and where it lies in 95 of 100 draws."""

    value: float
    low: float
    high: float


def difference(ours: Sequence[Count], theirs: Sequence[Count]) -> Interval:
    """Our rate less theirs, over all dialogues; below zero where ours is better."""
    drawn, whole = _drawn(ours), np.arange(len(ours))[None]
    return _interval(
        _rates(ours, whole) - _rates(theirs, whole),
        _rates(ours, drawn) - _rates(theirs, drawn),
    )


def pooled(counts: Sequence[Count]) -> Count:
    """All dialogues as one."""
    return Count(sum(count.errors for count in counts), sum(count.total for count in counts))


def _drawn(counts: Sequence[Count]) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(len(counts), size=(DRAWS, len(counts)))


def _rates(counts: Sequence[Count], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """(draws,): the pooled rate of each draw (draws, dialogues)."""
    errors, totals = (
        np.array([getattr(count, part) for count in counts], float) for part in ("errors", "total")
    )
    return np.asarray(errors[drawn].sum(axis=1) / np.maximum(totals[drawn].sum(axis=1), 1e-9))


def _interval(value: NDArray[np.float64], draws: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(draws, [TAIL, 100 - TAIL])
    return Interval(float(value[0]), float(low), float(high))
