"""What the decoder's attention to the audio says about where each token was heard.

The one decision: numbers only. Here are frames and rows of a matrix; what the rows stand for,
tokens, words or the pauses between them, is `asr.output.alignment`'s matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def dtw(gain: NDArray[np.float32], empty: NDArray[np.float32]) -> NDArray[np.intp]:
    """Shares the columns of `gain` (rows, columns) out among its rows, in order, so that most is
    gained.

    Row r gets columns edges[r] to edges[r + 1] of the answer (rows + 1,); one that gets none gains
    `empty[r]`. This is dynamic time warping in which a column counts for one row alone: shared
    columns would draw every row's beginning forward. A whole row is one step. That the first j
    columns are used up after it means that it began at some k < j and gained the sum from k to j, a
    difference of running sums, so the best k for every j is a running maximum.
    """
    rows, columns = gain.shape
    sums = np.zeros((rows, columns + 1))
    np.cumsum(gain, axis=1, out=sums[:, 1:])
    reached = np.full((rows + 1, columns + 1), -np.inf)
    reached[0, 0] = 0.0
    for row in range(rows):
        best = np.maximum.accumulate(reached[row] - sums[row])
        reached[row + 1] = reached[row] + empty[row]
        np.maximum(reached[row + 1, 1:], sums[row, 1:] + best[:-1], out=reached[row + 1, 1:])
    return _traced(reached, sums)


def _traced(reached: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.intp]:
    """Back from the last column: where each row begins."""
    rows, columns = sums.shape[0], sums.shape[1] - 1
    edges = np.full(rows + 1, columns)
    for row in reversed(range(rows)):
        end = edges[row + 1]
        ahead = reached[row, :end] - sums[row, :end]
        begin = int(ahead.argmax()) if end else 0
        taken = end and sums[row, end] + ahead[begin] == reached[row + 1, end]
        edges[row] = begin if taken else end
    return edges
