"""Viterbi's algorithm for equal costs of change: languages over windows, speakers over words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def likeliest_path(evidence: NDArray[np.float64], change_cost: float) -> list[int]:
    """Return the likeliest path, n states, for `evidence` (n, states) (Viterbi 1967).

    It maximises the sum of the evidence, less `change_cost` for every change of state. Because
    every change costs the same, the best change starts from the best state so far.
    """
    stay = np.arange(evidence.shape[1])
    total, backpointers = evidence[0], []
    for row in evidence[1:]:
        best = int(total.argmax())
        changed = total[best] - change_cost
        backpointers.append(np.where(total >= changed, stay, best))
        total = np.maximum(total, changed) + row
    path = [int(total.argmax())]
    for previous in reversed(backpointers):
        path.append(int(previous[path[-1]]))
    return path[::-1]
