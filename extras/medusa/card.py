"""The model card that is written beside trained heads: what the run measured itself on held-out
windows, and the commands that train and evaluate such heads.
"""

from __future__ import annotations

from extras.medusa.hidden_states import HiddenStates
from extras.medusa.training import Training


def write_card(
    base: str, digest: str, recordings: int, states: HiddenStates, training: Training
) -> str:
    """Return the card in Markdown. `base` names the main model, and `digest` binds heads to it;
    `states` are those of so many `recordings`.
    """
    plan, windows = training.plan, len(set(states.windows.tolist()))
    blocks = "one residual block" if plan.layers == 1 else f"{plan.layers} residual blocks"
    right = ", ".join(f"{share:.1%}" for share in training.best_right)
    drafts = ""
    if not training.projection.complete:
        count = len(training.projection.shortlist)
        drafts = f" They draft from a shortlist of {count:,} tokens."
    return f"""---
base_model: {base}
tags: [whisper, medusa, speculative-decoding]
---

# Medusa heads for {base}

{plan.heads} heads of {blocks} each, which draft the next {plan.heads} tokens from the hidden state
of {base} itself. The main model checks every draft, so its text stays the same to the token;
only the number of its passes changes.{drafts}

They fit one model alone, whose decoder's last layer norm and projection onto the vocabulary have
the SHA-256 `{digest}`. The endpoint refuses them beside any other.

## Use

    ASR_MODEL={base} ASSISTANT_MODEL=this/folder

They draft where that saves time; `"assisted": false` in a request decodes without them.

## Training

    python -m extras.medusa train --model {base} --recordings RECORDINGS \\
        --output-dir this/folder

Targets are the model's own greedy tokens (self-distillation), with timestamps, without them, and
after previous text: {len(states.tokens):,} positions in {len(states.lengths):,} texts of
{windows:,} windows, from {recordings:,} recordings. The model is frozen. Of {training.epoch} epochs
number {training.best_epoch} was kept, which had the longest accepted chains on every tenth window,
held out.

## Figures

Over all positions of the held-out windows, without rules for timestamps, {right} of the drafts at
depth 1 to {plan.heads} are right. A draft has {training.chain:.2f} right tokens before its first
wrong one.

For other recordings:

    python -m extras.medusa evaluate --model {base} --recordings RECORDINGS \\
        --heads this/folder
"""
