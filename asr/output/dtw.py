"""Dynamic time warping: shares frames out among rows, in order, so that the sum gained is largest.

Frames and rows of a matrix are all this module knows; what a row stands for, a token or a pause, is
decided in `asr.output.alignment`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def dtw(gain: NDArray[np.float32], empty: NDArray[np.float32]) -> NDArray[np.intp]:
    """The best way to share the columns of `gain` (rows, columns) out among its rows, in order.

    Row r gets columns edges[r] to edges[r + 1] of the answer (rows + 1,) and gains their sum; a row
    without columns gains `empty[r]`. Unlike openai/whisper's `dtw`, a column counts for one row
    only: shared columns would move the start of every row forward.

    A whole row is one step. If row r ends before column j and began at k < j, it gained sums[r, j]
    - sums[r, k]; the best k for every j is therefore a running maximum.
    """
    rows, columns = gain.shape
    sums = np.zeros((rows, columns + 1))
    np.cumsum(gain, axis=1, out=sums[:, 1:])
    total = np.full((rows + 1, columns + 1), -np.inf)  # the most the first rows gain up to a column
    total[0, 0] = 0.0
    for row in range(rows):
        best = np.maximum.accumulate(total[row] - sums[row])
        total[row + 1] = total[row] + empty[row]
        np.maximum(total[row + 1, 1:], sums[row, 1:] + best[:-1], out=total[row + 1, 1:])
    return _backtrace(total, sums)


def _backtrace(total: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.intp]:
    """The column at which each row begins, found from the last row to the first; then their
    number.
    """
    rows, columns = sums.shape[0], sums.shape[1] - 1
    edges = np.full(rows + 1, columns)
    for row in reversed(range(rows)):
        end = edges[row + 1]
        before = total[row, :end] - sums[row, :end]
        begin = int(np.argmax(before)) if end else 0
        has_columns = end and sums[row, end] + before[begin] == total[row + 1, end]
        edges[row] = begin if has_columns else end
    return edges
