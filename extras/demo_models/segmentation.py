"""The demo's speaker segmentation: pyannote's PyanNet, trained on scenes of up to three voices.

The loss is permutation invariant, because the speakers of a window have no order. Classes are the
powerset (nobody, each voice, each pair): Plaquet & Bredin, "Powerset multi-class cross entropy loss
for neural speaker diarization", Interspeech 2023.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from pyannote.audio.core.task import Problem, Resolution, Specifications
from pyannote.audio.models.segmentation import PyanNet
from pyannote.audio.utils.powerset import Powerset
from torch import Tensor

from extras.demo_models.mixtures import VOICES_A_SCENE, Bank, compose, stack
from extras.demo_models.training import train
from whosaid.timebase import SAMPLE_RATE

# Over pyannote's usual ten seconds this small network confuses similar voices.
WINDOW, AT_ONCE = 5.0, 2
BATCH, PEAK_RATE = 32, 2e-3
# Last step, seconds of a window, and the probabilities of 0, 1, 2 and 3 voices in it.
STAGES = (
    (1200, 5.0, (0.05, 0.35, 0.5, 0.1)),
    (1900, 10.0, (0.05, 0.2, 0.4, 0.35)),
    (2000, 5.0, (0.1, 0.3, 0.45, 0.15)),
)


def _new_model() -> PyanNet:
    """PyanNet with random weights, a third of its usual size, at half its usual frame rate."""
    model = PyanNet(sincnet={"stride": 20}, lstm={"hidden_size": 96})
    model.specifications = Specifications(
        problem=Problem.MONO_LABEL_CLASSIFICATION,
        resolution=Resolution.FRAME,
        duration=WINDOW,
        classes=[f"speaker#{i + 1}" for i in range(VOICES_A_SCENE)],
        powerset_max_classes=AT_ONCE,
        permutation_invariant=True,
    )
    model.build()  # type: ignore[no-untyped-call]
    return model


def train_segmentation(bank: Bank, steps: int) -> PyanNet:
    model, powerset = _new_model(), Powerset(VOICES_A_SCENE, AT_ONCE)

    def draw(step: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        seconds, odds = next((seconds, odds) for until, seconds, odds in STAGES if step < until)
        frames, field = model.num_frames(round(seconds * SAMPLE_RATE)), model.receptive_field
        middles = field.start + field.duration / 2 + field.step * np.arange(frames)
        return stack([compose(bank, rng, seconds, odds) for _ in range(BATCH)], middles)

    def loss_of(_: int, batch: tuple[Tensor, Tensor]) -> Tensor:
        waveforms, active = batch
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(waveforms)
        return permutation_invariant_loss(scores.float(), active, powerset)

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    train(model, draw, loss_of, [optimizer], steps)
    return model


def permutation_invariant_loss(scores: Tensor, active: Tensor, powerset: Powerset) -> Tensor:
    """Negative log-likelihood under the best permutation of the voices, nats a frame.

    `scores` (batch, frames, classes) are log probabilities, `active` (batch, frames, voices) is 0
    or 1. The mean is over the batch.
    """
    losses = [
        -(scores * powerset.to_powerset(active[..., list(order)])).sum(-1).mean(-1)
        for order in permutations(range(VOICES_A_SCENE))
    ]
    return torch.stack(losses).amin(0).mean()
