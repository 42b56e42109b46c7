"""One layer of Whisper's decoder: self-attention, cross-attention and a two-layer perceptron, each
behind its norm and added to what went in.

Query, key and value are one product, as are the keys and values of the audio where that is not
rounded. Cf. transformers' modeling_whisper.WhisperDecoderLayer, whose results these are (to
rounding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.checkpoint.whisper import DecoderLayerWeights
from asr.model.cpu_kernels import PackedLinear, TransposedLinear, attention
from asr.model.kv_cache import KVCache


@dataclass(frozen=True)
class AttentionContext:
    """Where a pass writes and what it attends to: the same for every layer."""

    rows: Tensor  # (rows, 1): their places in the cache
    positions: Tensor  # (rows, positions)
    kv_len: int
    mask: Tensor  # (rows, 1, positions, kv_len), 0 or minus infinity


class Norm(NamedTuple):
    """A layer norm's parameters, in the order torch takes them."""

    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    epsilon: float

    @classmethod
    def of(cls, source: nn.LayerNorm) -> Norm:
        """Those of a module."""
        return cls(tuple(source.normalized_shape), source.weight, source.bias, source.eps)

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d_model) in and out."""
        return F.layer_norm(x, *self)


class SelfAttention:
    """Attention to the text so far, whose keys and values are cached."""

    def __init__(self, source: DecoderLayerWeights, dtype: torch.dtype | None) -> None:
        own = source.self_attn
        self.heads: int = own.num_heads
        self.norm = Norm.of(source.self_attn_layer_norm)
        self.query_key_value = PackedLinear(*_fused(own.q_proj, own.k_proj, own.v_proj), dtype)
        self.out = _linear(own.out_proj, dtype)

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """(rows, positions, d_model) in and out; keys and values of the positions are cached."""
        query, key, value = _split_heads(self.query_key_value(self.norm(x)), self.heads, 3)
        keys, values = cache.keys[number], cache.values[number]
        keys[context.rows, :, context.positions] = key
        values[context.rows, :, context.positions] = value
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            cache.gathered(keys[:, :, : context.kv_len]),
            cache.gathered(values[:, :, : context.kv_len]),
            attn_mask=context.mask,
        )
        return self.out(_merge_heads(mixed))

    def first(self, x: Tensor) -> Tensor:
        """Of a text's first position, which attends to itself alone; nothing is cached."""
        return self.out(self.query_key_value(self.norm(x)).chunk(3, dim=2)[2])


class CrossAttention:
    """Attention to the audio, whose keys and values are projected once a window.

    `aligned` are the heads whose queries are kept, from place `first_aligned` of the cache's on.
    """

    def __init__(
        self,
        source: DecoderLayerWeights,
        aligned: Sequence[int],
        first_aligned: int,
        dtype: torch.dtype | None,
    ) -> None:
        own = source.encoder_attn
        self.source, self.heads = own, int(own.num_heads)
        self.aligned = torch.tensor(aligned, dtype=torch.long, device=own.q_proj.weight.device)
        self.aligned_places = slice(first_aligned, first_aligned + len(aligned))
        self.norm = Norm.of(source.encoder_attn_layer_norm)
        self.query, self.out = _linear(own.q_proj, dtype), _linear(own.out_proj, dtype)
        # One product for both, in float32; in a lower precision each has a layout of its own.
        self.key_value: tuple[PackedLinear | TransposedLinear, ...]
        if dtype is None:
            self.key_value = (TransposedLinear(*_fused(own.k_proj, own.v_proj)),)
        else:
            value = TransposedLinear(own.v_proj.weight, own.v_proj.bias, dtype)
            self.key_value = (_linear(own.k_proj, torch.bfloat16), value)

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """(rows, positions, d_model) in and out; queries of the alignment heads are cached.

        Of several beams for each row of the audio's keys, x and the queries have a row a beam:
        beams are more positions that ask the same audio.
        """
        (query,) = _split_heads(self.query(self.norm(x)), self.heads)
        if len(self.aligned):
            queries = cache.alignment_queries[self.aligned_places]
            queries[:, context.rows, context.positions] = query[:, :, self.aligned].movedim(2, 0)
        keys = cache.gathered(cache.cross_keys[number])
        values = cache.gathered(cache.cross_values[number])
        query = query.reshape(keys.shape[0], -1, *query.shape[2:])
        mixed = _merge_heads(attention(query.transpose(1, 2), keys, values))
        return self.out(mixed.reshape(x.shape))

    def first(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Of one position (rows, 1, d_model) in the encoder's output (rows, frames, d_model), whose
        keys and values nobody else asks for: query and sum are projected, not every frame.
        """
        (query,) = _split_heads(self.query(self.norm(x)), self.heads)
        keys, values = (
            each.weight.view(self.heads, -1, each.in_features)
            for each in (self.source.k_proj, self.source.v_proj)
        )
        scale = float(query.shape[-1] ** -0.5)
        asked = torch.einsum("rhs,hsd->rhd", query[:, 0] * scale, keys)
        heard = (asked @ encoded.transpose(1, 2)).softmax(dim=-1) @ encoded
        mixed = torch.einsum("rhd,hsd->rhs", heard, values).flatten(1) + self.source.v_proj.bias
        return self.out(mixed[:, None])

    def project(self, encoded: Tensor) -> tuple[Tensor, ...]:
        """Keys and values (rows, heads, frames, head size) of (rows, frames, d_model)."""
        parts = 2 // len(self.key_value)
        return tuple(
            each.transpose(1, 2)
            for product in self.key_value
            for each in _split_heads(product(encoded), self.heads, parts)
        )


class FeedForward:
    """The perceptron."""

    def __init__(self, source: DecoderLayerWeights, dtype: torch.dtype | None) -> None:
        self.norm = Norm.of(source.final_layer_norm)
        self.fc1 = PackedLinear(source.fc1.weight, source.fc1.bias, dtype, gelu=True)
        self.fc2 = _linear(source.fc2, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, positions, d_model) in and out."""
        return self.fc2(self.fc1(self.norm(x)))


class DecoderLayer:
    """The three parts; `dtype` is that of their products (see `PackedLinear`).

    `aligned` and `first_aligned` are `CrossAttention`'s.
    """

    def __init__(
        self,
        source: DecoderLayerWeights,
        aligned: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        first_aligned: int = 0,
    ) -> None:
        self.self_attention = SelfAttention(source, dtype)
        self.cross_attention = CrossAttention(source, aligned, first_aligned, dtype)
        self.feed_forward = FeedForward(source, dtype)

    @property
    def heads(self) -> int:
        """How many each attention has."""
        return self.self_attention.heads

    @property
    def aligned(self) -> Tensor:
        """The numbers of its alignment heads."""
        return self.cross_attention.aligned

    @property
    def joined(self) -> tuple[PackedLinear | TransposedLinear, ...]:
        """The products whose weights were joined of several, and so are held beside those."""
        key_value = self.cross_attention.key_value
        return self.self_attention.query_key_value, *(key_value if len(key_value) == 1 else ())

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """(rows, positions, d_model) in and out; `number` is the layer's place in the cache."""
        x = x + self.self_attention.forward(x, cache, number, context)
        x = x + self.cross_attention.forward(x, cache, number, context)
        return x + self.feed_forward.forward(x)

    def first(self, x: Tensor, encoded: Tensor) -> Tensor:
        """The same of a text's first position (rows, 1, d_model), without a cache."""
        x = x + self.self_attention.first(x)
        x = x + self.cross_attention.first(x, encoded)
        return x + self.feed_forward.forward(x)


def _linear(source: nn.Linear, dtype: torch.dtype | None) -> PackedLinear:
    return PackedLinear(source.weight, source.bias, dtype)


def _fused(*linears: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of one product in place of several over the same input.

    Whisper's keys have no bias.
    """
    weights: list[Tensor] = [each.weight for each in linears]
    none = weights[0].new_zeros(weights[0].shape[0])
    biases: list[Tensor] = [none if each.bias is None else each.bias for each in linears]
    return torch.cat(weights), torch.cat(biases)


def _split_heads(x: Tensor, heads: int, parts: int = 1) -> tuple[Tensor, ...]:
    """(rows, positions, parts x d_model) -> `parts` of (rows, positions, heads, head size)."""
    return x.view(*x.shape[:2], parts, heads, -1).unbind(dim=2)


def _merge_heads(heads: Tensor) -> Tensor:
    """(rows, heads, positions, head size) -> (rows, positions, d_model)."""
    return heads.transpose(1, 2).flatten(2)
