"""How many drafts of some heads the main model would accept, from cached hidden states alone.

Greedy speculation does not change the text. So where texts and hidden states are known, the rounds
that an engine would make can be walked without a model: from the newest final token the heads draft
a chain, its longest prefix that equals the text is accepted, and the model's next choice with it.

Drafts go through the same rules as the engine's (`asr.engine.logit_filters`), so that this number
is the engine's, for any number of drafts, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from extras.medusa.heads import Heads, Projection
from extras.medusa.hidden_states import HiddenStates
from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.engine.logit_filters import NEVER, History, LogitFilter

MISSING = -1


@dataclass(frozen=True)
class Acceptance:
    """Counts of drafts over some rounds: `tried[j]` at depth j + 1 followed accepted ones, and
    `accepted[j]` of these were right. `passes` of the main model gained `tokens`.
    """

    tried: tuple[int, ...]
    accepted: tuple[int, ...]
    tokens: int
    passes: int

    @property
    def by_depth(self) -> tuple[float, ...]:
        """The share accepted at each depth of those whose draft before was accepted."""
        return tuple(
            right / tried if tried else 0.0
            for right, tried in zip(self.accepted, self.tried, strict=True)
        )

    @property
    def tokens_a_pass(self) -> float:
        """Return the tokens that a row gains in a pass of the main model: 1 without drafts."""
        return self.tokens / self.passes if self.passes else 1.0


def targets(states: HiddenStates, count: int) -> Tensor:
    """Return the `count` tokens after each position, (positions, count); -1 beyond the text."""
    positions = torch.arange(len(states.tokens))[:, None]
    places = positions + 1 + torch.arange(count)
    inside = places < states.ends[:, None]
    return states.tokens.long()[places * inside].masked_fill(~inside, MISSING)


@torch.inference_mode()
def draft(heads: Heads, projection: Projection, filters: LogitFilter, text: HiddenStates) -> Tensor:
    """Return the heads' drafts after each position of one text, (positions, heads).

    `filters` are the model's on the projection's device.
    """
    device = projection.weight.device
    drafted = heads(text.hidden.to(device).float())
    length, count = len(text.tokens), len(drafted)
    ends = torch.arange(1, length + 1, device=device)[:, None]
    written = torch.zeros(length, length + count, dtype=torch.long, device=device)
    written[:, :length] = text.tokens.to(device)
    timed = text.timestamps.to(device).expand(length)
    start = torch.zeros(length, dtype=torch.long, device=device)
    for each in drafted:
        logits = projection.weight.new_full((length, projection.size), NEVER)
        logits[:, projection.shortlist] = projection.logits(each)
        logits = (logits + filters.bias)[:, None]
        history = History(written, ends, timed, start)
        choice = filters.choose(logits, history, bool(text.timestamps), scored=False)
        written.scatter_(1, ends, choice.tokens)
        ends = ends + 1
    places = torch.arange(1, length + 1, device=device)[:, None]
    return written.gather(1, places + torch.arange(count, device=device)).cpu()


def walk(drafts: Tensor, text: HiddenStates) -> Acceptance:
    """Return the rounds over one text whose drafts after each position are `drafts` (positions,
    count).
    """
    wanted = targets(text, drafts.shape[1])
    right = (drafts == wanted).long().cumprod(dim=1)
    chain, left = right.sum(dim=1).tolist(), (wanted != MISSING).sum(dim=1).tolist()
    tried, accepted = [0] * drafts.shape[1], [0] * drafts.shape[1]
    position = passes = 0
    while position < len(chain) - 1:
        for depth in range(min(chain[position] + 1, left[position])):
            tried[depth] += 1
            accepted[depth] += depth < chain[position]
        position += chain[position] + 1
        passes += 1
    return Acceptance(tuple(tried), tuple(accepted), len(chain) - 1, passes)


def measure(
    heads: Heads,
    projection: Projection,
    special_tokens: SpecialTokens,
    states: HiddenStates,
) -> Acceptance:
    """Return the rounds over all texts, drafting as many tokens as there are heads."""
    like = projection.weight.new_empty(projection.size, 0)
    filters = LogitFilter.of(special_tokens, like)
    walks = [
        walk(draft(heads, projection, filters, text), text)
        for text in states.texts()
        if len(text.tokens) > 1
    ]
    count = heads.count
    return Acceptance(
        tuple(sum(each.tried[depth] for each in walks) for depth in range(count)),
        tuple(sum(each.accepted[depth] for each in walks) for depth in range(count)),
        sum(each.tokens for each in walks),
        sum(each.passes for each in walks),
    )
