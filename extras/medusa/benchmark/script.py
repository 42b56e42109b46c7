"""Heads whose drafts are right as often as is wanted, at every depth.

The heads do all their work, and only then their scores are overruled. Which text a row is in
follows from the state that the heads read: the nearest among the states of known texts. That is one
more product, so a step costs a little more than with true heads, never less. The engine forgets its
measurements of the heads, and begins as with any new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.engines import Tokens, decode
from tests.support.speech import Samples
from whosaid.asr.engine.drafting import AcceptanceRate
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.model.draft_heads import MedusaModel
from whosaid.asr.model.kv_cache import KVCache

SEED = 14
OVERRULED = 1e4  # above every score
WRONG = 0  # a token that no text holds


def set_acceptance(
    engine: DecodeEngine, windows: Sequence[Samples], rates: Sequence[float]
) -> None:
    """From now on the engine's heads draft what it writes of `windows`, a token at depth j right
    with probability `rates[j - 1]` where those before it were.
    """
    heads, drafting = engine.draft_model, engine.context.drafting
    assert isinstance(heads, MedusaModel)
    vars(heads).pop("scores", None)  # of other windows
    states, texts = _read(engine, heads, windows)
    ahead = _ahead(texts, len(rates)).to(states.device)
    drafts = _draw(ahead, rates)
    lengths = states.square().sum(dim=1) / 2
    true_scores = heads.scores

    def scores(newest: Tensor, count: int, bias: Tensor) -> Tensor:
        found = true_scores(newest, count, bias)
        nearest = (newest @ states.T - lengths).argmax(dim=1)
        # Where the grammar forbids the wrong token it takes the next best, never the right one.
        found = found.scatter(2, ahead[nearest, :count, None], -OVERRULED)
        return found.scatter(2, drafts[nearest, :count, None], OVERRULED)

    vars(heads)["scores"] = scores
    if drafting is not None:  # reading drafted nothing but wrong tokens
        drafting.rates = AcceptanceRate.by_depth(len(drafting.rates))


def _read(
    engine: DecodeEngine, heads: MedusaModel, windows: Sequence[Samples]
) -> tuple[Tensor, list[Tokens]]:
    """Return the states that heads read of each token of the windows' texts, (tokens, d_model), and
    the texts, each with the end of text. Meanwhile every draft is wrong where the grammar allows
    it; the pass that made a token final is the last that reads at its position.
    """
    seen: dict[int, Tensor] = {}
    true_states, true_scores = heads.states, heads.scores

    def states(hidden: Tensor, positions: Tensor, cache: KVCache | None, kv_len: int) -> Tensor:
        found = true_states(hidden, positions, cache, kv_len)
        places = positions.expand(found.shape[:2])[0].tolist()
        if not seen:  # the whole prompt's, of which the last chooses the first token
            places = places[-1:]
        seen.update(zip(places, found[0, -len(places) :].clone(), strict=True))
        return found

    def wrong_scores(newest: Tensor, count: int, bias: Tensor) -> Tensor:
        found = true_scores(newest, count, bias)
        found[..., WRONG] = OVERRULED
        return found

    vars(heads).update(states=states, scores=wrong_scores)
    options = DecodeOptions(assisted=True, batch_size=1, drafts=1)
    texts, every = [], []
    for window in windows:
        seen.clear()
        (tokens,), _ = decode(engine, [window], options)
        texts.append((*tokens, engine.models.special_tokens.end_of_text))
        every += [seen[place] for place in sorted(seen)][: len(texts[-1])]
    vars(heads).pop("states")
    vars(heads).pop("scores")
    return torch.stack(every), texts


def _ahead(texts: Sequence[Tokens], depths: int) -> Tensor:
    """Return the tokens after each token of the texts, (tokens, depths); WRONG behind the end."""
    rows = [
        [*text[place + 1 :][:depths], *[WRONG] * depths][:depths]
        for text in texts
        for place in range(len(text))
    ]
    return torch.tensor(rows)


def _draw(ahead: Tensor, rates: Sequence[float]) -> Tensor:
    """Return the drafts after each token, (tokens, depths): the tokens `ahead`, or WRONG."""
    right = np.random.default_rng(SEED).random(ahead.shape) < rates
    return ahead.where(torch.from_numpy(right).to(ahead.device), WRONG)
