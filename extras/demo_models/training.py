"""The training loop of the demo's models, which resumes from its last checkpoint.

Step n draws its batch from a generator seeded with n, so a run that was interrupted sees the same
batches as one that was not. Another process draws them while the model trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

SAVE_EVERY, REPORT_EVERY = 100, 20
WARM_UP, DECAY_FROM, MAX_GRADIENT_NORM = 0.05, 0.5, 1.0

Batch = TypeVar("Batch")


class _Drawn(Dataset[Batch]):
    """The batch of each step."""

    def __init__(self, draw: Callable[[int, np.random.Generator], Batch]) -> None:
        self._draw = draw

    def __getitem__(self, step: int) -> Batch:
        return self._draw(step, np.random.default_rng([7, step]))


def train(
    model: nn.Module,
    draw: Callable[[int, np.random.Generator], Batch],
    loss_of: Callable[[int, Batch], Tensor],
    optimizers: Sequence[Optimizer],
    steps: int,
    checkpoint: Path,
) -> None:
    """Minimise `loss_of(step, draw(step, generator))`; the optimizers' rates rise, stay and fall.

    `checkpoint` holds the state between runs. Where training is finished, its weights are loaded.
    """
    for group in _groups(optimizers):
        group["full_rate"] = group["lr"]
    first = _load(checkpoint, model, optimizers)
    batches = DataLoader(
        _Drawn(draw), batch_size=None, sampler=range(first, steps), num_workers=1, prefetch_factor=4
    )
    begun, losses = time.monotonic(), []
    model.train()
    for step, batch in zip(range(first, steps), batches, strict=True):
        for group in _groups(optimizers):
            group["lr"] = group["full_rate"] * rate_factor((step + 1) / steps)
        loss = loss_of(step, batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % REPORT_EVERY == 0:
            speed = (step + 1 - first) / (time.monotonic() - begun)
            recent = np.mean(losses[-REPORT_EVERY:])
            told = f"{step + 1}/{steps} loss {recent:.3f} {speed:.2f} steps/s"
            print(f"{checkpoint.stem} {told}", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            _save(checkpoint, model, optimizers, step + 1)
    model.eval()


def rate_factor(progress: float) -> float:
    """Return the learning rate's factor: a linear rise, full up to half of the steps, and a linear
    fall to zero.
    """
    return min(1.0, progress / WARM_UP, (1.0 - progress) / (1.0 - DECAY_FROM))


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _load(checkpoint: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> int:
    """Load the saved state, and return the step to resume at."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


def _save(checkpoint: Path, model: nn.Module, optimizers: Sequence[Optimizer], step: int) -> None:
    """Write the state; the file is replaced only when it is complete."""
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
    }
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(checkpoint)
