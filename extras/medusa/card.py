"""The model card that is written beside trained heads.

It holds what the run measured itself, on windows that no step has seen, and the commands that train
and evaluate such heads; nothing that somebody would have to keep up by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.report import table
from extras.medusa.acceptance import Acceptance
from extras.medusa.options import Plan

CARD = "README.md"


@dataclass(frozen=True)
class TrainingFacts:
    """Facts of a training run for its model card. `base` names the main model and `digest` binds
    the heads to it; `positions` are hidden states, of `texts` of `windows`; `best_epoch` is the one
    kept.
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
    acceptance: dict[str, Acceptance]


def write_card(facts: TrainingFacts) -> str:
    """Return the card in Markdown."""
    plan = facts.plan
    blocks = "one residual block" if plan.layers == 1 else f"{plan.layers} residual blocks"
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

Share of drafts accepted at each depth, of those whose draft before was accepted, in rounds that
draft {plan.heads} tokens on the held-out windows; tokens that a row gains in a pass.

{acceptance_table(facts.acceptance)}

For other recordings:

    python -m extras.medusa evaluate --model {facts.base} --recordings RECORDINGS \\
        --heads this/folder
"""


def acceptance_table(measured: dict[str, Acceptance]) -> str:
    """Return a Markdown table with a row for each kind of text."""
    depths = max((len(each.tried) for each in measured.values()), default=0)
    header = ["texts", *(f"depth {depth + 1}" for depth in range(depths)), "tokens a pass"]
    rows = [
        [name, *(f"{share:.1%}" for share in each.by_depth), f"{each.tokens_a_pass:.2f}"]
        for name, each in measured.items()
    ]
    return table(header, rows)
