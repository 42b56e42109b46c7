"""A training loop that resumes from its last checkpoint.

Step n draws its data from a generator seeded with n, so a run that was interrupted sees the same
scenes as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Stateful(Protocol):
    """Part of the training state: a model or an optimizer."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


SAVE_EVERY, REPORT_EVERY = 100, 20
WARM_UP = 0.1


def train(
    model: nn.Module,
    loss_of: Callable[[int, np.random.Generator], Tensor],
    steps: int,
    peak_rate: float,
    checkpoint: Path,
) -> None:
    """Minimise `loss_of(step, generator)` with AdamW, warm-up to `peak_rate` and cosine decay.

    `checkpoint` holds the state between runs. Where training is finished, its weights are loaded.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=1e-2)
    parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    begun, recent = time.monotonic(), 0.0
    first = _load(checkpoint, parts)
    model.train()
    for step in range(first, steps):
        loss = loss_of(step, np.random.default_rng([7, step]))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        for group in optimizer.param_groups:
            group["lr"] = peak_rate * _rate_factor(step / steps)
        optimizer.step()
        recent += (loss.item() - recent) / (1 + min(step - first, REPORT_EVERY))
        if (step + 1) % REPORT_EVERY == 0:
            speed = (step + 1 - first) / (time.monotonic() - begun)
            print(
                f"{checkpoint.stem} {step + 1}/{steps} loss {recent:.3f} {speed:.2f} steps/s",
                flush=True,
            )
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            _save(checkpoint, parts, step + 1)
    model.eval()


def _rate_factor(progress: float) -> float:
    """Linear warm-up over the first tenth, then half a cosine down to zero."""
    return min(
        progress / WARM_UP, (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2
    )


def _load(checkpoint: Path, parts: Mapping[str, Stateful]) -> int:
    """Load the saved state into `parts` and return the step to resume at."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["step"])


def _save(
    checkpoint: Path,
    parts: Mapping[str, Stateful],
    step: int,
) -> None:
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = checkpoint.with_suffix(".partial")
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, partial)
    partial.replace(checkpoint)
