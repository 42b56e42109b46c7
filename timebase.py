"""The models' two units of time: samples at 16 kHz, and Whisper's grid of 20 ms.

One encoder position (two mel frames) is one step of the timestamp tokens and one column of the
cross-attention. Names are as in openai/whisper's `audio.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
