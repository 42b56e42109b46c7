"""The path against all paths."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whosaid.timebase import likeliest_path

evidence = st.integers(1, 6).flatmap(
    lambda count: st.lists(
        st.lists(st.integers(-200, 0), min_size=3, max_size=3), min_size=count, max_size=count
    )
)


@settings(deadline=None)
@given(evidence, st.integers(0, 60))
def test_the_path_is_the_best_of_all(rows, cost):
    values = np.array(rows, float)

    def score(path):
        changes = sum(one != other for one, other in pairwise(path))
        return sum(values[index, each] for index, each in enumerate(path)) - cost * changes

    best = max(map(score, itertools.product(range(3), repeat=len(rows))))
    assert score(likeliest_path(values, cost)) == best
