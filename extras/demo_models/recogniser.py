"""Trains the demo's speech recognition model from scratch on two CPU cores, in about an hour.

Synthesis tells when each word is spoken. So beside the text the encoder also learns which word each
frame holds, and the alignment heads learn to attend where a token is spoken. The head for frames is
dropped when the model is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import WhisperForConditionalGeneration

from extras.demo_models.batches import IGNORED, Batch, Targets
from extras.demo_models.corpus import SpokenMel
from extras.demo_models.training import train
from extras.demo_models.whisper import ALIGNMENT_HEADS, demo_tokenizer, new_model, save_checkpoint
from tests.support.speech import vocabulary

STEPS, MUON_RATE, ADAM_RATE = 4000, 3e-3, 2e-3
# Proportions of windows of 4, 10 and 30 s, at the beginning and in the second half.
SHARES = ((0.8, 0.15, 0.05), (0.15, 0.15, 0.7))
FRAMES_WEIGHT, GUIDANCE_WEIGHT = 0.5, 0.3
ENCODER_RATE = 50
TOLERANCE = 0.2
TIMESTAMP_SPREAD = (0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05)


def build(folder: Path, clips: Sequence[SpokenMel], steps: int = STEPS) -> None:
    """Train on `clips` and write the model to `folder`."""
    torch.manual_seed(0)
    tokenizer = demo_tokenizer()
    model = new_model(tokenizer)
    model.set_attn_implementation("eager")  # which returns its attention
    targets = Targets(model, tokenizer)
    objectives = Objectives(model, len(vocabulary()), targets.timestamp(0.0))

    def draw(step: int, generator: np.random.Generator) -> Batch:
        return targets.draw(clips, step / steps, SHARES, generator)

    train(objectives, draw, objectives.loss, muon_and_adam(objectives), steps)
    save_checkpoint(model, tokenizer, folder)


def muon_and_adam(module: nn.Module) -> list[Optimizer]:
    """Return Muon (Jordan et al. 2024) for the matrices of Whisper's layers, AdamW for the rest."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            (matrices if ".layers." in name and weight.ndim == 2 else rest).append(weight)
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def encode(model: WhisperForConditionalGeneration, features: Tensor) -> Tensor:
    """Return the encoder's output (B, T / 2, d_model) for features (B, 80, T) of any length.

    Shorter windows take the first positions: they are sinusoids.
    """
    encoder = model.model.encoder
    hidden = F.gelu(encoder.conv1(features))
    hidden = F.gelu(encoder.conv2(hidden)).permute(0, 2, 1)
    hidden = hidden + encoder.embed_positions.weight[: hidden.shape[1]].to(hidden.dtype)
    for layer in encoder.layers:
        hidden = layer(hidden, None)
    encoded: Tensor = encoder.layer_norm(hidden)
    return encoded


class Objectives(nn.Module):
    """The model with the head for frames that only training needs."""

    def __init__(
        self, model: WhisperForConditionalGeneration, words: int, first_timestamp: int
    ) -> None:
        super().__init__()
        self.model = model
        self.frame_head = nn.Linear(model.config.d_model, words + 1)
        self.first_timestamp = first_timestamp

    def loss(self, _: int, batch: Batch) -> Tensor:
        """Return the weighted sum of the losses of text, frames and guidance."""
        with torch.autocast("cpu", torch.bfloat16):
            hidden = encode(self.model, batch.features)
            decoded = self.model.model.decoder(
                batch.tokens,
                encoder_hidden_states=hidden,
                use_cache=False,
                output_attentions=True,
            )
            logits = self.model.proj_out(decoded.last_hidden_state)
            text = text_loss(logits, batch.targets, self.first_timestamp)
            found = self.frame_head(hidden).float().flatten(0, 1)
            frames = F.cross_entropy(found, batch.labels.flatten())
            guidance = guidance_loss(decoded.cross_attentions, batch.spans)
        return text + FRAMES_WEIGHT * frames + GUIDANCE_WEIGHT * guidance


def text_loss(logits: Tensor, targets: Tensor, first_timestamp: int) -> Tensor:
    """Return cross entropy; targets of timestamps are smoothed over their neighbours on the 20 ms
    grid.
    """
    chosen = targets != IGNORED
    scores, wanted = F.log_softmax(logits[chosen].float(), dim=-1), targets[chosen]
    timed = wanted >= first_timestamp
    loss = -scores.gather(1, wanted[:, None])[:, 0]
    reach = len(TIMESTAMP_SPREAD) // 2
    spread = wanted[timed, None] + torch.arange(-reach, reach + 1)
    spread = spread.clamp(first_timestamp, logits.shape[-1] - 1)
    soft = -(scores[timed].gather(1, spread) * torch.tensor(TIMESTAMP_SPREAD)).sum(1)
    return loss.masked_scatter(timed, soft).mean()


def guidance_loss(attentions: Sequence[Tensor], spans: Tensor) -> Tensor:
    """Return minus the log of the alignment heads' attention mass within a token's time.

    Mean over the heads and the tokens that have a time. `attentions` (B, heads, L, T) of each
    layer, `spans` as in `Batch`.
    """
    timed = ~spans[..., 0].isnan()
    frames = torch.arange(attentions[0].shape[-1]) / ENCODER_RATE
    near = (frames >= spans[..., :1] - TOLERANCE) & (frames <= spans[..., 1:] + TOLERANCE)
    masses = [
        (attentions[layer][:, head].float() * near).sum(-1)[timed]
        for layer, head in ALIGNMENT_HEADS
    ]
    return -torch.stack(masses).clamp_min(1e-6).log().mean()
