"""Counts errors, and compares two systems with confidence intervals.

Intervals are paired percentile bootstraps (Efron 1979). Whole recordings, or whole repeats, are
resampled together with both systems' figures, because these are correlated. Few recordings give
wide intervals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
TAIL = 2.5  # percent on either side of a 95% interval


@dataclass(frozen=True)
class Count:
    """Errors out of a total. Counts can be added, rates cannot."""

    errors: float
    total: float

    @property
    def rate(self) -> float:
        """Errors divided by the total; 0 if the total is 0."""
        return self.errors / self.total if self.total else 0.0


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def pooled(counts: Sequence[Count]) -> Count:
    return Count(sum(count.errors for count in counts), sum(count.total for count in counts))


def bootstrap(size: int, statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> Interval:
    """Return a statistic of `size` observations with its interval; `statistic` takes the indices of
    several draws (draws, size) and returns the value of each.
    """
    drawn = np.random.default_rng(0).integers(size, size=(RESAMPLES, size))
    (value,) = statistic(np.arange(size)[None])
    low, high = np.percentile(statistic(drawn), [TAIL, 100 - TAIL])
    return Interval(float(value), float(low), float(high))


def percent(counts: Sequence[Count]) -> str:
    """Return the pooled rate with its interval, if there are several counts."""
    if len(counts) < 2:
        return f"{pooled(counts).rate:.1%}"
    found = bootstrap(len(counts), lambda drawn: _rates(counts, drawn))
    return f"{found.value:.1%} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def difference(ours: Sequence[Count], theirs: Sequence[Count]) -> Interval:
    """Return our pooled rate less theirs; negative if ours is better."""
    return bootstrap(len(ours), lambda drawn: _rates(ours, drawn) - _rates(theirs, drawn))


def points(between: Interval) -> str:
    """Return a difference in percentage points with its interval and a verdict."""
    verdict = "no difference shown"
    if between.high < 0:
        verdict = "better"
    elif between.low > 0:
        verdict = "worse"
    value, low, high = (100 * each for each in (between.value, between.low, between.high))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f}): {verdict}"


def _rates(counts: Sequence[Count], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """(resamples,): the pooled rate of each resample (resamples, recordings)."""
    errors = np.array([count.errors for count in counts], float)[drawn].sum(axis=1)
    totals = np.array([count.total for count in counts], float)[drawn].sum(axis=1)
    return np.asarray(errors / np.maximum(totals, 1e-9))
