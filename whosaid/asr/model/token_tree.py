"""Scores branches of a text in one pass of the decoder.

A branch attends to the cached text before its fork and to itself; all query the same audio. A
beginning that branches share is read once.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from whosaid.asr.model.decoder import Decoder, upcast
from whosaid.asr.model.kv_cache import KVCache

SCORED_AT_ONCE = 64  # positions whose scores over the vocabulary are held at once
# How many tokens of a text come before a branch, and the branch's tokens.
Branch = tuple[int, tuple[int, ...]]


class CachedRow(NamedTuple):
    """A row of a cache: keys and values of its audio, and of its text if it has one beam."""

    decoder: Decoder
    cache: KVCache
    row: int


def score_branches(
    cached: CachedRow, text: Sequence[int], branches: Sequence[Branch]
) -> list[list[float]]:
    """Return the unfiltered log-probabilities of the tokens of each branch of a text, which the row
    has read up to the last fork. The token before a fork is read again.
    """
    decoder, cache, row = cached
    nodes: dict[Branch, int] = {}  # the places of all beginnings of branches
    paths = [
        [nodes.setdefault((fork, own[:count]), len(nodes)) for count in range(len(own))]
        for fork, own in branches
    ]
    length, device = max(fork for fork, _ in branches), decoder.token_embeddings.device
    visible = torch.zeros(len(nodes), length + len(nodes), dtype=torch.bool)
    for (fork, _), node in nodes.items():
        visible[node, : fork - 1] = True
    for path in paths:
        for count, node in enumerate(path, 1):
            visible[node, [length + above for above in path[:count]]] = True
    tokens = [own[-1] if own else text[fork - 1] for fork, own in nodes]
    places = [fork - 1 + len(own) for fork, own in nodes]
    read = torch.tensor([tokens, places]).to(device)
    tree = cache.tree(row, length, len(nodes))
    hidden = decoder.forward_tree(read[:1], read[1:], tree, visible.to(device))[0]
    states = hidden[[node for path in paths for node in path]]
    found = iter(log_probs_of(decoder, states, [token for _, own in branches for token in own]))
    return [list(islice(found, len(path))) for path in paths]


def read_text(cached: CachedRow, text: Sequence[int], first: int) -> tuple[Tensor, CachedRow]:
    """Return the hidden states (n, d_model) of a text from place `first` on, and a row with it. The
    given row has the text before.
    """
    decoder, cache, row = cached
    own = cache.tree(row, first, len(text) - first)
    read = torch.tensor([text[first:], range(first, len(text))])
    read = read.to(decoder.token_embeddings.device)
    hidden = decoder.forward(read[:1], read[1:], own, len(text))[0]
    return hidden, CachedRow(decoder, own, 0)


def log_probs_of(decoder: Decoder, hidden: Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the log-probability of each of `tokens` after its state in `hidden` (n, d_model)."""
    found, wanted = list[Tensor](), torch.tensor(tokens).to(hidden.device)
    parts = zip(
        torch.split(hidden, SCORED_AT_ONCE), torch.split(wanted, SCORED_AT_ONCE), strict=True
    )
    for states, some in parts:
        likely = upcast(decoder.logits(states[None])[0]).log_softmax(dim=-1)
        found.append(likely.gather(1, some[:, None])[:, 0])
    scores: list[float] = torch.cat(found).tolist()
    return scores
