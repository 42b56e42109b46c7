"""What the decoder's attention to the audio says about where each token was heard.

The one decision: numbers only. Here are frames and rows of a matrix; what the rows stand for, tokens, words or the
pauses between them, is `asr.alignment`'s matter.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SAMPLES_PER_FRAME = 320  # 20 ms
SMOOTHED_FRAMES = 7


def contrast(attention: Tensor) -> Tensor:
    """What sets each token's attention apart, (tokens, frames), from that of several heads (heads, tokens, frames).

    As openai/whisper's `find_alignment`: what all tokens look at is taken off, a median over time takes off spikes, and
    heads are averaged. Frames are scaled by their deviation over the tokens, but no frame by less than the typical one,
    or the silence that no token looks at would weigh as much as speech.
    """
    variance, mean = torch.var_mean(attention, dim=1, keepdim=True, correction=0)
    scale = (variance + variance.mean(dim=2, keepdim=True)).sqrt().clamp(min=torch.finfo(attention.dtype).tiny)
    contrasted = (attention - mean) / scale
    reach = min(SMOOTHED_FRAMES, 2 * attention.shape[2] - 1) // 2
    windows = F.pad(contrasted, (reach, reach), mode="reflect").unfold(2, 2 * reach + 1, 1)
    return windows.median(dim=3).values.mean(dim=0).float()


def best_path(gain: NDArray[np.float32]) -> NDArray[np.intp]:
    """The column at which each row is entered on the path of most gain from the first cell to the last.

    `gain` is (rows, columns). The path is that of dynamic time warping: it goes a column on, a row on or both, and
    collects every cell it touches. A whole row is one step: the best way to reach column j of it is to enter it at some
    k <= j and walk, which is best[k] + walked[j] - walked[k - 1]; so the best k for every j is a running maximum.
    """
    columns = np.arange(gain.shape[1])
    reached = np.cumsum(gain[0], dtype=np.float64)
    entries = np.zeros(gain.shape, np.intp)
    diagonal = np.zeros(gain.shape, bool)
    for row in range(1, len(gain)):
        walked = np.cumsum(gain[row], dtype=np.float64)
        before = np.append(-np.inf, reached[:-1])
        diagonal[row] = before >= reached
        ahead = np.maximum(before, reached) - walked + gain[row]
        best = np.maximum.accumulate(ahead)
        entries[row] = np.maximum.accumulate(np.where(ahead == best, columns, 0))
        reached = best + walked
    return _traced(entries, diagonal)


def _traced(entries: NDArray[np.intp], diagonal: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Back from the last cell: where each row was entered, and whether from the column before."""
    starts, column = np.zeros(len(entries), np.intp), entries.shape[1] - 1
    for row in range(len(entries) - 1, 0, -1):
        starts[row] = entries[row, column]
        column = starts[row] - int(diagonal[row, starts[row]])
    return starts
