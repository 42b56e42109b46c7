"""Medusa heads: each predicts one token further on from the hidden state that chose the newest.

A head is a residual block before the main model's own projection onto the vocabulary (Cai et al.
2024, "Medusa", arXiv 2401.10774; aiola's whisper-medusa, `models/model.py`):

    head_i(h) = h + SiLU(W_i h + b_i)          logits_i = proj_out(head_i(h))

or several such blocks, one behind the other. `h` is the decoder's hidden state after its final
layer norm at the place that chose token t + 1; head i, from 0, predicts token t + 2 + i.

Heads are kept in a folder of their own, bound by a digest to the model they were trained for, so
that this model's checkpoint stays as it was published.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from whosaid.asr.checkpoint.assistants import main_digest
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.medusa import HEADS_MODEL_TYPE, HEADS_ONLY, SHORTLIST
from whosaid.asr.checkpoint.weights import WhisperModel, projection_of


class Block(nn.Module):
    """A residual block, which at first changes nothing."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
        for each in self.linear.parameters():
            nn.init.zeros_(each)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + F.silu(self.linear(hidden))


class Heads(nn.Module):
    """`count` heads of `layers` blocks each over hidden states of `d_model`; fresh ones repeat the
    newest token. Weights have the names that they have in a file.
    """

    def __init__(self, count: int, layers: int, d_model: int) -> None:
        super().__init__()
        self.layers, self.d_model = layers, d_model
        self.medusa_heads = nn.ModuleList(
            nn.Sequential(*(Block(d_model) for _ in range(layers))) for _ in range(count)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """(positions, d_model) -> (heads, positions, d_model), still to be projected."""
        return torch.stack([head(hidden) for head in self.medusa_heads])


@dataclass(frozen=True, eq=False)
class Projection:
    """The main model's projection onto its vocabulary, or onto a `shortlist` of it.

    `weight` (ids, d_model) are the rows of `shortlist` (ids,), sorted, of `size` ids in all.
    """

    weight: Tensor
    shortlist: Tensor
    size: int

    @classmethod
    def of(cls, model: WhisperModel, shortlist: Tensor | None = None) -> Projection:
        """Return a model's projection in float32, without a shortlist onto its whole vocabulary."""
        weight = projection_of(dict(model.named_parameters())).detach().float()
        every = torch.arange(len(weight), device=weight.device)
        chosen = every if shortlist is None else shortlist.to(weight.device)
        return cls(weight[chosen], chosen, len(weight))

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d_model) -> (..., ids of the shortlist)."""
        return hidden @ self.weight.T

    def index(self, tokens: Tensor) -> Tensor:
        """Return the tokens' positions in the shortlist, -1 for tokens that are not in it."""
        places = tokens.new_full((self.size + 1,), -1)
        places[self.shortlist] = torch.arange(len(self.shortlist), device=tokens.device)
        return places[tokens]

    @property
    def complete(self) -> bool:
        """Return True if the shortlist holds the whole vocabulary."""
        return len(self.shortlist) == self.size


def save_heads(folder: Path, heads: Heads, projection: Projection, models: WhisperModels) -> None:
    """Write `config.json` and `model.safetensors`, float32, for the main one of `models`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": HEADS_MODEL_TYPE,
        "medusa_num_heads": len(heads.medusa_heads),
        "medusa_num_layers": heads.layers,
        "medusa_hidden_size": heads.d_model,
        "medusa_heads_type": HEADS_ONLY,
        "base_digest": main_digest(models),
    }
    tensors = {name: each.cpu() for name, each in heads.state_dict().items()}
    if not projection.complete:
        config[SHORTLIST] = True
        tensors[SHORTLIST] = projection.shortlist.cpu()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
