"""Trains heads on cached hidden states: minutes on two cores, because the model itself never runs.

The loss is cross entropy of the tokens, over the commonest of a large vocabulary. The projection is
frozen, so heads do not influence each other and their losses are added without weights.

The run keeps the epoch with the longest accepted chains on windows that no step has seen. An epoch
draws its order from a generator of its own number, so an interrupted run ends in the same weights.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from extras.medusa.heads import Heads, Projection
from extras.medusa.hidden_states import Text, save_whole
from extras.medusa.options import Plan
from whosaid.asr.checkpoint.special_tokens import SpecialTokens

HELD_OUT = 10  # every tenth window
VALIDATION_BATCH = 4096
WARM_UP = 0.05  # of all steps
MISSING = -1  # a target beyond the text


@dataclass(frozen=True)
class Epoch:
    """The share of right drafts at each depth over all held-out positions, and their mean chain."""

    number: int = 0
    loss: float = 0.0
    right: tuple[float, ...] = ()
    chain: float = -1.0


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Return texts to train on, and every tenth window's. Raises ValueError for too few windows."""
    held_out = [text for text in texts if text.window % HELD_OUT == HELD_OUT - 1]
    training = [text for text in texts if text.window % HELD_OUT != HELD_OUT - 1]
    if not held_out or not training:
        told = f"heads need at least {HELD_OUT} windows without looping texts: add recordings"
        raise ValueError(told)
    return training, held_out


def check_windows(count: int) -> None:
    """Raise ValueError if recordings with `count` windows are too few to train on."""
    if count < HELD_OUT:
        raise ValueError(
            f"heads need at least {HELD_OUT} windows of speech, of up to 30 s each, for training"
            f" and evaluation; --recordings has {count}"
        )


def check_shortlist(special: SpecialTokens, count: int) -> None:
    """Raise ValueError if a shortlist of `count` ids would have none of a text token."""
    fixed = len(_on_every_shortlist(special))
    if count < special.size and count <= fixed:
        text = f"--shortlist {count}: end of text and timestamps alone are {fixed} tokens"
        raise ValueError(text)


def choose_shortlist(texts: Sequence[Text], special: SpecialTokens, count: int) -> Tensor | None:
    """Return the ids to draft from: the end of text, every timestamp and the commonest text tokens
    of `texts`, at most `count` in all, sorted. None for a vocabulary that is no larger.
    """
    if special.size <= count:
        return None
    fixed = _on_every_shortlist(special)
    tokens = torch.cat([text.tokens for text in texts])
    seen = tokens.bincount(minlength=special.size)[: special.end_of_text]
    common = seen.topk(min(int((seen > 0).sum()), count - len(fixed))).indices
    return torch.cat([common, fixed]).sort().values


def _on_every_shortlist(special: SpecialTokens) -> Tensor:
    return torch.tensor([special.end_of_text, *range(special.timestamp_begin, special.size)])


def targets(tokens: Tensor, count: int) -> Tensor:
    """Return the `count` tokens after each of a text but the last, MISSING beyond the text."""
    return F.pad(tokens[1:], (0, count - 1), value=MISSING).unfold(0, count, 1)


class Examples:
    """Pairs of a hidden state and the tokens after its own, of texts that all fit into memory."""

    def __init__(self, texts: Sequence[Text], projection: Projection, heads: int) -> None:
        device, texts = projection.weight.device, [text for text in texts if len(text.tokens) > 1]
        self.hidden = torch.cat([text.hidden[:-1] for text in texts]).to(device)
        self.wanted = torch.cat([targets(text.tokens, heads) for text in texts]).to(device)
        known = projection.index(self.wanted.clamp(min=0))
        self.labels = known.masked_fill(self.wanted == MISSING, MISSING)

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
        guesses = [
            projection.logits(heads(hidden.float())).argmax(dim=-1).T
            for hidden in torch.split(self.hidden, VALIDATION_BATCH)
        ]
        right = projection.shortlist[torch.cat(guesses)] == self.wanted
        shares = right.sum(dim=0) / (self.wanted != MISSING).sum(dim=0).clamp(min=1)
        return tuple(shares.tolist()), float(right.long().cumprod(dim=1).sum() / len(right))


class Training:
    """A run over some texts; `path` holds its state between epochs."""

    def __init__(
        self, texts: Sequence[Text], projection: Projection, plan: Plan, path: Path
    ) -> None:
        training, held_out = split(texts)
        self.plan, self.projection, self.path = plan, projection, path
        self.examples = Examples(training, projection, plan.heads)
        self.held_out = Examples(held_out, projection, plan.heads)
        d_model = projection.weight.shape[1]
        self.heads = Heads(plan.heads, plan.layers, d_model).to(projection.weight.device)
        self.optimizer = torch.optim.AdamW(self.heads.parameters(), lr=plan.rate, weight_decay=0.0)
        steps = plan.epochs * -(-len(self.examples.hidden) // plan.batch)
        self.schedule = get_cosine_schedule_with_warmup(
            self.optimizer, round(WARM_UP * steps), steps
        )
        self.epoch, self.best = 0, Epoch()
        self.best_weights = copy.deepcopy(self.heads.state_dict())
        if path.is_file():
            self._resume()

    def run(self, report: Callable[[Epoch], None]) -> Heads:
        """Train until the plan ends, and return the best heads. `report` gets every epoch."""
        while self.epoch < min(self.plan.epochs, self.best.number + self.plan.patience):
            loss = self._train_epoch()
            self.epoch += 1
            found = Epoch(self.epoch, loss, *self.held_out.right(self.heads, self.projection))
            if found.chain > self.best.chain:
                self.best, self.best_weights = found, copy.deepcopy(self.heads.state_dict())
            self._save()
            report(found)
        self.heads.load_state_dict(self.best_weights)
        return self.heads

    def _train_epoch(self) -> float:
        """Train on all positions once; return the mean loss."""
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.examples.hidden), generator=generator)
        losses = []
        for rows in torch.split(order.to(self.examples.hidden.device), self.plan.batch):
            loss = self.examples.loss(self.heads, self.projection, rows)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def _resume(self) -> None:
        state = torch.load(self.path, weights_only=True)
        for part, saved in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(saved)
        self.epoch, self.best = state["epoch"], Epoch(**state["best"])
        self.best_weights = state["best_weights"]

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {"parts": [part.state_dict() for part in self._parts()], "epoch": self.epoch}
        state |= {"best": asdict(self.best), "best_weights": self.best_weights}
        save_whole(state, self.path)

    def _parts(self) -> tuple[Any, ...]:
        return self.heads, self.optimizer, self.schedule
