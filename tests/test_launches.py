"""How much a CUDA device is asked for one by one, outside graphs; the table is in docs/gpu.md."""

from __future__ import annotations

import pytest
from launches import count_launches

from asr.engine.cuda_graphs import PASS_SIZES, pass_sizes

# While a row's prefill, its audio's projection and the encoder were launched one by one.
BEFORE = 1949


@pytest.mark.slow
def test_a_window_is_few_launches_outside_graphs():
    counts = count_launches()
    assert counts.pop("step") == 2  # the graph, and the copy of its result
    assert sum(counts.values()) <= 110 < BEFORE / 3
    assert counts.pop("result") <= 53  # the attention that words are timed by
    assert counts["encoder"] + counts["prefill"] <= 14
    assert counts["moving the last row"] <= 18  # whatever the number of layers


def test_every_number_of_windows_is_a_few_passes():
    for count in range(1, 40):
        sizes = pass_sizes(count)
        assert sum(sizes) == count
        assert set(sizes) <= set(PASS_SIZES)
        assert len(sizes) <= count // PASS_SIZES[0] + 2
