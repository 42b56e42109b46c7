"""The likeliest sequence of states over time, where each change costs the same: of languages over
windows, of speakers over words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def likeliest_path(evidence: NDArray[np.float64], change_cost: float) -> list[int]:
    """The state of each of n steps with the largest sum of `evidence` (n, states), less
    `change_cost` for every change (Viterbi 1967).

    As every change costs the same, only one from the best state so far can be worth it.
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
