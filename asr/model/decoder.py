"""Whisper's decoder over caches in which every row has a length of its own.

transformers keeps one length for all rows of a batch, so rows cannot draft, accept or end
independently. So the checkpoint's own weights run through a small decoder of our own. Query, key
and value are one product; the keys and values of the audio are projected once a window; alignment
heads cache their queries, so word times need no second pass. Cf. transformers'
modeling_whisper.WhisperDecoder, whose results these are (to rounding).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

from asr.model.alignment_heads import AlignmentHead
from asr.model.cpu_kernels import (
    PackedLinear,
    TransposedLinear,
    attention,
    empty_keys,
    empty_transposed,
    encoder_batch_size,
)
from asr.model.kv_cache import KVCache

# Scores a position computed in float32 whatever the precision: as many as 8 beams choose among.
EXACT_SCORES = 16


@dataclass(frozen=True)
class AttentionContext:
    """Where a pass writes and what it attends to: the same for every layer."""

    rows: Tensor  # (rows, 1): their places in the cache
    positions: Tensor  # (rows, positions)
    kv_len: int
    mask: Tensor  # (rows, 1, positions, kv_len), 0 or minus infinity


class Layer:
    """One decoder layer: self-attention, cross-attention, two-layer perceptron.

    `aligned` are the heads whose cross-attention queries are kept, from place `first_aligned` of
    the cache's on; `dtype` is that of its products (see `PackedLinear`).
    """

    def __init__(
        self,
        source: WhisperDecoderLayer,
        aligned: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        first_aligned: int = 0,
    ) -> None:
        own, cross = source.self_attn, source.encoder_attn
        self.aligned = torch.tensor(aligned, dtype=torch.long, device=cross.q_proj.weight.device)
        self.aligned_places = slice(first_aligned, first_aligned + len(aligned))
        self.heads: int = own.num_heads
        gelu = isinstance(source.activation_fn, GELUActivation)
        self.activation: Callable[[Tensor], Tensor] | None = None if gelu else source.activation_fn
        self.self_norm = _norm(source.self_attn_layer_norm)
        self.cross_norm = _norm(source.encoder_attn_layer_norm)
        self.mlp_norm = _norm(source.final_layer_norm)
        self.query_key_value = PackedLinear(*_fused(own.q_proj, own.k_proj, own.v_proj), dtype)
        self.self_out, self.cross_out = _linear(own.out_proj, dtype), _linear(cross.out_proj, dtype)
        self.cross_query = _linear(cross.q_proj, dtype)
        self.rounded = dtype is not None
        if dtype is None:
            self.cross_key_value = TransposedLinear(*_fused(cross.k_proj, cross.v_proj))
        else:
            self.cross_key = _linear(cross.k_proj, torch.bfloat16)
            self.cross_value = TransposedLinear(cross.v_proj.weight, cross.v_proj.bias, dtype)
        self.fc1 = PackedLinear(source.fc1.weight, source.fc1.bias, dtype, gelu)
        self.fc2 = _linear(source.fc2, dtype)

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """(rows, positions, d_model) in and out; `number` is the layer's place in the cache."""
        x = x + self.self_attention(x, cache, number, context)
        x = x + self.cross_attention(x, cache, number, context)
        return x + self.feed_forward(x)

    def self_attention(
        self, x: Tensor, cache: KVCache, number: int, context: AttentionContext
    ) -> Tensor:
        """(rows, positions, d_model) in and out; keys and values of the positions are cached."""
        query, key, value = self._split_heads(self.query_key_value(_normed(x, self.self_norm)), 3)
        keys, values = cache.keys[number], cache.values[number]
        keys[context.rows, :, context.positions] = key
        values[context.rows, :, context.positions] = value
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            cache.gathered(keys[:, :, : context.kv_len]),
            cache.gathered(values[:, :, : context.kv_len]),
            attn_mask=context.mask,
        )
        return self.self_out(_merge_heads(mixed))

    def cross_attention(
        self, x: Tensor, cache: KVCache, number: int, context: AttentionContext
    ) -> Tensor:
        """(rows, positions, d_model) in and out; queries of the alignment heads are cached.

        Of several beams for each row of the audio's keys, x and the queries have a row a beam:
        beams are more positions that ask the same audio.
        """
        (query,) = self._split_heads(self.cross_query(_normed(x, self.cross_norm)), 1)
        if len(self.aligned):
            queries = cache.alignment_queries[self.aligned_places]
            queries[:, context.rows, context.positions] = query[:, :, self.aligned].movedim(2, 0)
        keys = cache.gathered(cache.cross_keys[number])
        values = cache.gathered(cache.cross_values[number])
        query = query.reshape(keys.shape[0], -1, *query.shape[2:])
        mixed = _merge_heads(attention(query.transpose(1, 2), keys, values))
        return self.cross_out(mixed.reshape(x.shape))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The perceptron, (rows, positions, d_model) in and out."""
        inner = self.fc1(_normed(x, self.mlp_norm))
        return self.fc2(inner if self.activation is None else self.activation(inner))

    @property
    def joined(self) -> tuple[PackedLinear | TransposedLinear, ...]:
        """The products whose weights were joined of several, and so are held beside those."""
        return (
            (self.query_key_value,)
            if self.rounded
            else (self.query_key_value, self.cross_key_value)
        )

    def project_cross_kv(self, encoded: Tensor) -> tuple[Tensor, ...]:
        """Keys and values (rows, heads, frames, head size) of (rows, frames, d_model)."""
        if self.rounded:
            both = self.cross_key(encoded), self.cross_value(encoded)
            split = tuple(self._split_heads(each, 1)[0] for each in both)
        else:
            split = self._split_heads(self.cross_key_value(encoded), 2)
        return tuple(each.transpose(1, 2) for each in split)

    def _split_heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(rows, positions, parts x d_model) -> `parts` of (rows, positions, heads, head size)."""
        return x.view(*x.shape[:2], parts, self.heads, -1).unbind(dim=2)


class Decoder:
    """A checkpoint's decoder; holds no state between passes.

    `aligned` are the alignment heads: those whose cross-attention queries are kept. `dtype` is that
    of its products (see `PackedLinear`). `base_head` maps hidden states (.., d_model) before they
    are projected onto the vocabulary: head 0 of a Medusa-Linear checkpoint.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        aligned: Sequence[AlignmentHead] = (),
        dtype: torch.dtype | None = None,
        base_head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        source = model.model.decoder
        self.layers: list[Layer] = []
        for number, each in enumerate(source.layers):
            heads = [head for layer, head in aligned if layer == number]
            before = sum(len(layer.aligned) for layer in self.layers)
            self.layers.append(Layer(each, heads, dtype, before))
        self.aligned = _numbers_of_aligned(self.layers)
        self.token_embeddings: Tensor = source.embed_tokens.weight
        self.position_embeddings: Tensor = source.embed_positions.weight
        # Cross-attention's keys and values in memory: what a step mostly reads.
        self.cross_dtype = self.token_embeddings.dtype if dtype is None else torch.bfloat16
        self.norm = _norm(source.layer_norm)
        self.output_embeddings: Tensor = model.get_output_embeddings().weight
        self.output = PackedLinear(self.output_embeddings, dtype=dtype)
        self.rounded = dtype is not None and self.output.packed
        self.frames: int = source.config.max_source_positions
        self.max_positions: int = source.config.max_target_positions
        self.head_size = self.token_embeddings.shape[1] // self.layers[0].heads
        self.base_head = base_head

    def with_layers(self, layers: Sequence[Layer]) -> Decoder:
        """The same decoder with other layers, and so with caches of other layers."""
        other = copy.copy(self)
        other.layers, other.aligned = list(layers), _numbers_of_aligned(layers)
        return other

    def allocate(self, rows: int, max_len: int, num_beams: int = 1) -> KVCache:
        """A cache of `rows` rows of `max_len` positions each (more than a text, for drafts)."""
        like, layers, heads = self.token_embeddings, len(self.layers), self.layers[0].heads
        aligned = sum(len(layer.aligned) for layer in self.layers)
        size, every = self.head_size, rows * num_beams

        def cross(make: Callable[..., Tensor]) -> Tensor:
            each = like.new_empty(0, dtype=self.cross_dtype)
            of_all = make(each, layers * rows, heads, self.frames, size)
            return of_all.view(layers, rows, *of_all.shape[1:])

        return KVCache(
            like.new_zeros(layers, every, heads, max_len, size),
            like.new_zeros(layers, every, heads, max_len, size),
            cross(empty_keys),
            cross(empty_transposed),
            like.new_zeros(aligned, every, max_len, size),
            num_beams,
        )

    def cache_bytes_per_row(self, max_len: int, num_beams: int = 1) -> int:
        """Memory of one row of such a cache, in bytes."""
        own = sum(2 * layer.heads + len(layer.aligned) for layer in self.layers) * max_len
        cross = sum(2 * layer.heads for layer in self.layers) * self.frames
        held = own * num_beams * self.token_embeddings.element_size()
        return int((held + cross * self.cross_dtype.itemsize) * self.head_size)

    def fill_cross_kv(self, encoded: Tensor, cache: KVCache) -> None:
        """Project the encoder's output (rows, frames, d_model) into the cache's rows; fewer frames
        than the model's are repeated, which changes no attention.
        """
        together = encoder_batch_size(encoded.shape[0], encoded.device)
        for start in range(0, encoded.shape[0], together):
            rows = slice(start, start + together)
            places, times = cache.places(rows), self.frames // encoded.shape[1]
            for layer, keys, values in zip(
                self.layers, cache.cross_keys, cache.cross_values, strict=True
            ):
                projected = layer.project_cross_kv(encoded[rows])
                if times > 1:
                    projected = tuple(each.repeat(1, 1, times, 1) for each in projected)
                keys[places], values[places] = projected

    def forward(self, tokens: Tensor, positions: Tensor, cache: KVCache, kv_len: int) -> Tensor:
        """Hidden states (rows, positions, d_model) after `tokens` at `positions`, both (rows, n).

        Every position below the first must be in the cache; `kv_len` exceeds the largest position.
        Where the cache has several beams, each has a row here.
        """
        x = F.embedding(tokens, self.token_embeddings) + F.embedding(
            positions.clamp(max=self.max_positions - 1), self.position_embeddings
        )
        return _normed(self.through_layers(x, positions, cache, kv_len), self.norm)

    def through_layers(self, x: Tensor, positions: Tensor, cache: KVCache, kv_len: int) -> Tensor:
        """The layers alone, (rows, positions, d_model) in and out; see `forward`."""
        context = self._context(positions, kv_len, cache.selected)
        for number, layer in enumerate(self.layers):
            x = layer.forward(x, cache, number, context)
        return x

    def logits(
        self, hidden: Tensor, bias: Tensor | None = None, whisper_alone: bool = False
    ) -> Tensor:
        """Scores over the vocabulary; adding `bias` (vocabulary,) is part of the product.

        They are those of the base head's output where there is one, except with `whisper_alone`.
        In a lower precision the highest are computed again, in float32: scores of 30 and more are
        off by 0.06 in bfloat16 and 0.2 in int8, and every 50th choice would be another.
        """
        if self.base_head is not None and not whisper_alone:
            hidden = self.base_head(hidden)
        scores = self.output(hidden, bias)
        if not self.rounded:
            return scores
        highest = scores.topk(min(EXACT_SCORES, scores.shape[-1]), dim=-1).indices
        exact = (self.output_embeddings[highest] @ hidden[..., None]).squeeze(-1)
        return scores.scatter_(-1, highest, exact if bias is None else exact + bias[highest])

    def alignment_attention(
        self,
        cache: KVCache,
        row: int,
        positions: slice,
        frames: int,
        beams: Sequence[int] | None = None,
    ) -> Tensor:
        """Cross-attention of the alignment heads, recomputed from their cached queries.

        (alignment heads, positions, frames) of one row, among the first `frames` frames of its
        audio; float32 or wider; sums to 1 over the frames. `beams` says which beam of the row holds
        the query of each position, by default the first.
        """
        every = range(positions.start, positions.stop)
        of_row = [row * cache.num_beams + beam for beam in beams or [0] * len(every)]
        device = self.token_embeddings.device
        places = torch.tensor([of_row, [*every]], dtype=torch.long).to(device)
        queries = _upcast(cache.alignment_queries[:, places[0], places[1]])
        layers, heads = self.aligned
        keys = _upcast(cache.cross_keys[:, row][layers, heads, :frames])
        scores: Tensor = queries @ keys.transpose(1, 2) * float(self.head_size**-0.5)
        return scores.softmax(dim=-1)

    def _context(self, positions: Tensor, kv_len: int, selected: Tensor | None) -> AttentionContext:
        device = positions.device
        future = torch.arange(kv_len, device=device) > positions[:, None, :, None]
        mask = torch.zeros(future.shape, device=device, dtype=self.token_embeddings.dtype)
        if selected is None:
            selected = torch.arange(positions.shape[0], device=device)
        rows = selected[:, None]
        return AttentionContext(rows, positions, kv_len, mask.masked_fill_(future, float("-inf")))


class Norm(NamedTuple):
    """A layer norm's parameters, in the order torch takes them."""

    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    epsilon: float


def _numbers_of_aligned(layers: Sequence[Layer]) -> Tensor:
    """The layer and the number in it of every alignment head, (2, heads)."""
    of_layer = [torch.full_like(layer.aligned, number) for number, layer in enumerate(layers)]
    return torch.stack((torch.cat(of_layer), torch.cat([layer.aligned for layer in layers])))


def _norm(source: nn.LayerNorm) -> Norm:
    return Norm(tuple(source.normalized_shape), source.weight, source.bias, source.eps)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, *norm)


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


def _merge_heads(heads: Tensor) -> Tensor:
    """(rows, heads, positions, head size) -> (rows, positions, d_model)."""
    return heads.transpose(1, 2).flatten(2)


def _upcast(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
