"""Whisper's decoder over caches in which every row has its own length.

transformers keeps one length for all rows of a batch, so rows cannot draft, accept or end
independently. The one decision: run the checkpoint's own weights through about a hundred lines of
our own instead. A cache is allocated once and never grows or shrinks: a pass writes each row's keys
and values at that row's own positions and looks no further than them, so to take tokens back is to
write over them, and a row's length is known only to whoever feeds it. Query, key and value are one
product; the keys and values of the audio are projected once a window. The heads that follow the
speech leave their queries in the cache as well: with the keys of the audio they say, whenever it is
asked, where each token was heard, without another pass. Cf. transformers'
modeling_whisper.WhisperDecoder, whose results these are (to rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

from asr.model.alignment_heads import AlignmentHead
from asr.model.cpu_kernels import (
    PackedLinear,
    TransposedLinear,
    at_once,
    attention,
    empty_transposed,
)


@dataclass(frozen=True)
class Cache:
    """Keys and values of each layer: of the tokens (rows, heads, width, head size), of the audio
    (.., frames, ..).

    `queries` are what the alignment heads alone ask of the audio, (rows, alignment heads, width,
    head size).
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    audio_keys: tuple[Tensor, ...]
    audio_values: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]

    @property
    def width(self) -> int:
        """How many positions a row holds."""
        return self.keys[0].shape[2]

    def view(self, start: int, stop: int) -> Cache:
        """Rows `start` to `stop`, sharing memory."""
        return Cache(*(tuple(each[start:stop] for each in kind) for kind in self._kinds()))

    def move(self, source: int, target: int) -> None:
        """Overwrites row `target` with row `source`."""
        for kind in self._kinds():
            for each in kind:
                each[target].copy_(each[source])

    def _kinds(self) -> tuple[tuple[Tensor, ...], ...]:
        return self.keys, self.values, self.audio_keys, self.audio_values, self.queries


class Layer:
    """One decoder layer: attention to the tokens so far, attention to the audio, two-layer
    perceptron.

    `aligned` are its heads whose queries are kept.
    """

    def __init__(self, source: WhisperDecoderLayer, aligned: Sequence[int] = ()) -> None:
        tokens, audio = source.self_attn, source.encoder_attn
        self.aligned = torch.tensor(aligned, dtype=torch.long, device=audio.q_proj.weight.device)
        self.heads: int = tokens.num_heads
        self.activation: Callable[[Tensor], Tensor] = source.activation_fn
        self.token_norm, self.audio_norm = (
            _norm(source.self_attn_layer_norm),
            _norm(source.encoder_attn_layer_norm),
        )
        self.last_norm = _norm(source.final_layer_norm)
        self.query_key_value = PackedLinear(*_joint(tokens.q_proj, tokens.k_proj, tokens.v_proj))
        self.token_out, self.audio_out = _affine(tokens.out_proj), _affine(audio.out_proj)
        self.audio_query = _affine(audio.q_proj)
        self.audio_key_value = TransposedLinear(*_joint(audio.k_proj, audio.v_proj))
        self.expand, self.contract = _affine(source.fc1), _affine(source.fc2)

    def attend_tokens(self, x: Tensor, keys: Tensor, values: Tensor, place: Place) -> Tensor:
        """(rows, positions, width) in and out; writes `keys` and `values` (rows, heads, cache
        width, head size).
        """
        query, key, value = self._split(self.query_key_value(_normed(x, self.token_norm)), 3)
        keys[place.rows, :, place.positions] = key
        values[place.rows, :, place.positions] = value
        seen_keys, seen_values = keys[:, :, : place.span], values[:, :, : place.span]
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), seen_keys, seen_values, attn_mask=place.mask
        )
        return self.token_out(_joined(mixed))

    def attend_audio(
        self, x: Tensor, keys: Tensor, values: Tensor, queries: Tensor, place: Place
    ) -> Tensor:
        """(rows, positions, width) in and out; `keys` and `values` (rows, heads, frames, head
        size).

        Writes `queries` (rows, aligned heads, cache width, head size).
        """
        (query,) = self._split(self.audio_query(_normed(x, self.audio_norm)), 1)
        if len(self.aligned):
            queries[place.rows, :, place.positions] = query[:, :, self.aligned]
        return self.audio_out(_joined(attention(query.transpose(1, 2), keys, values)))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The perceptron, (rows, positions, width) in and out."""
        return self.contract(self.activation(self.expand(_normed(x, self.last_norm))))

    def project_audio(self, encoded: Tensor) -> tuple[Tensor, ...]:
        """Keys and values (rows, heads, frames, head size) of `encoded` audio (rows, frames,
        width).
        """
        return tuple(each.transpose(1, 2) for each in self._split(self.audio_key_value(encoded), 2))

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(rows, positions, parts x width) -> `parts` of (rows, positions, heads, head size)."""
        return x.view(*x.shape[:2], parts, self.heads, -1).unbind(dim=2)


@dataclass(frozen=True)
class Place:
    """Where a pass writes and what it sees: the same for every layer."""

    rows: Tensor  # (rows, 1)
    positions: Tensor  # (rows, positions)
    span: int
    mask: Tensor  # (rows, 1, positions, span), 0 or minus infinity


class Decoder:
    """A checkpoint's decoder; holds no state between passes. `aligned` are the heads whose queries
    are kept.
    """

    def __init__(self, model: PreTrainedModel, aligned: Sequence[AlignmentHead] = ()) -> None:
        source = model.model.decoder
        self.layers = [
            Layer(each, [head for layer, head in aligned if layer == number])
            for number, each in enumerate(source.layers)
        ]
        self.token_embeddings: Tensor = source.embed_tokens.weight
        self.position_embeddings: Tensor = source.embed_positions.weight
        self.norm = _norm(source.layer_norm)
        self.output = PackedLinear(model.get_output_embeddings().weight)
        self.frames: int = source.config.max_source_positions
        self.length: int = source.config.max_target_positions
        self.head_size = self.token_embeddings.shape[1] // self.layers[0].heads

    def allocate(self, rows: int, width: int) -> Cache:
        """A cache of `rows` rows with room for `width` tokens each (some beyond `length`, for
        drafts).
        """
        every = [layer.heads for layer in self.layers]

        def zeros(positions: int, heads: Sequence[int] = every) -> tuple[Tensor, ...]:
            return tuple(
                self.token_embeddings.new_zeros(rows, each, positions, self.head_size)
                for each in heads
            )

        def heard() -> tuple[Tensor, ...]:
            return tuple(
                empty_transposed(self.token_embeddings, rows, each, self.frames, self.head_size)
                for each in every
            )

        queries = zeros(width, [len(layer.aligned) for layer in self.layers])
        return Cache(zeros(width), zeros(width), heard(), heard(), queries)

    def listen(self, encoded: Tensor, cache: Cache) -> None:
        """Fills the audio part of `cache` from the encoder's output (rows, frames, width)."""
        together = at_once(encoded.shape[0], encoded.device)
        for start in range(0, encoded.shape[0], together):
            rows = slice(start, start + together)
            for layer, keys, values in zip(
                self.layers, cache.audio_keys, cache.audio_values, strict=True
            ):
                key, value = layer.project_audio(encoded[rows])
                keys[rows].copy_(key)
                values[rows].copy_(value)

    def read(self, tokens: Tensor, positions: Tensor, cache: Cache, span: int) -> Tensor:
        """Hidden states (rows, positions, width) after `tokens` at `positions`, both (rows,
        positions).

        Every position below the first must have been read before; `span` exceeds the largest
        position.
        """
        place = self._place(positions, span)
        x = F.embedding(tokens, self.token_embeddings) + F.embedding(
            positions.clamp(max=self.length - 1), self.position_embeddings
        )
        for number, layer in enumerate(self.layers):
            x = x + layer.attend_tokens(x, cache.keys[number], cache.values[number], place)
            heard = cache.audio_keys[number], cache.audio_values[number], cache.queries[number]
            x = x + layer.attend_audio(x, *heard, place)
            x = x + layer.feed_forward(x)
        return _normed(x, self.norm)

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Scores over the vocabulary; `bias` (vocabulary,) costs nothing here."""
        return self.output(hidden, bias)

    def audio_attention(self, cache: Cache, row: int, positions: slice, frames: int) -> Tensor:
        """Where the alignment heads looked from `positions` of a row, among the first `frames`
        frames of its audio.

        (alignment heads, positions, frames), float32 or wider; sums to 1 over the frames.
        """
        heads = []
        for layer, keys, queries in zip(self.layers, cache.audio_keys, cache.queries, strict=True):
            query, key = (
                _widened(queries[row, :, positions]),
                _widened(keys[row, layer.aligned, :frames]),
            )
            heads.append((query @ key.transpose(1, 2) * self.head_size**-0.5).softmax(dim=-1))
        return torch.cat(heads)

    def _place(self, positions: Tensor, span: int) -> Place:
        device = positions.device
        hidden = torch.arange(span, device=device) > positions[:, None, :, None]
        mask = torch.zeros(
            hidden.shape, device=device, dtype=self.token_embeddings.dtype
        ).masked_fill_(hidden, float("-inf"))
        return Place(
            torch.arange(positions.shape[0], device=device)[:, None], positions, span, mask
        )


class Norm(NamedTuple):
    """A layer norm's parameters, in the order torch takes them."""

    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    epsilon: float


def _norm(source: nn.LayerNorm) -> Norm:
    return Norm(tuple(source.normalized_shape), source.weight, source.bias, source.eps)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, *norm)


def _affine(linear: nn.Linear) -> PackedLinear:
    return PackedLinear(linear.weight, linear.bias)


def _joint(*linears: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weights and bias of one product in place of several over the same input; Whisper's keys have
    no bias.
    """
    weights: list[Tensor] = [each.weight for each in linears]
    none = weights[0].new_zeros(weights[0].shape[0])
    biases: list[Tensor] = [none if each.bias is None else each.bias for each in linears]
    return torch.cat(weights), torch.cat(biases)


def _joined(heads: Tensor) -> Tensor:
    """(rows, heads, positions, head size) -> (rows, positions, width)."""
    return heads.transpose(1, 2).flatten(2)


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
