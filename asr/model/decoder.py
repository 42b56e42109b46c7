"""Whisper's decoder over caches in which every row has a length of its own.

transformers keeps one length for all rows of a batch, so rows cannot draft, accept or end
independently. So the checkpoint's own weights run through a small decoder of our own. Alignment
heads cache their queries, so word times need no second pass. Cf. transformers'
modeling_whisper.WhisperDecoder, whose results these are (to rounding).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.checkpoint.whisper import WhisperModel
from asr.model.alignment_heads import AlignmentHead
from asr.model.cpu_kernels import empty_keys, empty_transposed, encoder_batch_size, largest
from asr.model.decoder_layer import AttentionContext, DecoderLayer, Norm
from asr.model.kv_cache import KVCache, zeros
from asr.model.vocabulary import vocabulary_product

# Scores a position computed in float32 whatever the precision: as many as 8 beams choose among.
EXACT_SCORES = 16


class Decoder:
    """A checkpoint's decoder; holds no state between passes.

    `aligned` are the alignment heads: those whose cross-attention queries are kept. `dtype` is that
    of its products (see `PackedLinear`). `base_head` maps hidden states (.., d_model) before they
    are projected onto the vocabulary: head 0 of a Medusa-Linear checkpoint.
    """

    def __init__(
        self,
        model: WhisperModel,
        aligned: Sequence[AlignmentHead] = (),
        dtype: torch.dtype | None = None,
        base_head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        source = model.get_decoder()
        self.layers: list[DecoderLayer] = []
        for number, each in enumerate(source.layers):
            heads = [head for layer, head in aligned if layer == number]
            before = sum(len(layer.aligned) for layer in self.layers)
            self.layers.append(DecoderLayer(each, heads, dtype, before))
        self.aligned = _numbers_of_aligned(self.layers)
        self.token_embeddings: Tensor = source.embed_tokens.weight
        self.position_embeddings: Tensor = source.embed_positions.weight
        # Cross-attention's keys and values in memory: what a step mostly reads.
        self.cross_dtype = self.token_embeddings.dtype if dtype is None else torch.bfloat16
        self.norm = Norm.of(source.layer_norm)
        self.output_embeddings: Tensor = model.get_output_embeddings().weight
        self.output = vocabulary_product(self.output_embeddings, dtype)
        self.rounded = dtype is not None and self.output.packed
        self.frames: int = model.config.max_source_positions
        self.max_positions: int = model.config.max_target_positions
        self.head_size = self.token_embeddings.shape[1] // self.layers[0].heads
        self.base_head = base_head

    def with_layers(self, layers: Sequence[DecoderLayer]) -> Decoder:
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
            zeros(like, layers, every, heads, max_len, size),
            zeros(like, layers, every, heads, max_len, size),
            cross(empty_keys),
            cross(empty_transposed),
            zeros(like, aligned, every, max_len, size),
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
                projected = layer.cross_attention.project(encoded[rows])
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
        return self.norm(self.through_layers(x, positions, cache, kv_len))

    def first(self, token: int, encoded: Tensor) -> Tensor:
        """Hidden states (rows, d_model) after `token` as the first one, without a cache, of the
        encoder's output (rows, frames, d_model).
        """
        x = self.token_embeddings[token] + self.position_embeddings[0]
        x = x.expand(len(encoded), 1, -1)
        for layer in self.layers:
            x = layer.first(x, encoded)
        return self.norm(x)[:, 0]

    def through_layers(self, x: Tensor, positions: Tensor, cache: KVCache, kv_len: int) -> Tensor:
        """The layers alone, (rows, positions, d_model) in and out; see `forward`."""
        context = self._context(positions, kv_len, cache.selected)
        for number, layer in enumerate(self.layers):
            x = layer.forward(x, cache, number, context)
        return x

    def headed(self, hidden: Tensor) -> Tensor:
        """What tokens are chosen by: the base head's output where there is one."""
        return hidden if self.base_head is None else self.base_head(hidden)

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """The `scores` by which tokens are chosen."""
        return self.scores(self.headed(hidden), bias)

    def scores(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Scores over the vocabulary; adding `bias` (vocabulary,) is part of the product.

        In a lower precision the highest are computed again, in float32: scores of 30 and more are
        off by 0.06 in bfloat16 and 0.2 in int8, and every 50th choice would be another.
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


def _numbers_of_aligned(layers: Sequence[DecoderLayer]) -> Tensor:
    """The layer and the number in it of every alignment head, (2, heads)."""
    of_layer = [torch.full_like(layer.aligned, number) for number, layer in enumerate(layers)]
    return torch.stack((torch.cat(of_layer), torch.cat([layer.aligned for layer in layers])))


def _upcast(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
