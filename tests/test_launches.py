"""How much a CUDA device is asked for one by one, outside graphs; figures are in docs/gpu.md."""

import pytest

from tests.helpers.launches import count_launches, count_moves
from whosaid.asr.engine.cuda_graphs import PASS_SIZES, pass_sizes


@pytest.mark.reliability
@pytest.mark.slow
def test_a_window_is_few_launches_outside_graphs():
    counts = count_launches()
    assert counts.pop("step") == 2  # the graph, and the copy of its result
    assert sum(counts.values()) <= 94
    assert counts.pop("result") <= 59  # the attention that words are timed by, with its copies
    assert counts["encoder"] + counts["prefill"] <= 16
    assert "moving rows" not in counts  # who enters takes the place of who has ended


def test_rows_that_end_together_are_moved_by_one_gather():
    """Besides the caches: four copies a row, whatever the number of layers."""
    one, eight = count_moves(1), count_moves(8)
    assert one <= 32
    assert eight == one + 7 * 4


def test_every_number_of_windows_is_a_few_passes():
    for count in range(1, 40):
        sizes = pass_sizes(count)
        assert sum(sizes) == count
        assert set(sizes) <= set(PASS_SIZES)
        assert len(sizes) <= count // PASS_SIZES[0] + 2
