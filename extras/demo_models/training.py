"""The training loop of the demo's models.

The batch of step n is drawn from a generator seeded with n, in another process while the model
trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

REPORT_EVERY = 20
WARM_UP, DECAY_FROM, MAX_GRADIENT_NORM = 0.05, 0.5, 1.0

Batch = TypeVar("Batch")


def train(
    model: nn.Module,
    draw: Callable[[int, np.random.Generator], Batch],
    loss_of: Callable[[int, Batch], Tensor],
    optimizers: Sequence[Optimizer],
    steps: int,
) -> None:
    """Minimise `loss_of(step, draw(step, generator))`.

    Learning rates rise linearly, stay, and fall linearly to zero from half of the steps on.
    """

    def drawn(step: Any) -> Batch:  # noqa: ANN401
        return draw(step, np.random.default_rng([7, step]))

    def factor(step: int) -> float:
        progress = (step + 1) / steps
        return min(1.0, progress / WARM_UP, (1.0 - progress) / (1.0 - DECAY_FROM))

    schedules = [LambdaLR(each, factor) for each in optimizers]
    numbers: Any = range(steps)
    batches = DataLoader(
        numbers, batch_size=None, collate_fn=drawn, num_workers=1, prefetch_factor=4
    )
    model.train()
    for step, batch in enumerate(batches):
        loss = loss_of(step, batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if (step + 1) % REPORT_EVERY == 0:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)
    model.eval()
