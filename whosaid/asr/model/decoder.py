"""Whisper's decoder over caches in which every row has a length of its own.

transformers keeps one length for all rows of a batch, so rows cannot draft, accept or end
independently. This decoder computes the results of transformers' modeling_whisper.WhisperDecoder
(to rounding) from the checkpoint's weights. Query, key and value are one product. Keys and values
of the audio are one product too, unless they are computed in bfloat16. The queries of alignment
heads are cached, so that word times need no second pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whosaid.asr.checkpoint.weights import EMBEDDINGS, Weights, WhisperModel, below, projection_of
from whosaid.asr.model.cpu_kernels import (
    PackedLinear,
    TransposedLinear,
    attention,
    empty_keys,
    empty_transposed,
    encoder_batch_size,
    largest,
)
from whosaid.asr.model.kv_cache import KVCache, zeros

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
        """Attend, (rows, positions, d_model) in and out; cache the positions' keys and values."""
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
        """Attend from a text's first position to itself, without a cache."""
        return self.out(self.query_key_value(self.norm(x)).chunk(3, dim=2)[2])


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
        # float32 needs one product for both; in a lower precision each has a layout of its own.
        self.key_value: tuple[PackedLinear | TransposedLinear, ...]
        if dtype is None:
            self.key_value = (TransposedLinear(*_joined(own, "k_proj", "v_proj")),)
        else:
            value = TransposedLinear(self.value_weight, self.value_bias, dtype)
            self.key_value = (_linear(own, "k_proj", torch.bfloat16), value)

    def forward(self, x: Tensor, cache: KVCache, number: int, context: AttentionContext) -> Tensor:
        """Attend, (rows, positions, d_model) in and out; cache the alignment heads' queries.

        With several beams, `x` has a row for each beam and the audio's keys have a row for all
        beams: the positions of all beams query the same audio together.
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
        """Attend from one position (rows, 1, d_model) to `encoded` (rows, frames, d_model).

        Keys and values would be used only once, so the query and the sum are projected, not each
        frame.
        """
        (query,) = _split_heads(self.query(self.norm(x)), self.heads)
        keys, values = (
            weight.view(self.heads, -1, weight.shape[1])
            for weight in (self.key_weight, self.value_weight)
        )
        scale = float(query.shape[-1] ** -0.5)
        projected = torch.einsum("rhs,hsd->rhd", query[:, 0] * scale, keys)
        mixed = (projected @ encoded.transpose(1, 2)).softmax(dim=-1) @ encoded
        mixed = torch.einsum("rhd,hsd->rhs", mixed, values).flatten(1) + self.value_bias
        return self.out(mixed[:, None])

    def project(self, encoded: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values (rows, heads, frames, head size) of (rows, frames, d_model)."""
        parts = 2 // len(self.key_value)
        return tuple(
            each.transpose(1, 2)
            for product in self.key_value
            for each in _split_heads(product(encoded), self.heads, parts)
        )


class DecoderLayer:
    """Self-attention, cross-attention and a perceptron over one layer's `weights`.

    `dtype` is the precision of products, as in `PackedLinear`; `aligned` and `first_aligned` are as
    in `CrossAttention`.
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
        x = x + self.self_attention.forward(x, cache, number, context)
        x = x + self.cross_attention.forward(x, cache, number, context)
        return x + self.feed_forward(x)

    def first(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Run a text's first position (rows, 1, d_model) through the layer without a cache."""
        x = x + self.self_attention.first(x)
        x = x + self.cross_attention.first(x, encoded)
        return x + self.feed_forward(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.norm(x)))


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
        self.head_size = self.token_embeddings.shape[1] // self.layers[0].heads
        self.base_head = base_head

    def with_layers(self, layers: Sequence[DecoderLayer]) -> Decoder:
        """Return a copy of this decoder with `layers`, for caches of these layers."""
        other = copy.copy(self)
        other.layers, other.aligned = list(layers), _numbers_of_aligned(layers)
        return other

    def allocate(self, rows: int, max_len: int, num_beams: int = 1) -> KVCache:
        """Return an empty cache of `rows` rows; `max_len` positions include drafts."""
        like, layers, heads = self.token_embeddings, len(self.layers), self.layers[0].heads
        aligned = sum(len(layer.aligned) for layer in self.layers)
        size, every = self.head_size, rows * num_beams

        def cross(make: Callable[..., Tensor]) -> Tensor:
            each = like.new_empty(0, dtype=self.cross_dtype)
            of_all = make(each, layers * rows, heads, self.frames, size)
            return of_all.view(layers, rows, *of_all.shape[1:])

        return KVCache(
            zeros(like, layers, every, heads, max_len, size),
            zeros(like, layers, every, heads, max_len, size),
            cross(empty_keys),
            cross(empty_transposed),
            zeros(like, aligned, every, max_len, size),
            num_beams,
        )

    def cache_bytes_per_row(self, max_len: int, num_beams: int = 1) -> int:
        """Return the bytes of one row of a cache from `allocate`."""
        own = sum(2 * layer.heads + len(layer.aligned) for layer in self.layers) * max_len
        cross = sum(2 * layer.heads for layer in self.layers) * self.frames
        held = own * num_beams * self.token_embeddings.element_size()
        return int((held + cross * self.cross_dtype.itemsize) * self.head_size)

    def fill_cross_kv(self, encoded: Tensor, cache: KVCache) -> None:
        """Project the encoder's output (rows, frames, d_model) into the cache's rows.

        If `encoded` has fewer frames than the model, its keys and values are repeated, which does
        not change attention.
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
        x = F.embedding(tokens, self.token_embeddings) + F.embedding(
            positions.clamp(max=self.max_positions - 1), self.position_embeddings
        )
        return self.norm(self.through_layers(x, positions, cache, kv_len))

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
        """Return `hidden` after the base head, if there is one."""
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
        positions: slice,
        frames: int,
        beams: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the alignment heads' attention in one row, recomputed from cached queries.

        The shape is (alignment heads, positions, frames), the type float32 or wider. Attention sums
        to 1 over the first `frames` frames of the audio. `beams` gives the beam that holds each
        position's query, by default the first.
        """
        every = range(positions.start, positions.stop)
        of_row = [row * cache.num_beams + beam for beam in beams or [0] * len(every)]
        device = self.token_embeddings.device
        places = torch.tensor([of_row, [*every]], dtype=torch.long).to(device)
        queries = upcast(cache.alignment_queries[:, places[0], places[1]])
        layers, heads = self.aligned
        keys = upcast(cache.cross_keys[:, row][layers, heads, :frames])
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


def _split_heads(x: Tensor, heads: int, parts: int = 1) -> tuple[Tensor, ...]:
    """(rows, positions, parts x d_model) -> `parts` of (rows, positions, heads, head size)."""
    return x.view(*x.shape[:2], parts, heads, -1).unbind(dim=2)


def _merge_heads(heads: Tensor) -> Tensor:
    """(rows, heads, positions, head size) -> (rows, positions, d_model)."""
    return heads.transpose(1, 2).flatten(2)


def upcast(x: Tensor) -> Tensor:
    """Return float32 or wider: half precision cannot sum 50,000 exponentials."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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
