"""The models' two units of time, samples at 16 kHz and Whisper's grid of 20 ms, and three helpers.

One encoder position (two mel frames) is one step of the timestamp tokens and one column of the
cross-attention. Names are as in openai/whisper's `audio.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

SAMPLE_RATE = 16_000  # Hz; input of Whisper, pyannote and the speech detector
TOKENS_PER_SECOND = 50  # encoder positions, timestamp tokens
SAMPLES_PER_TOKEN = SAMPLE_RATE // TOKENS_PER_SECOND
TIME_PRECISION = 1 / TOKENS_PER_SECOND  # seconds between neighbouring timestamp tokens


def runs(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the start and the stop of every run of True in `flags` (n,), as (runs, 2)."""
    import numpy as np  # not above: command lines read the constants and start without numpy

    return np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2)


def merged(spans: Sequence[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return starts and ends (n,) of the spans in order, joined where they touch or overlap."""
    import numpy as np

    ordered = np.array(sorted(spans), float).reshape(-1, 2)
    latest_end = np.maximum.accumulate(ordered[:, 1])
    # True for each span that starts after all earlier spans have ended.
    first = np.append(True, ordered[1:, 0] > latest_end[:-1])[: len(ordered)]
    return ordered[first, 0], latest_end[np.roll(first, -1)]


def likeliest_path(evidence: NDArray[np.float64], change_cost: float) -> list[int]:
    """Return the likeliest path, n states, for `evidence` (n, states) (Viterbi 1967).

    It maximises the sum of the evidence, less `change_cost` for every change of state. Because
    every change costs the same, the best change starts from the best state so far.
    """
    import numpy as np

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
