"""Trains heads on cached hidden states: minutes on two cores, because the model itself never runs.

The loss is cross entropy of the tokens, over the commonest of a large vocabulary. The projection is
frozen, so heads do not influence each other and their losses are added without weights. (To fit the
hidden states that choose the tokens first, without any vocabulary, was tried and gained nothing:
SiLU adds no less than -0.28, so a head cannot become another state, only beat other tokens.)

The run keeps the epoch with the longest accepted chains on windows that no step has seen. An epoch
draws its order from a generator of its own number, so an interrupted run ends in the same weights
as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from extras.medusa.heads import Heads, Projection
from extras.medusa.hidden_states import HiddenStates
from extras.medusa.options import Plan
from whosaid.asr.checkpoint.special_tokens import SpecialTokens

HELD_OUT = 10  # every tenth window
VALIDATION_BATCH = 4096
WARM_UP = 0.05  # of all steps
MISSING = -1  # a target beyond the text


@dataclass(frozen=True)
class Epoch:
    """How an epoch ended: the share of right drafts at each depth over all held-out positions,
    without rules, and the mean length of their chains.
    """

    number: int
    loss: float
    right: tuple[float, ...]
    chain: float


def split(states: HiddenStates) -> tuple[HiddenStates, HiddenStates]:
    """Return texts to train on and held-out ones: every tenth window, in whatever style it was
    decoded.

    Raises ValueError if there are too few windows for both.
    """
    held_out = states.windows % HELD_OUT == HELD_OUT - 1
    if not held_out.any() or held_out.all():
        raise ValueError(
            f"heads need texts of at least {HELD_OUT} windows, and texts that loop are left out:"
            " add recordings"
        )
    return states.where(~held_out), states.where(held_out)


def check_windows(count: int) -> None:
    """Raise ValueError if recordings with `count` windows are too few to train on."""
    if count < HELD_OUT:
        raise ValueError(
            f"heads need at least {HELD_OUT} windows of speech in all, of up to 30 s each, to train"
            f" on and to hold some out; --recordings has {count}"
        )


def check_shortlist(special: SpecialTokens, count: int) -> None:
    """Raise ValueError if a shortlist of `count` ids would have none of a text token."""
    fixed = len(_on_every_shortlist(special))
    if count < special.size and count <= fixed:
        raise ValueError(
            f"--shortlist {count}: end of text and timestamps alone are {fixed} tokens"
        )


def choose_shortlist(states: HiddenStates, special: SpecialTokens, count: int) -> Tensor | None:
    """Return the ids to draft from: the end of text, every timestamp and the commonest text tokens
    of `states`, at most `count` in all, sorted. None for a vocabulary that is no larger.
    """
    if special.size <= count:
        return None
    fixed = _on_every_shortlist(special)
    seen = states.tokens.long().bincount(minlength=special.size)[: special.end_of_text]
    common = seen.topk(min(int((seen > 0).sum()), count - len(fixed))).indices
    return torch.cat([common, fixed]).sort().values


def _on_every_shortlist(special: SpecialTokens) -> Tensor:
    return torch.tensor([special.end_of_text, *range(special.timestamp_begin, special.size)])


def targets(states: HiddenStates, count: int) -> Tensor:
    """Return the `count` tokens after each position, (positions, count), MISSING beyond a text."""
    ends = states.lengths.cumsum(0).repeat_interleave(states.lengths)
    places = torch.arange(1, len(states.tokens) + 1)[:, None] + torch.arange(count)
    inside = places < ends[:, None]
    return states.tokens.long()[places * inside].masked_fill(~inside, MISSING)


class Examples:
    """Pairs of a hidden state and the tokens after its own, of texts that all fit into memory."""

    def __init__(self, states: HiddenStates, projection: Projection, heads: int) -> None:
        device = projection.weight.device
        wanted = targets(states, heads)
        has_target = wanted[:, 0] != MISSING
        self.rows = has_target.nonzero()[:, 0]
        self.hidden, self.wanted = states.hidden.to(device), wanted.to(device)
        known = projection.index(self.wanted.clamp(min=0))
        self.labels = known.masked_fill(self.wanted == MISSING, MISSING)

    def batches(self, size: int, seed: int) -> Iterator[Tensor]:
        """Yield every position once, (positions,) at a time, in an order drawn from `seed`."""
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(seed))
        yield from torch.split(self.rows[order].to(self.hidden.device), size)

    def loss(self, heads: Heads, projection: Projection, rows: Tensor) -> Tensor:
        """Cross entropy of the tokens, summed over the heads."""
        found = heads(self.hidden[rows].float())
        losses = [
            F.cross_entropy(projection.logits(each), labels, ignore_index=MISSING)
            for each, labels in zip(found, self.labels[rows].T, strict=True)
            if (labels != MISSING).any()
        ]
        return torch.stack(losses).sum()

    @torch.inference_mode()
    def right(self, heads: Heads, projection: Projection) -> tuple[tuple[float, ...], float]:
        """Return the share of right drafts at each depth, and the mean length of their chains."""
        hits = known = torch.zeros(heads.count, dtype=torch.long, device=self.hidden.device)
        chains = 0.0
        for rows in torch.split(self.rows.to(self.hidden.device), VALIDATION_BATCH):
            best = projection.logits(heads(self.hidden[rows].float())).argmax(dim=-1).T
            labels = self.wanted[rows]
            right = projection.shortlist[best] == labels
            hits, known = hits + right.sum(dim=0), known + (labels != MISSING).sum(dim=0)
            chains += float(right.long().cumprod(dim=1).sum())
        shares = hits / known.clamp(min=1)
        return tuple(shares.tolist()), chains / max(1, len(self.rows))


# Attributes of a training that its state file keeps, beside weights and optimizer.
PROGRESS = ("best", "best_right", "best_epoch", "chain", "epoch")


class Training:
    """A run over some hidden states; `path` holds its state between epochs."""

    def __init__(
        self, states: HiddenStates, projection: Projection, plan: Plan, path: Path
    ) -> None:
        training, held_out = split(states)
        self.plan, self.projection, self.path = plan, projection, path
        self.examples = Examples(training, projection, plan.heads)
        self.held_out = Examples(held_out, projection, plan.heads)
        d_model, device = states.hidden.shape[1], projection.weight.device
        self.heads = Heads(plan.heads, plan.layers, d_model).to(device)
        self.optimizer = torch.optim.AdamW(self.heads.parameters(), lr=plan.rate, weight_decay=0.0)
        self.best = {name: each.clone() for name, each in self.heads.state_dict().items()}
        self.chain, self.best_epoch, self.epoch = -1.0, 0, 0
        self.best_right: tuple[float, ...] = ()
        self._resume()

    def run(self, report: Callable[[Epoch], None]) -> Heads:
        """Train to the end and return the best heads. `report` gets every epoch."""
        while self.epoch < self.plan.epochs and not self._stalled:
            loss = self._train_epoch()
            right, chain = self.held_out.right(self.heads, self.projection)
            self.epoch += 1
            if chain > self.chain:
                self.chain, self.best_epoch, self.best_right = chain, self.epoch, right
                self.best = {name: each.clone() for name, each in self.heads.state_dict().items()}
            self._save()
            report(Epoch(self.epoch, loss, right, chain))
        self.heads.load_state_dict(self.best)
        return self.heads

    @property
    def _stalled(self) -> bool:
        """Return True if the last `patience` epochs gained nothing."""
        return self.epoch - self.best_epoch >= self.plan.patience

    def _train_epoch(self) -> float:
        """Train on all positions once; return the mean loss."""
        plan, losses = self.plan, []
        steps = -(-len(self.examples.rows) // plan.batch)
        for step, rows in enumerate(self.examples.batches(plan.batch, self.epoch)):
            progress = (self.epoch * steps + step + 1) / (plan.epochs * steps)
            for group in self.optimizer.param_groups:
                group["lr"] = plan.rate * rate_factor(progress)
            loss = self.examples.loss(self.heads, self.projection, rows)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def _resume(self) -> None:
        if not self.path.is_file():
            return
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in PROGRESS:
            setattr(self, name, state[name])

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        state = {
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{name: getattr(self, name) for name in PROGRESS},
        }
        torch.save(state, partial)
        partial.replace(self.path)


def rate_factor(progress: float) -> float:
    """Return the learning rate's factor: a short linear rise, then half a cosine down to zero."""
    if progress < WARM_UP:
        return progress / WARM_UP
    return (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2
