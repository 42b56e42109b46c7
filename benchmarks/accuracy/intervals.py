"""How sure a comparison of two rules on the same dialogues is.

Whole dialogues are resampled, with both rules' errors on them (paired percentile bootstrap, Efron
1979): errors within a dialogue depend on each other, since one confused voice is many wrong words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.metrics import Count

RESAMPLES = 10_000
TAIL = 2.5  # percent on either side of a 95% interval


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95% interval."""

    value: float
    low: float
    high: float


def difference(ours: Sequence[Count], theirs: Sequence[Count]) -> Interval:
    """Our rate less theirs over all dialogues; negative where ours is better."""
    drawn = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    whole = np.arange(len(ours))[None]
    value = _rates(ours, whole) - _rates(theirs, whole)
    low, high = np.percentile(_rates(ours, drawn) - _rates(theirs, drawn), [TAIL, 100 - TAIL])
    return Interval(float(value[0]), float(low), float(high))


def interval(counts: Sequence[Count]) -> Interval:
    """The rate over all dialogues."""
    return difference(counts, [Count(0.0, count.total) for count in counts])


def points(between: Interval) -> str:
    """A difference in percentage points with the ends of its interval, and what it says."""
    verdict = "no difference shown"
    if between.high < 0:
        verdict = "better"
    elif between.low > 0:
        verdict = "worse"
    value, low, high = (100 * each for each in (between.value, between.low, between.high))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f}): {verdict}"


def pooled(counts: Sequence[Count]) -> Count:
    """All dialogues as one."""
    return Count(sum(count.errors for count in counts), sum(count.total for count in counts))


def _rates(counts: Sequence[Count], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """(resamples,): the pooled rate of each resample (resamples, dialogues)."""
    errors = np.array([count.errors for count in counts], float)[drawn].sum(axis=1)
    totals = np.array([count.total for count in counts], float)[drawn].sum(axis=1)
    return np.asarray(errors / np.maximum(totals, 1e-9))
