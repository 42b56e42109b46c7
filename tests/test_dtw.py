"""The best path, against one found cell by cell."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whosaid.asr.output.alignment import dtw


def best_gain(gain, empty):
    """The largest gain of any way to share the columns out, over all rows, starts and ends."""
    rows, columns = gain.shape
    total = np.full((rows + 1, columns + 1), -np.inf)
    total[0, 0] = 0.0
    for row, begin, end in itertools.product(range(rows), range(columns + 1), range(columns + 1)):
        if end >= begin:
            taken = gain[row, begin:end].sum() if end > begin else empty[row]
            total[row + 1, end] = max(total[row + 1, end], total[row, begin] + taken)
    return total[-1, -1]


@given(st.integers(1, 7), st.integers(1, 9), st.floats(-5, 1), st.integers(0, 2**32 - 1))
def test_no_path_gains_more(rows, columns, least, seed):
    random = np.random.default_rng(seed)
    gain, empty = random.normal(size=(rows, columns)), random.uniform(least - 1, least, rows)
    edges = dtw(gain, empty)
    assert (edges[0], edges[-1]) == (0, columns)
    spans = list(itertools.pairwise(edges))
    assert all(start <= stop for start, stop in spans)
    gained = 0.0
    for row, (start, stop) in enumerate(spans):
        gained += gain[row, start:stop].sum() if stop > start else empty[row]
    assert gained == pytest.approx(best_gain(gain, empty))


def test_a_path_follows_the_blocks_of_gain():
    gain = -np.ones((4, 20))
    for row, (start, stop) in enumerate(((0, 3), (3, 11), (11, 12), (12, 20))):
        gain[row, start:stop] = 1
    assert dtw(gain, np.zeros(4)).tolist() == [0, 3, 11, 12, 20]


def test_costly_empty_rows_get_the_few_columns():
    edges = dtw(np.zeros((5, 3)), np.array([-9.0, 0.0, -9.0, 0.0, -9.0]))
    assert np.diff(edges).tolist() == [1, 0, 1, 0, 1]
    assert np.diff(dtw(np.zeros((5, 3)), np.full(5, -9.0))).sum() == 3
