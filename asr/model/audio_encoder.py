"""Whisper's encoder over a checkpoint's own weights.

A window may have fewer frames than the model's, which then have the first positions. Cf.
transformers' modeling_whisper.WhisperEncoder, whose results these are (to rounding).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.checkpoint.whisper import EncoderLayerWeights, EncoderWeights
from asr.model.cpu_kernels import EncoderLinear, encoder_attention
from asr.model.decoder_layer import Norm

# As transformers': half precision would overflow in some checkpoints.
LARGEST_HALF = torch.finfo(torch.float16).max - 1000


class EncoderLayer:
    """Self-attention and a two-layer perceptron, each behind its norm and added to what went in."""

    def __init__(self, source: EncoderLayerWeights, dtype: torch.dtype | None) -> None:
        own = source.self_attn
        self.heads = own.num_heads
        self.norm, self.inner_norm = map(
            Norm.of, (source.self_attn_layer_norm, source.final_layer_norm)
        )
        self.query, self.key, self.value, self.out, self.fc2 = (
            EncoderLinear(each.weight, each.bias, dtype)
            for each in (own.q_proj, own.k_proj, own.v_proj, own.out_proj, source.fc2)
        )
        self.fc1 = EncoderLinear(source.fc1.weight, source.fc1.bias, dtype, gelu=True)

    def forward(self, x: Tensor) -> Tensor:
        """(windows, frames, d_model) in and out."""
        normed = self.query.rounded(self.norm(x))
        query, keys, values = (
            each.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for each in (self._scaled_query(normed), self.key(normed), self.value(normed))
        )
        mixed = encoder_attention(query, keys, values).transpose(1, 2).flatten(2)
        x = self.out(mixed).to(x.dtype).add_(x)
        x = self.fc2(self.fc1(self.inner_norm(x))).to(x.dtype).add_(x)
        return x.clamp(-LARGEST_HALF, LARGEST_HALF) if x.dtype == torch.float16 else x

    def _scaled_query(self, normed: Tensor) -> Tensor:
        """Scaled before the product with the keys, as transformers does it: rounding follows."""
        query = self.query(normed)
        return query * float((query.shape[-1] // self.heads) ** -0.5)


class AudioEncoder:
    """A checkpoint's encoder; `dtype` is that of its products (see `EncoderLinear`)."""

    def __init__(self, source: EncoderWeights, dtype: torch.dtype | None = None) -> None:
        self.convolutions = source.conv1, source.conv2
        self.positions: Tensor = source.embed_positions.weight
        self.layers = [EncoderLayer(each, dtype) for each in source.layers]
        self.norm = Norm.of(source.layer_norm)

    def forward(self, features: Tensor) -> Tensor:
        """(windows, bands, frames) -> (windows, half as many frames, d_model)."""
        for convolution in self.convolutions:
            features = F.gelu(convolution(features))
        x = features.transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        for layer in self.layers:
            x = layer.forward(x)
        return self.norm(x)
