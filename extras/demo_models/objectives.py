"""Training losses of the speech recognition model: text, frame labels and guided attention.

Synthesis tells when each word is spoken. So the encoder also learns which word each frame holds,
and the alignment heads learn to attend where a token is spoken. The head for frames is dropped when
a model is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import WhisperAttention

from extras.demo_models.batches import IGNORED, Batch
from extras.demo_models.whisper import ALIGNMENT_HEADS

ENCODER_RATE = 50
TOLERANCE = 0.2
TIMESTAMP_SPREAD = (0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05)


def encode(model: WhisperForConditionalGeneration, features: Tensor) -> Tensor:
    """Encoder output (B, T / 2, d_model) of features (B, 80, T) of any length.

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


class Guidance:
    """Records the inputs of the alignment heads while the decoder runs, for a loss on them."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        self.inputs: dict[int, tuple[WhisperAttention, Tensor, Tensor]] = {}
        for layer in {layer for layer, _ in ALIGNMENT_HEADS}:
            attention = model.model.decoder.layers[layer].encoder_attn
            attention.register_forward_pre_hook(self._reader(layer), with_kwargs=True)

    def _reader(self, layer: int) -> Callable[..., None]:
        def read(
            module: WhisperAttention, arguments: tuple[Tensor, ...], options: dict[str, Any]
        ) -> None:
            self.inputs[layer] = (module, arguments[0], options["key_value_states"])

        return read

    def loss(self, spans: Tensor) -> Tensor:
        """Minus log of the attention mass within a token's time.

        Mean over the alignment heads and the tokens that have a time. `spans` as in `Batch`.
        """
        timed = ~spans[..., 0].isnan()
        frames = torch.arange(next(iter(self.inputs.values()))[2].shape[1]) / ENCODER_RATE
        near = (frames >= spans[..., :1] - TOLERANCE) & (frames <= spans[..., 1:] + TOLERANCE)
        losses = []
        for layer, head in ALIGNMENT_HEADS:
            mass = (_attention(*self.inputs[layer], head) * near).sum(-1)[timed]
            losses.append(-mass.clamp_min(1e-6).log().mean())
        return torch.stack(losses).mean()


def text_loss(logits: Tensor, targets: Tensor, first_timestamp: int) -> Tensor:
    """Cross entropy; targets of timestamps are smoothed over their neighbours on the 20 ms grid."""
    chosen = targets != IGNORED
    scores, wanted = F.log_softmax(logits[chosen].float(), dim=-1), targets[chosen]
    timed = wanted >= first_timestamp
    loss = -scores.gather(1, wanted[:, None])[:, 0]
    reach = len(TIMESTAMP_SPREAD) // 2
    spread = wanted[timed, None] + torch.arange(-reach, reach + 1)
    spread = spread.clamp(first_timestamp, logits.shape[-1] - 1)
    soft = -(scores[timed].gather(1, spread) * torch.tensor(TIMESTAMP_SPREAD)).sum(1)
    return loss.masked_scatter(timed, soft).mean()


class Objectives(nn.Module):
    """The model with the head for frames that only training needs."""

    def __init__(
        self, model: WhisperForConditionalGeneration, words: int, first_timestamp: int
    ) -> None:
        super().__init__()
        self.model = model
        self.frame_head = nn.Linear(model.config.d_model, words + 1)
        self.first_timestamp = first_timestamp
        self.guidance = Guidance(model)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Losses: text, frames, guidance."""
        hidden = encode(self.model, batch.features)
        decoded = self.model.model.decoder(
            batch.tokens, encoder_hidden_states=hidden, use_cache=False
        )
        logits = self.model.proj_out(decoded.last_hidden_state)
        return {
            "text": text_loss(logits, batch.targets, self.first_timestamp),
            "frames": F.cross_entropy(
                self.frame_head(hidden).float().flatten(0, 1), batch.labels.flatten()
            ),
            "guidance": self.guidance.loss(batch.spans),
        }


def _attention(module: WhisperAttention, queries: Tensor, keys: Tensor, head: int) -> Tensor:
    """Cross-attention (B, L, T) of one head."""
    rows = slice(head * module.head_dim, (head + 1) * module.head_dim)
    query = F.linear(queries, module.q_proj.weight[rows], module.q_proj.bias[rows])
    key = F.linear(keys, module.k_proj.weight[rows])
    scores: Tensor = query @ key.transpose(1, 2) * module.head_dim**-0.5
    return scores.float().softmax(-1)
