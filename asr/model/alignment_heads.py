"""The cross-attention heads that follow the speech, and what sets each token's attention apart.

Which heads align is a fact of the checkpoint, and how their attention is normalised needs neither
words nor times; `asr.output` makes word times of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.checkpoint.whisper import WhisperModel

AlignmentHead = tuple[int, int]  # layer and head, counted from 0
MEDIAN_WIDTH = 7  # frames; openai/whisper's `medfilt_width`


def alignment_heads(model: WhisperModel) -> tuple[AlignmentHead, ...]:
    """The heads that look where a token is spoken: those the checkpoint lists, else all of the
    upper half's layers.

    A list copied from a deeper model (some distilled checkpoints have one) counts where it names
    heads that exist.
    """
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    listed = model.generation_config.to_dict().get("alignment_heads") or ()
    known = tuple((layer, head) for layer, head in listed if layer < layers and head < heads)
    return known or tuple(
        (layer, head) for layer in range(layers // 2, layers) for head in range(heads)
    )


def normalize_attention(attention: Tensor) -> Tensor:
    """What sets each token's attention apart, (tokens, frames), from that of several heads (heads,
    tokens, frames).

    As openai/whisper's `find_alignment`: what all tokens look at is taken off, a median over time
    takes off spikes, and heads are averaged. Frames are scaled by their deviation over the tokens,
    but no frame by less than the typical one, or the silence that no token looks at would weigh as
    much as speech.
    """
    variance, mean = torch.var_mean(attention, dim=1, keepdim=True, correction=0)
    scale = (
        (variance + variance.mean(dim=2, keepdim=True))
        .sqrt()
        .clamp(min=torch.finfo(attention.dtype).tiny)
    )
    return _median_filter((attention - mean) / scale).mean(dim=0).float()


def _median_filter(values: Tensor) -> Tensor:
    """The median over each frame and its neighbours, mirrored at the ends.

    Half a bubble sort over shifted copies: for so few neighbours it is many times faster than
    torch's median.
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
