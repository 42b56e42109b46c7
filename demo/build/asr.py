"""Trains the demo's recogniser from nothing on two CPU cores, in about an hour.

The one decision: the learning rate and the mix of window lengths follow the clock, not a count of steps, so that a
stop time holds on any machine; the checkpoint that development voices like best is the one that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import WhisperForConditionalGeneration, WhisperTokenizer

from demo.build.batches import Batch, SpecialTokens, WindowBatches
from demo.build.objectives import Objectives
from demo.build.scoring import DevelopmentSet, draw_development_set, word_error_rate
from demo.build.speech import draw_sentence, vocabulary
from demo.build.tokenizer import train_tokenizer
from demo.build.whisper import new_model, save_checkpoint

WEIGHTS = {"text": 1.0, "frames": 0.5, "guidance": 0.3}
MUON_RATE, ADAM_RATE = 3e-3, 2e-3
WARM_UP_STEPS = 100
DECAY_FROM = 0.5
SHARES_AT_START, SHARES_AT_END = np.array([0.8, 0.15, 0.05]), np.array([0.25, 0.2, 0.55])
PHASES = 6
SENTENCES = 3000


@dataclass(frozen=True)
class Plan:
    """How long to train, and how often to print, save and evaluate, in seconds."""

    seconds: float = 3600.0
    print_every: float = 15.0
    evaluate_every: float = 400.0


def demo_tokenizer() -> WhisperTokenizer:
    """The tokenizer of the grammar; the same every time."""
    generator = np.random.default_rng(0)
    return train_tokenizer(draw_sentence(generator) for _ in range(SENTENCES))


class Training:
    """Model, optimisers and clock: everything that a resumed run takes up again."""

    def __init__(self, corpus: Path, state: Path, plan: Plan) -> None:
        torch.manual_seed(0)
        self.corpus, self.state, self.plan = corpus, state, plan
        self.tokenizer = demo_tokenizer()
        self.special = SpecialTokens.of(self.tokenizer)
        self.model: WhisperForConditionalGeneration = new_model(self.tokenizer)
        self.objectives = Objectives(self.model, len(vocabulary()), self.special.timestamp(0.0))
        self.optimizers = _optimizers(self.objectives)
        self.steps, self.elapsed, self.best = 0, 0.0, float("inf")

    @property
    def progress(self) -> float:
        """From 0 to 1 over the plan's time."""
        return min(1.0, self.elapsed / self.plan.seconds)

    def save(self) -> None:
        """Write the state in one piece."""
        partial = self.state.with_suffix(".partial")
        torch.save(
            {
                "objectives": self.objectives.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "clock": (self.steps, self.elapsed, self.best),
            },
            partial,
        )
        partial.rename(self.state)

    def load(self) -> None:
        """Take up a state that `save` wrote."""
        content = torch.load(self.state, weights_only=True)
        self.objectives.load_state_dict(content["objectives"])
        for optimizer, state in zip(self.optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.steps, self.elapsed, self.best = content["clock"]

    def step(self, batch: Batch) -> dict[str, float]:
        """One update; the losses by name."""
        factor = min(1.0, (self.steps + 1) / WARM_UP_STEPS, (1.0 - self.progress) / (1.0 - DECAY_FROM))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_rate"] * max(factor, 0.01)
        with torch.autocast("cpu", torch.bfloat16):
            losses: dict[str, Tensor] = self.objectives(batch)
        total = torch.stack([WEIGHTS[name] * loss for name, loss in losses.items()]).sum()
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.objectives.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        return {name: loss.item() for name, loss in losses.items()}

    def batches(self) -> Iterator[Batch]:
        """Batches until the time is up; the mix moves from short windows to long ones in a few phases."""
        for phase in range(int(self.progress * PHASES), PHASES):
            share = phase / (PHASES - 1)
            shares = (1 - share) * SHARES_AT_START + share * SHARES_AT_END
            mix = WindowBatches(self.corpus, self.special, shares.tolist(), seed=self.steps)
            for batch in DataLoader(mix, batch_size=None, num_workers=1, prefetch_factor=4):
                if self.progress * PHASES >= phase + 1:
                    break
                yield batch


def train(corpus: Path, state: Path, folder: Path, plan: Plan) -> None:
    """Train on the clips of `corpus`, resuming from `state` where it exists; write the best checkpoint to `folder`."""
    training = Training(corpus, state, plan)
    if state.exists():
        training.load()
    development = draw_development_set(seed=7)
    clock = Clock(training, development, folder)
    for batch in training.batches():
        losses = training.step(batch)
        clock.tick(losses)
    clock.evaluate()


class Clock:
    """Keeps a training's time: prints, evaluates and saves when it is time to."""

    def __init__(self, training: Training, development: DevelopmentSet, folder: Path) -> None:
        self.training, self.development, self.folder = training, development, folder
        self.last = self.printed = self.evaluated = time.monotonic()
        self.losses: list[dict[str, float]] = []

    def tick(self, losses: dict[str, float]) -> None:
        """Count the time of one step; evaluations are not counted."""
        training, now = self.training, time.monotonic()
        training.elapsed += now - self.last
        self.last = now
        self.losses.append(losses)
        if now - self.printed >= training.plan.print_every:
            self._print()
            self.printed = now
        if now - self.evaluated >= training.plan.evaluate_every:
            self.evaluate()
            self.evaluated = self.last = time.monotonic()

    def evaluate(self) -> None:
        """Score on development voices; keep the checkpoint where it is the best so far."""
        training = self.training
        training.objectives.eval()
        rates = word_error_rate(training.model, training.tokenizer, self.development)
        training.objectives.train()
        print(f"step {training.steps}", *(f"{name} {rate:.1%}" for name, rate in rates.items()), flush=True)
        score = sum(rate for name, rate in rates.items() if not name.startswith("rms"))
        if score < training.best:
            training.best = score
            save_checkpoint(training.model, training.tokenizer, self.folder)
        training.save()

    def _print(self) -> None:
        names = self.losses[0]
        means = (f"{name} {np.mean([losses[name] for losses in self.losses]):.3f}" for name in names)
        training = self.training
        print(f"{training.progress:.1%} step {training.steps}", *means, flush=True)
        self.losses = []


def _optimizers(objectives: Objectives) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest (Jordan et al. 2024)."""
    layers = [*objectives.model.model.encoder.layers, *objectives.model.model.decoder.layers]
    matrices = [weight for layer in layers for weight in layer.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in objectives.parameters() if weight.requires_grad and id(weight) not in chosen]
    muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for optimizer, rate in ((muon, MUON_RATE), (adam, ADAM_RATE)):
        for group in optimizer.param_groups:
            group["full_rate"] = rate
    return [muon, adam]
