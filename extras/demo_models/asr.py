"""Trains the demo's speech recognition model from scratch on two CPU cores, in about an hour.

The checkpoint with the lowest word error rate on the development voices is kept. It is written at
each such evaluation, so an interrupted training leaves a usable model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import WhisperTokenizer

from extras.demo_models.batches import SpecialTokens
from extras.demo_models.objectives import Objectives
from extras.demo_models.scoring import draw_utterances, word_error_rate
from extras.demo_models.tokenizer import train_tokenizer
from extras.demo_models.training import Plan, Training
from extras.demo_models.whisper import new_model, save_checkpoint
from tests.support.speech import draw_sentence, espeak_speakers, vocabulary

WEIGHTS = {"text": 1.0, "frames": 0.5, "guidance": 0.3}
PLAN = Plan(seconds=2900.0)
SENTENCES = 3000
SEED = 7
NAMES = espeak_speakers("development")
CHOICE = ((4.0, 16), (30.0, 6))  # checkpoints are chosen on these: seconds, count


def build(folder: Path, corpus: Path, state: Path, plan: Plan = PLAN) -> None:
    """Train on the clips of `corpus` and write the best checkpoint to `folder`.

    Resumes from the file `state` if it exists.
    """
    torch.manual_seed(0)
    tokenizer = demo_tokenizer()
    special = SpecialTokens.of(tokenizer)
    model = new_model(tokenizer)
    training = Training(
        Objectives(model, len(vocabulary()), special.timestamp(0.0)), WEIGHTS, state, plan
    )
    parts = {
        f"{seconds:.0f} s": draw_utterances(NAMES, seconds, count, SEED)
        for seconds, count in CHOICE
    }

    def evaluate() -> float:
        rates = {
            name: word_error_rate(model, tokenizer, utterances)
            for name, utterances in parts.items()
        }
        print(
            f"step {training.steps} WER",
            *(f"{name} {rate:.1%}" for name, rate in rates.items()),
            flush=True,
        )
        return sum(rates.values())

    training.run(corpus, special, evaluate, keep=lambda: save_checkpoint(model, tokenizer, folder))


def demo_tokenizer() -> WhisperTokenizer:
    """Return the tokenizer trained on sentences of the grammar; always the same one."""
    generator = np.random.default_rng(0)
    return train_tokenizer(draw_sentence(generator) for _ in range(SENTENCES))
