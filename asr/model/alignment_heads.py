"""The cross-attention heads that follow the speech, and the normalisation of their attention.

`asr.output.alignment` computes word times from the result.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.checkpoint.weights import WhisperModel

AlignmentHead = tuple[int, int]  # layer and head, counted from 0
MEDIAN_WIDTH = 7  # frames; openai/whisper's `medfilt_width`


def alignment_heads(model: WhisperModel) -> tuple[AlignmentHead, ...]:
    """Return the heads that a checkpoint lists, else all heads of the upper half of its layers.

    Heads that do not exist are skipped: some distilled checkpoints list the heads of a deeper
    model.
    """
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    listed = model.generation_config.to_dict().get("alignment_heads") or ()
    known = tuple((layer, head) for layer, head in listed if layer < layers and head < heads)
    return known or tuple(
        (layer, head) for layer in range(layers // 2, layers) for head in range(heads)
    )


def normalize_attention(attention: Tensor) -> Tensor:
    """Normalise attention (heads, tokens, frames) over the tokens: (tokens, frames).

    As in openai/whisper's `find_alignment`, subtract the mean over the tokens, remove spikes by a
    median over time, and average the heads. Each frame is divided by the root of its variance over
    the tokens plus the mean variance of all frames: otherwise silence, to which no token attends,
    would weigh as much as speech.
    """
    variance, mean = torch.var_mean(attention, dim=1, keepdim=True, correction=0)
    scale = (
        (variance + variance.mean(dim=2, keepdim=True))
        .sqrt()
        .clamp(min=torch.finfo(attention.dtype).tiny)
    )
    return _median_filter((attention - mean) / scale).mean(dim=0).float()


def _median_filter(values: Tensor) -> Tensor:
    """Return the median over each frame and its neighbours, mirrored at the ends.

    Half a bubble sort over shifted copies is many times faster than torch's median of seven.
    """
    reach = min(MEDIAN_WIDTH, 2 * values.shape[2] - 1) // 2
    near = list(
        F.pad(values, (reach, reach), mode="reflect").unfold(2, 2 * reach + 1, 1).unbind(dim=3)
    )
    for place in range(reach + 1):
        for other in range(place + 1, len(near)):
            near[place], near[other] = (
                torch.minimum(near[place], near[other]),
                torch.maximum(near[place], near[other]),
            )
    return near[reach]
