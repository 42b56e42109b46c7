"""Medusa heads as products: from the newest hidden state to scores for several tokens ahead.

All heads are one product. Their weights are stacked, so that drafting costs one small product and
one over the vocabulary whatever the number of drafts; an assistant reads its weights once for every
token. Cf. aiola-lab/whisper-medusa, `models/model.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.checkpoint.medusa import Heads, MedusaHeads
from asr.model.cpu_kernels import PackedLinear
from asr.model.decoder import Decoder
from asr.model.decoder_layer import DecoderLayer
from asr.model.kv_cache import KVCache
from asr.model.vocabulary import vocabulary_product


class HeadStack:
    """Heads over the same input: (.., d_model) -> (.., heads, d_model).

    `dtype` is that of the first blocks' product (see `PackedLinear`).
    """

    def __init__(self, heads: Heads, dtype: torch.dtype | None = None) -> None:
        first, *self.further = heads
        self.count = first.weight.shape[0]
        self.first = PackedLinear(first.weight.flatten(0, 1), first.bias.flatten(), dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Every head's output."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        inner = F.silu(self.first(rows)).view(-1, self.count, rows.shape[-1])
        x = rows[:, None] + inner
        for weight, bias in self.further:
            by_head = torch.baddbmm(bias[:, None], x.transpose(0, 1), weight.transpose(1, 2))
            x = x + F.silu(by_head).transpose(0, 1)
        return x.view(*hidden.shape[:-1], *x.shape[1:])


class BaseHead:
    """Head 0 of a Medusa-Linear checkpoint: (.., d_model) in and out."""

    def __init__(self, head: Heads, dtype: torch.dtype | None = None) -> None:
        self.stack = HeadStack(head, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        """What is projected onto the vocabulary in place of `hidden`."""
        return self.stack(hidden).squeeze(-2)


class MedusaModel:
    """The heads that draft for `main`, over its vocabulary or a shortlist of it.

    `block` is a decoder of the one further layer of a Medusa-Block checkpoint, which has a cache of
    its own; its output goes to the heads without a norm.
    """

    def __init__(self, main: Decoder, heads: MedusaHeads, dtype: torch.dtype | None = None) -> None:
        self.source = heads
        self.heads = HeadStack(heads.heads, dtype)
        self.like = main.token_embeddings
        self.shortlist = heads.shortlist
        self.output = main.output
        if heads.shortlist is not None:
            self.output = vocabulary_product(main.output_embeddings[heads.shortlist], dtype)
        self.block = None
        if heads.block is not None:
            self.block = main.with_layers([DecoderLayer(heads.block, (), dtype)])

    @property
    def count(self) -> int:
        """How many tokens the heads can draft at once."""
        return self.heads.count

    def scores(self, newest: Tensor, drafts: int, bias: Tensor) -> Tensor:
        """Scores (rows, drafts, vocabulary) of the tokens behind the newest, and `bias` on them.

        `newest` (rows, d_model) are the states that chose the newest tokens. Tokens that are not on
        the shortlist have minus infinity.
        """
        ahead = self.heads(newest)[:, :drafts].contiguous()
        if self.shortlist is None:
            return self.output(ahead, bias)
        listed = self.output(ahead, bias[self.shortlist])
        scores = listed.new_full((*listed.shape[:-1], bias.shape[0]), float("-inf"))
        return scores.index_copy_(-1, self.shortlist, listed)

    def states(
        self, hidden: Tensor, positions: Tensor, cache: KVCache | None, kv_len: int
    ) -> Tensor:
        """What the heads read of the main model's hidden states (rows, n, d_model) at `positions`.

        With a further layer its output, for which its `cache` holds all positions below.
        """
        if self.block is None or cache is None:
            return hidden
        return self.block.through_layers(hidden, positions, cache, kv_len)
