"""Whisper's decoder over caches in which every row has a length of its own.

transformers keeps one length for all rows of a batch. This decoder computes the results of
transformers' modeling_whisper.WhisperDecoder (to rounding) from the checkpoint's weights. Query,
key and value are one product. Keys and values of the audio are one product too, but on a CPU. The
queries of alignment heads are cached, so that word times need no second pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from whosaid.asr.checkpoint.weights import EMBEDDINGS, Weights, WhisperModel, below, projection_of
from whosaid.asr.model.cpu_kernels import (
    PackedLinear,
    TransposedLinear,
    attention,
    empty_transposed,
    encoder_batch_size,
    largest,
)
from whosaid.asr.model.kv_cache import KVCache, zeros
from whosaid.runtime.host_memory import use_large_pages

# Highest scores of a position, computed in float32: 8 beams choose among as many.
EXACT_SCORES = 16
ALIGNED = 8  # outputs: 16 bytes in half precision
MEDIAN_WIDTH = 7  # frames; openai/whisper's `medfilt_width`

AlignmentHead = tuple[int, int]  # layer and head, counted from 0


@dataclass(frozen=True)
class AttentionContext:
    """The cache positions that a pass writes, and its attention mask, for all layers."""

    rows: Tensor  # (rows, 1): row numbers in the cache
    positions: Tensor  # (rows, positions)
    kv_len: int
    mask: Tensor  # (rows, 1, positions, kv_len), 0 or minus infinity


class Norm(NamedTuple):
    """A layer norm."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weights: Weights, name: str) -> Norm:
        return cls(weights[f"{name}.weight"], weights[f"{name}.bias"])

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


class PaddedLinear(PackedLinear):
    """`F.linear` with the outputs padded to a multiple of ALIGNED: (.., inputs) -> (.., outputs).

    Tensor cores are fastest if every row of a matrix begins at a multiple of 16 bytes (NVIDIA,
    Matrix Multiplication Background, "Tensor Core Requirements"); Whisper's multilingual
    vocabularies have 51,865 and 51,866 tokens. The result is a view without the padding.
    """

    def __init__(self, weight: Tensor) -> None:
        """Pad `weight` (outputs, inputs), which then shares the padded memory."""
        self.outputs = len(weight)
        spare = -self.outputs % ALIGNED
        with torch.inference_mode(False):  # the weights may be trained later
            super().__init__(F.pad(weight.detach(), (0, 0, 0, spare)))
            self.spare = weight.new_zeros(spare)
            weight.data = self.weight[: self.outputs]

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        wide = None if bias is None else torch.cat((bias, self.spare))
        return super().__call__(x, wide)[..., : self.outputs]


def vocabulary_product(weight: Tensor, dtype: torch.dtype | None) -> PackedLinear:
    """Return the layer that multiplies by `weight` (tokens, d_model), padded on CUDA.

    `dtype` is the precision of the product, as in `PackedLinear`.
    """
    if weight.device.type == "cuda" and len(weight) % ALIGNED:
        return PaddedLinear(weight)
    return PackedLinear(weight, dtype=dtype)


class SelfAttention:
    """Attention to the text so far, whose keys and values are cached."""

    def __init__(self, weights: Weights, heads: int, dtype: torch.dtype | None) -> None:
        self.heads = heads
        self.norm = Norm.of(weights, "self_attn_layer_norm")
        joined = _joined(weights, *(f"self_attn.{each}_proj" for each in ("q", "k", "v")))
        self.query_key_value = PackedLinear(*joined, dtype)
        self.out = _linear(weights, "self_attn.out_proj", dtype)

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """Add the attention to `x` (rows, positions, d_model); cache its keys and values."""
        joined = self.query_key_value(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1)
        text = cache.layers[number][0]
        text[context.rows, :, :, context.positions] = joined[:, :, 1:]
        keys, values = cache.gathered(text[..., : context.kv_len, :]).unbind(dim=1)
        query = joined[:, :, 0].transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=context.mask)
        return self.out.onto(x, _merge_heads(mixed))

    def first(self, x: Tensor) -> Tensor:
        """Add the attention of a text's first position to itself, without a cache."""
        return self.out.onto(x, self.query_key_value(self.norm(x)).chunk(3, dim=2)[2])


class CrossAttention:
    """Attention to the audio, whose keys and values are projected once per window.

    The queries of the `aligned` heads are cached, from the index `first_aligned` on.
    """

    def __init__(
        self,
        weights: Weights,
        heads: int,
        aligned: Sequence[int],
        first_aligned: int,
        dtype: torch.dtype | None,
    ) -> None:
        self.heads = heads
        self.norm = Norm.of(weights, "encoder_attn_layer_norm")
        own = below(weights, "encoder_attn.")
        self.key_weight, self.value_weight = own["k_proj.weight"], own["v_proj.weight"]
        self.value_bias = own["v_proj.bias"]
        self.aligned = torch.tensor(aligned, dtype=torch.long, device=self.key_weight.device)
        self.aligned_places = slice(first_aligned, first_aligned + len(aligned))
        self.query, self.out = _linear(own, "q_proj", dtype), _linear(own, "out_proj", dtype)
        # A GPU needs one product for both; on a CPU each has a layout of its own.
        self.key_value: tuple[PackedLinear | TransposedLinear, ...]
        if self.key_weight.device.type != "cpu":
            self.key_value = (TransposedLinear(*_joined(own, "k_proj", "v_proj")),)
        else:
            value = TransposedLinear(self.value_weight, self.value_bias, dtype)
            self.key_value = (_linear(own, "k_proj", dtype and torch.bfloat16), value)

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """Add the attention to `x` (rows, positions, d_model); cache the alignment heads' queries.

        With several beams, `x` has a row for each beam and the audio's keys have a row for all
        beams: the positions of all beams query the same audio together.
        """
        query = self.query(self.norm(x)).view(*x.shape[:2], self.heads, -1)
        if len(self.aligned):
            queries = cache.alignment_queries[self.aligned_places]
            queries[:, context.rows, context.positions] = query[:, :, self.aligned].movedim(2, 0)
        keys, values = map(cache.gathered, cache.layers[number][1:])
        query = query.reshape(keys.shape[0], -1, *query.shape[2:])
        mixed = _merge_heads(attention(query.transpose(1, 2), keys, values))
        return self.out.onto(x, mixed.reshape(x.shape))

    def first(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Add the attention from `x` (rows, 1, d_model) to `encoded` (rows, frames, d_model).

        Keys and values would be used only once, so the query and the sum are projected, not each
        frame.
        """
        query = self.query(self.norm(x)).view(len(x), self.heads, -1)
        keys, values = (
            weight.view(self.heads, -1, weight.shape[1])
            for weight in (self.key_weight, self.value_weight)
        )
        scale = float(query.shape[-1] ** -0.5)
        projected = torch.einsum("rhs,hsd->rhd", query * scale, keys)
        mixed = (projected @ encoded.transpose(1, 2)).softmax(dim=-1) @ encoded
        mixed = torch.einsum("rhd,hsd->rhs", mixed, values).flatten(1) + self.value_bias
        return self.out.onto(x, mixed[:, None])

    def project(self, encoded: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values (rows, heads, frames, head size) of (rows, frames, d_model)."""
        shape = *encoded.shape[:2], 2 // len(self.key_value), self.heads, -1
        projected = (product(encoded).view(shape) for product in self.key_value)
        return tuple(part.transpose(1, 2) for each in projected for part in each.unbind(dim=2))


class DecoderLayer:
    """Self-attention, cross-attention and a perceptron over one layer's `weights`, with `dtype` as
    in `PackedLinear`, `aligned` and `first_aligned` as in `CrossAttention`.
    """

    def __init__(
        self,
        weights: Weights,
        heads: int,
        aligned: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        first_aligned: int = 0,
    ) -> None:
        self.heads = heads
        self.self_attention = SelfAttention(weights, heads, dtype)
        self.cross_attention = CrossAttention(weights, heads, aligned, first_aligned, dtype)
        self.norm = Norm.of(weights, "final_layer_norm")
        self.fc1 = PackedLinear(weights["fc1.weight"], weights["fc1.bias"], dtype, gelu=True)
        self.fc2 = _linear(weights, "fc2", dtype)

    @property
    def aligned(self) -> Tensor:
        """Return the numbers of the alignment heads in this layer."""
        return self.cross_attention.aligned

    @property
    def joined(self) -> tuple[PackedLinear | TransposedLinear, ...]:
        """Return the products whose joined weights are copies of the checkpoint's."""
        key_value = self.cross_attention.key_value
        return self.self_attention.query_key_value, *(key_value if len(key_value) == 1 else ())

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """Run the layer, (rows, positions, d_model) in and out; its cache index is `number`."""
        x = self.self_attention.forward(x, cache, number, context)
        return self.feed_forward(self.cross_attention.forward(x, cache, number, context))

    def first(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Run a text's first position (rows, 1, d_model) through the layer without a cache."""
        return self.feed_forward(self.cross_attention.first(self.self_attention.first(x), encoded))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.fc2.onto(x, self.fc1(self.norm(x)))


class Decoder:
    """A checkpoint's decoder; holds no state between passes.

    The cross-attention queries of the `aligned` heads are cached. `dtype` is the precision of
    products, as in `PackedLinear`. `base_head` maps hidden states to (.., 1, d_model) before they
    are projected onto the vocabulary: head 0 of a Medusa-Linear checkpoint.
    """

    def __init__(
        self,
        model: WhisperModel,
        aligned: Sequence[AlignmentHead] = (),
        dtype: torch.dtype | None = None,
        base_head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        weights, config = dict(model.named_parameters()), model.config
        self.layers: list[DecoderLayer] = []
        for number in range(config.decoder_layers):
            of_layer = below(weights, f"model.decoder.layers.{number}.")
            heads = [head for layer, head in aligned if layer == number]
            before = sum(len(layer.aligned) for layer in self.layers)
            self.layers.append(
                DecoderLayer(of_layer, config.decoder_attention_heads, heads, dtype, before)
            )
        self.aligned = _numbers_of_aligned(self.layers)
        self.token_embeddings = weights[EMBEDDINGS]
        self.position_embeddings = weights["model.decoder.embed_positions.weight"]
        # Precision of cross-attention's keys and values, most of the memory that a step reads.
        self.cross_dtype = self.token_embeddings.dtype if dtype is None else torch.bfloat16
        self.norm = Norm.of(weights, "model.decoder.layer_norm")
        self.output_embeddings = projection_of(weights)
        self.output = vocabulary_product(self.output_embeddings, dtype)
        self.rounded = dtype is not None and self.output.packed
        self.frames: int = config.max_source_positions
        self.max_positions: int = config.max_target_positions
        self.base_head = base_head

    def with_layers(self, layers: Sequence[DecoderLayer]) -> Decoder:
        """Return a copy of this decoder with `layers`, for caches of these layers."""
        other = copy.copy(self)
        other.layers, other.aligned = list(layers), _numbers_of_aligned(layers)
        return other

    def allocate(self, rows: int, max_len: int, num_beams: int = 1) -> KVCache:
        """Return an empty cache of `rows` rows; `max_len` positions include drafts."""
        like, layers, heads = self.token_embeddings, len(self.layers), self.layers[0].heads
        size, every = like.shape[1] // heads, rows * num_beams

        def cross(make: Callable[..., Tensor]) -> Tensor:
            each = like.new_empty(0, dtype=self.cross_dtype)
            of_all = make(each, layers * rows, heads, self.frames, size)
            if of_all.device.type == "cpu":
                use_large_pages(of_all.data_ptr(), of_all.nbytes, written=False)
            return of_all.view(layers, rows, *of_all.shape[1:])

        return KVCache(
            zeros(like, layers, every, 2, heads, max_len, size),
            cross(zeros),
            cross(empty_transposed),
            zeros(like, self.aligned.shape[1], every, max_len, size),
            num_beams,
        )

    def cache_bytes_per_row(self, max_len: int, num_beams: int = 1) -> int:
        like, heads = self.token_embeddings, self.layers[0].heads
        every = 2 * heads * len(self.layers)  # keys and values
        own = (every + self.aligned.shape[1]) * max_len * num_beams * like.element_size()
        cross = every * self.frames * self.cross_dtype.itemsize
        return (own + cross) * (like.shape[1] // heads)

    def fill_cross_kv(self, encoded: Tensor, cache: KVCache) -> None:
        """Project the encoder's output (rows, frames, d_model) into the cache's rows, repeated if
        it has fewer frames than the model, which does not change attention.
        """
        together = encoder_batch_size(encoded.shape[0], encoded.device)
        for start in range(0, encoded.shape[0], together):
            rows = slice(start, start + together)
            places, times = cache.places(rows), self.frames // encoded.shape[1]
            for layer, keys, values in zip(
                self.layers, cache.cross_keys, cache.cross_values, strict=True
            ):
                projected = layer.cross_attention.project(encoded[rows])
                if times > 1:
                    projected = tuple(each.repeat(1, 1, times, 1) for each in projected)
                keys[places], values[places] = projected

    def forward(self, tokens: Tensor, positions: Tensor, cache: KVCache, kv_len: int) -> Tensor:
        """Return hidden states (rows, n, d_model) after `tokens` at `positions`, both (rows, n).

        Every position below the first must be in the cache; `kv_len` exceeds the largest position.
        With several beams, each beam is a row.
        """
        x = self._embed(tokens, positions)
        return self.norm(self.through_layers(x, positions, cache, kv_len))

    def forward_tree(
        self, tokens: Tensor, positions: Tensor, cache: KVCache, visible: Tensor
    ) -> Tensor:
        """Return hidden states (1, n, d_model) of the last n places of a cache, which are filled.

        `tokens` and `positions` (1, n) may repeat positions. Token i attends to the cache's place j
        if `visible` (n, places) has True at (i, j).
        """
        x, (count, length) = self._embed(tokens, positions), visible.shape
        places = torch.arange(length - count, length, device=tokens.device)[None]
        mask = torch.zeros(1, 1, count, length, dtype=x.dtype, device=x.device)
        mask.masked_fill_(~visible, float("-inf"))
        context = AttentionContext(torch.zeros_like(places[:, :1]), places, length, mask)
        for number, layer in enumerate(self.layers):
            x = layer.forward(x, cache, number, context)
        return self.norm(x)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return F.embedding(tokens, self.token_embeddings) + F.embedding(
            positions.clamp(max=self.max_positions - 1), self.position_embeddings
        )

    def first(self, token: int, encoded: Tensor) -> Tensor:
        """Return hidden states (rows, d_model) after the first `token`, without a cache.

        `encoded` is the encoder's output (rows, frames, d_model).
        """
        x = self.token_embeddings[token] + self.position_embeddings[0]
        x = x.expand(len(encoded), 1, -1)
        for layer in self.layers:
            x = layer.first(x, encoded)
        return self.norm(x)[:, 0]

    def through_layers(self, x: Tensor, positions: Tensor, cache: KVCache, kv_len: int) -> Tensor:
        """Run `x` (rows, n, d_model) through the layers alone; arguments as in `forward`."""
        context = self._context(positions, kv_len, cache.selected)
        for number, layer in enumerate(self.layers):
            x = layer.forward(x, cache, number, context)
        return x

    def headed(self, hidden: Tensor) -> Tensor:
        return hidden if self.base_head is None else self.base_head(hidden).squeeze(-2)

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the scores by which tokens are chosen: `scores` after the base head."""
        return self.scores(self.headed(hidden), bias)

    def scores(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return scores over the vocabulary, with `bias` (vocabulary,) added.

        In a lower precision the highest scores are computed again in float32: scores of 30 and more
        are off by 0.06 in bfloat16 and 0.2 in int8, and every 50th choice would differ.
        """
        scores = self.output(hidden, bias)
        if not self.rounded:
            return scores
        _, highest = largest(scores, EXACT_SCORES)
        exact = (self.output_embeddings[highest] @ hidden[..., None]).squeeze(-1)
        return scores.scatter_(-1, highest, exact if bias is None else exact + bias[highest])

    def alignment_attention(
        self,
        cache: KVCache,
        row: int,
        first: int,
        beams: Sequence[int],
        frames: int,
        sharpest: bool = True,
    ) -> NDArray[np.float32]:
        """Return the normalized attention of positions of one row, (positions, frames).

        It is that of the `sharpest` alignment heads, or of all, to the first `frames` frames of the
        audio, recomputed from cached queries. `beams` hold the queries of the positions from
        `first` on.
        """
        of_row = [row * cache.num_beams + beam for beam in beams]
        positions = [*range(first, first + len(beams))]
        device = self.token_embeddings.device
        places = torch.tensor([of_row, positions], dtype=torch.long).to(device)
        queries = upcast(cache.alignment_queries[:, places[0], places[1]])
        layers, heads = self.aligned
        keys = upcast(cache.cross_keys[:, row][layers, heads, :frames])
        scores: Tensor = queries @ keys.transpose(1, 2) * float(queries.shape[-1] ** -0.5)
        heads = scores.softmax(dim=-1)
        kept = normalize_attention(sharpest_heads(heads) if sharpest else heads)
        attention: NDArray[np.float32] = kept.cpu().numpy()
        return attention

    def _context(self, positions: Tensor, kv_len: int, selected: Tensor | None) -> AttentionContext:
        device = positions.device
        future = torch.arange(kv_len, device=device) > positions[:, None, :, None]
        mask = torch.zeros(future.shape, device=device, dtype=self.token_embeddings.dtype)
        if selected is None:
            selected = torch.arange(positions.shape[0], device=device)
        rows = selected[:, None]
        return AttentionContext(rows, positions, kv_len, mask.masked_fill_(future, float("-inf")))


def _linear(weights: Weights, name: str, dtype: torch.dtype | None) -> PackedLinear:
    return PackedLinear(weights[f"{name}.weight"], weights.get(f"{name}.bias"), dtype)


def _joined(weights: Weights, *names: str) -> tuple[Tensor, Tensor]:
    """Return weight and bias of one product that replaces several over the same input."""
    joined = [weights[f"{name}.weight"] for name in names]
    no_bias = joined[0].new_zeros(joined[0].shape[0])  # Whisper's keys have none
    biases = [weights.get(f"{name}.bias", no_bias) for name in names]
    return torch.cat(joined), torch.cat(biases)


def _numbers_of_aligned(layers: Sequence[DecoderLayer]) -> Tensor:
    """Return the layer numbers and head numbers of all alignment heads, (2, heads)."""
    of_layer = [torch.full_like(layer.aligned, number) for number, layer in enumerate(layers)]
    return torch.stack((torch.cat(of_layer), torch.cat([layer.aligned for layer in layers])))


def _merge_heads(heads: Tensor) -> Tensor:
    """(rows, heads, positions, head size) -> (rows, positions, d_model)."""
    return heads.transpose(1, 2).flatten(2)


def upcast(x: Tensor) -> Tensor:
    """Return float32 or wider: half precision cannot sum 50,000 exponentials."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def alignment_heads(model: WhisperModel) -> tuple[AlignmentHead, ...]:
    """Return the heads that a checkpoint lists and has (distilled ones list a deeper model's), else
    all heads of the upper half of its layers.
    """
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    listed = model.generation_config.to_dict().get("alignment_heads") or ()
    known = tuple((layer, head) for layer, head in listed if layer < layers and head < heads)
    return known or tuple(
        (layer, head) for layer in range(layers // 2, layers) for head in range(heads)
    )


def sharpest_heads(attention: Tensor) -> Tensor:
    """Return the half of the heads (heads, tokens, frames) with the largest mean of the tokens'
    largest weights. The mean over all heads blurs the bounds of words.
    """
    sharpness = attention.amax(dim=2).mean(dim=1)
    return attention[sharpness.topk(-(-len(attention) // 2)).indices]


def normalize_attention(attention: Tensor) -> Tensor:
    """Normalise attention (heads, tokens, frames) over the tokens: (tokens, frames).

    As in openai/whisper's `find_alignment`, subtract the mean over the tokens, remove spikes by a
    median over time, and average the heads. Each frame is divided by the root of its variance over
    the tokens plus the mean variance of all frames: otherwise silence, to which no token attends,
    would weigh as much as speech.
    """
    variance, mean = torch.var_mean(attention, dim=1, keepdim=True, correction=0)
    tiny = torch.finfo(attention.dtype).tiny
    scale = (variance + variance.mean(dim=2, keepdim=True)).sqrt().clamp(min=tiny)
    return _median_filter((attention - mean) / scale).mean(dim=0).float()


def _median_filter(values: Tensor) -> Tensor:
    """Return the median of frames and their neighbours, mirrored at the ends; torch's is slow."""
    reach = min(MEDIAN_WIDTH, 2 * values.shape[2] - 1) // 2
    near = list(
        F.pad(values, (reach, reach), mode="reflect").unfold(2, 2 * reach + 1, 1).unbind(dim=3)
    )
    for place in range(reach + 1):
        for other in range(place + 1, len(near)):
            pair = near[place], near[other]
            near[place], near[other] = torch.minimum(*pair), torch.maximum(*pair)
    return near[reach]
