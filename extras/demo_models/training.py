"""A training loop with a time budget, which resumes from its last saved state.

The learning rate and the mix of window lengths follow the time spent training instead of a number
of steps, so that the budget holds on any machine. Evaluations do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import WhisperForConditionalGeneration

from extras.demo_models.batches import Batch, SpecialTokens, WindowBatches

MUON_RATE, ADAM_RATE = 3e-3, 2e-3
MIN_RATE_FACTOR = 0.01
WARM_UP_STEPS = 100
DECAY_FROM = 0.5
MAX_GRADIENT_NORM = 1.0
PHASES, LAST_SHARES_FROM = 6, 0.5


@dataclass(frozen=True)
class Plan:
    """Seconds of training and between prints and evaluations, and the mix of window lengths.

    `first_shares` and `last_shares` are the proportions of 4, 10 and 30 s windows.
    """

    seconds: float
    first_shares: tuple[float, float, float] = (0.8, 0.15, 0.05)
    last_shares: tuple[float, float, float] = (0.15, 0.15, 0.7)
    print_every: float = 15.0
    evaluate_every: float = 400.0

    def shares(self, progress: float) -> list[float]:
        """Return the mix of window lengths at `progress` (0 to 1): linear up to half of it, then
        constant.

        Words are learnt on short windows, at a fraction of the cost. Timestamps are learnt on long
        windows, which therefore get most of the time.
        """
        share = min(1.0, progress / LAST_SHARES_FROM)
        pairs = zip(self.first_shares, self.last_shares, strict=True)
        return [(1 - share) * first + share * last for first, last in pairs]


class Training:
    """A module that returns losses by name, its optimizers and the time spent; saved together."""

    def __init__(
        self, objectives: nn.Module, weights: Mapping[str, float], state: Path, plan: Plan
    ) -> None:
        self.objectives, self.weights, self.state, self.plan = objectives, weights, state, plan
        self.optimizers = _optimizers(objectives)
        self.steps, self.elapsed, self.best = 0, 0.0, float("inf")
        if state.exists():
            self._load()

    @property
    def progress(self) -> float:
        """The share of the plan's time that is spent, 0 to 1."""
        return min(1.0, self.elapsed / self.plan.seconds)

    def run(
        self,
        corpus: Path,
        special: SpecialTokens,
        evaluate: Callable[[], float],
        keep: Callable[[], None],
    ) -> None:
        """Train on windows of `corpus` until the plan's time is spent.

        `keep` is called where `evaluate` returns its lowest value so far.
        """
        if self.progress >= 1.0:
            return
        recent: list[dict[str, float]] = []
        last = printed = evaluated = time.monotonic()
        for batch in self._batches(corpus, special):
            recent.append(self._step(batch))
            now = time.monotonic()
            self.elapsed += now - last
            last = now
            if now - printed >= self.plan.print_every:
                self._print(recent)
                recent, printed = [], now
            if now - evaluated >= self.plan.evaluate_every:
                self._evaluate(evaluate, keep)
                last = evaluated = time.monotonic()
        self._evaluate(evaluate, keep)

    def _batches(self, corpus: Path, special: SpecialTokens) -> Iterator[Batch]:
        """Batches until the time is spent; the mix of window lengths changes in PHASES steps."""
        for phase in range(int(self.progress * PHASES), PHASES):
            mix = WindowBatches(corpus, special, self.plan.shares(phase / PHASES), seed=self.steps)
            for batch in DataLoader(mix, batch_size=None, num_workers=1, prefetch_factor=4):
                if self.progress * PHASES >= phase + 1:
                    break
                yield batch

    def _step(self, batch: Batch) -> dict[str, float]:
        """Run one optimizer step; return the losses by name."""
        decay = (1.0 - self.progress) / (1.0 - DECAY_FROM)
        factor = max(MIN_RATE_FACTOR, min(1.0, (self.steps + 1) / WARM_UP_STEPS, decay))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_rate"] * factor
        with torch.autocast("cpu", torch.bfloat16):
            losses: dict[str, Tensor] = self.objectives(batch)
        torch.autograd.backward(
            torch.stack([self.weights[name] * loss for name, loss in losses.items()]).sum()
        )
        nn.utils.clip_grad_norm_(self.objectives.parameters(), MAX_GRADIENT_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        return {name: loss.item() for name, loss in losses.items()}

    def _evaluate(self, evaluate: Callable[[], float], keep: Callable[[], None]) -> None:
        self.objectives.eval()
        score = evaluate()
        self.objectives.train()
        if score < self.best:
            self.best = score
            keep()
        self._save()

    def _print(self, recent: list[dict[str, float]]) -> None:
        means = (f"{name} {np.mean([losses[name] for losses in recent]):.3f}" for name in recent[0])
        print(f"{self.progress:.1%} step {self.steps}", *means, flush=True)

    def _save(self) -> None:
        """Write the state; the file is replaced only when it is complete."""
        content = {
            "objectives": self.objectives.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "clock": (self.steps, self.elapsed, self.best),
        }
        partial = self.state.with_suffix(".partial")
        torch.save(content, partial)
        partial.rename(self.state)

    def _load(self) -> None:
        content = torch.load(self.state, weights_only=True)
        self.objectives.load_state_dict(content["objectives"])
        for optimizer, state in zip(self.optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.steps, self.elapsed, self.best = content["clock"]


def _optimizers(objectives: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of Whisper's layers, AdamW for the rest."""
    models = [
        module
        for module in objectives.modules()
        if isinstance(module, WhisperForConditionalGeneration)
    ]
    layers = [
        layer
        for model in models
        for part in (model.model.encoder, model.model.decoder)
        for layer in part.layers
    ]
    trained = [weight for weight in objectives.parameters() if weight.requires_grad]
    matrices = [weight for layer in layers for weight in layer.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    muon = torch.optim.Muon(
        [weight for weight in matrices if weight.requires_grad],
        lr=MUON_RATE,
        weight_decay=0.01,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [weight for weight in trained if id(weight) not in chosen]
    adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for optimizer, rate in ((muon, MUON_RATE), (adam, ADAM_RATE)):
        for group in optimizer.param_groups:
            group["full_rate"] = rate
    return [muon, adam]
