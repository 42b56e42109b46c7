"""Distils the demo's assistant: the main model's encoder with two decoder layers.

The recipe is Distil-Whisper's (Gandhi et al. 2023). The first and last decoder layers are copied
and the encoder is frozen. The student learns the main model's distribution and its most likely
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoProcessor, WhisperForConditionalGeneration

from extras.demo_models.batches import IGNORED, Batch, Targets
from extras.demo_models.corpus import SpokenMel
from extras.demo_models.recogniser import encode, muon_and_adam
from extras.demo_models.training import train
from extras.demo_models.whisper import ALIGNMENT_HEADS, save_checkpoint
from tests.support.tiny_whispers import without_layers

STEPS, SHARES = 3600, ((0.4, 0.2, 0.4), (0.2, 0.1, 0.7))
DIVERGENCE_WEIGHT = 0.8
# A timestamp that is 20 ms off ends a draft as a wrong word does.
TIMESTAMP_WEIGHT = 4.0


def build(folder: Path, main: Path, clips: Sequence[SpokenMel], steps: int = STEPS) -> None:
    """Distil the model in `main` on `clips`, and write the assistant to `folder`."""
    torch.manual_seed(0)
    teacher = WhisperForConditionalGeneration.from_pretrained(main, dtype=torch.float32)
    tokenizer = AutoProcessor.from_pretrained(main).tokenizer
    last = teacher.config.decoder_layers - 1
    student: Any = without_layers(teacher, (0, last))
    student.generation_config.alignment_heads = [
        [1, head] for layer, head in ALIGNMENT_HEADS if layer == last
    ]
    targets = Targets(teacher, tokenizer)
    distillation = Distillation(teacher, student, targets.timestamp(0.0))

    def draw(step: int, generator: np.random.Generator) -> Batch:
        return targets.draw(clips, step / steps, SHARES, generator)

    train(distillation, draw, distillation.loss, muon_and_adam(distillation), steps)
    save_checkpoint(student, tokenizer, folder)


class Distillation(nn.Module):
    """Teacher and student decoders on one frozen encoder."""

    def __init__(
        self,
        teacher: WhisperForConditionalGeneration,
        student: WhisperForConditionalGeneration,
        first_timestamp: int,
    ) -> None:
        super().__init__()
        self.first_timestamp = first_timestamp
        self.teacher, self.student = teacher.requires_grad_(False), student
        student.model.encoder.requires_grad_(False)

    def loss(self, _: int, batch: Batch) -> Tensor:
        """Return the KL divergence from the teacher's distribution, and cross entropy of its best
        tokens.
        """
        chosen = batch.targets != IGNORED
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                hidden = encode(self.teacher, batch.features)
                teacher = _log_probs(self.teacher, batch.tokens, hidden)[chosen]
            student = _log_probs(self.student, batch.tokens, hidden)[chosen]
            best = teacher.argmax(-1)
            weight = torch.where(best >= self.first_timestamp, TIMESTAMP_WEIGHT, 1.0)
            divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
            text = F.nll_loss(student, best, reduction="none")
        return (weight * (DIVERGENCE_WEIGHT * divergence + text)).sum() / weight.sum()


def _log_probs(model: WhisperForConditionalGeneration, tokens: Tensor, hidden: Tensor) -> Tensor:
    """Log probabilities (B, L, vocabulary)."""
    decoded = model.model.decoder(tokens, encoder_hidden_states=hidden, use_cache=False)
    log_probs: Tensor = model.proj_out(decoded.last_hidden_state).float().log_softmax(-1)
    return log_probs
