"""Where each token was heard."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLES_PER_FRAME = 320  # of attention to the audio: 20 ms
SMOOTHED_FRAMES = 7  # openai/whisper, `timing.py`


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
