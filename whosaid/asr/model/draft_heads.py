"""Medusa heads as products: from the newest hidden state to scores for several tokens ahead.

The weights of all heads are stacked: any number of drafts costs one small product and one over the
vocabulary, whereas an assistant reads its weights once for every token. Compare
aiola-lab/whisper-medusa, `models/model.py`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from whosaid.asr.checkpoint.medusa import Heads, MedusaHeads
from whosaid.asr.model.cpu_kernels import PackedLinear
from whosaid.asr.model.decoder import Decoder, DecoderLayer, vocabulary_product
from whosaid.asr.model.kv_cache import KVCache


class HeadStack:
    """Heads over the same input: (.., d_model) -> (.., heads, d_model).

    `dtype` is the precision of the first blocks' product, as in `PackedLinear`.
    """

    def __init__(self, heads: Heads, dtype: torch.dtype | None = None) -> None:
        first, *self.further = heads
        self.count = first.weight.shape[0]
        self.first = PackedLinear(first.weight.flatten(0, 1), first.bias.flatten(), dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        inner = F.silu(self.first(rows)).view(-1, self.count, rows.shape[-1])
        x = rows[:, None] + inner
        for weight, bias in self.further:
            by_head = torch.baddbmm(bias[:, None], x.transpose(0, 1), weight.transpose(1, 2))
            x = x + F.silu(by_head).transpose(0, 1)
        return x.view(*hidden.shape[:-1], *x.shape[1:])


class MedusaModel:
    """Medusa heads that draft for `main`, over its vocabulary or a shortlist of it.

    `block` is a decoder with the extra layer of a Medusa-Block checkpoint alone, and has its own
    cache. The heads read its output without a norm.
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
            layer = DecoderLayer(heads.block, main.layers[0].heads, dtype=dtype)
            self.block = main.with_layers([layer])

    @property
    def count(self) -> int:
        """Return the largest number of tokens that the heads draft at once."""
        return self.heads.count

    def scores(self, newest: Tensor, drafts: int, bias: Tensor) -> Tensor:
        """Return scores (rows, drafts, vocabulary) of the tokens after the newest, plus `bias`.

        `newest` (rows, d_model) are the states that chose the newest tokens. Tokens off the
        shortlist score minus infinity.
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
        """Return the states that the heads read for `positions`, (rows, n, d_model).

        The states are `hidden`, or the extra layer's output for it if the checkpoint has one. The
        extra layer needs all earlier positions in `cache`.
        """
        if self.block is None or cache is None:
            return hidden
        return self.block.through_layers(hidden, positions, cache, kv_len)
