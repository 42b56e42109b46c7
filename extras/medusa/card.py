"""The model card that is written beside trained heads.

It holds what the run measured itself, on windows that no step has seen, and the commands that train
and evaluate such heads; nothing that somebody would have to keep up by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from extras.medusa.options import Plan

CARD = "README.md"


@dataclass(frozen=True)
class TrainingFacts:
    """Facts of a training run for its model card. `base` names the main model and `digest` binds
    the heads to it; `positions` are hidden states, of `texts` of `windows`; `best_epoch` is the one
    kept. `right` is the share of right drafts at each depth, `chain` the mean length of a draft
    that is accepted.
    """

    base: str
    digest: str
    plan: Plan
    recordings: int
    windows: int
    texts: int
    positions: int
    shortlist: int | None
    epochs: int
    best_epoch: int
    right: tuple[float, ...]
    chain: float


def write_card(facts: TrainingFacts) -> str:
    """Return the card in Markdown."""
    plan = facts.plan
    blocks = "one residual block" if plan.layers == 1 else f"{plan.layers} residual blocks"
    right = ", ".join(f"{share:.1%}" for share in facts.right)
    drafts = (
        ""
        if facts.shortlist is None
        else f" They draft from a shortlist of {facts.shortlist:,} tokens."
    )
    return f"""---
base_model: {facts.base}
tags: [whisper, medusa, speculative-decoding]
---

# Medusa heads for {facts.base}

{plan.heads} heads of {blocks} each, which draft the next {plan.heads} tokens from the hidden state
of {facts.base} itself. The main model checks every draft, so its text stays the same to the token;
only the number of its passes changes.{drafts}

They fit one model alone, whose decoder's last layer norm and projection onto the vocabulary have
the SHA-256 `{facts.digest}`. The endpoint refuses them beside any other.

## Use

    ASR_MODEL={facts.base} ASSISTANT_MODEL=this/folder

They draft where that saves time; `"assisted": false` in a request decodes without them.

## Training

    python -m extras.medusa train --model {facts.base} --recordings RECORDINGS \\
        --output-dir this/folder

Targets are the model's own greedy tokens (self-distillation), with timestamps, without them, and
after previous text: {facts.positions:,} positions in {facts.texts:,} texts of {facts.windows:,}
windows, from {facts.recordings:,} recordings. The model is frozen. Of {facts.epochs} epochs number
{facts.best_epoch} was kept, which had the longest accepted chains on every tenth window, held out.

## Figures

Over all positions of the held-out windows, without rules for timestamps, {right} of the drafts at
depth 1 to {plan.heads} are right, and a draft has {facts.chain:.2f} right tokens before its first
wrong one.

For other recordings:

    python -m extras.medusa evaluate --model {facts.base} --recordings RECORDINGS \\
        --heads this/folder
"""
