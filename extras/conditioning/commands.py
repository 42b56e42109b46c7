"""The two commands of `python -m extras.conditioning`: an encoder is trained, and evaluated."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from config import ModelReference
from extras.conditioning.encoder import FILE, ConditionedEncoder
from extras.conditioning.evaluation import Evaluation, figures, pairs
from extras.conditioning.mixtures import DEVELOPMENT, TEST, TRAIN, Piece, cut, part_of
from extras.conditioning.training import BATCH, Distillation, Training
from extras.medusa.recordings import find_recordings, load_samples
from whosaid.asr import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.runtime.device import choose_device, prepare_device
from whosaid.runtime.environment import nvidia_device_present
from whosaid.timebase import SAMPLE_RATE

CARD = """---
base_model: {model}
tags: [whisper, target-speaker, overlapped-speech]
---

# {model}, conditioned on one speaker's turns

`{file}` makes the encoder of {model} follow one speaker where several talk at once. The model's own
weights stay as they are.

    python -m extras.conditioning train --model {model} --recordings RECORDINGS --out this/folder

{mixtures:,} mixtures in {minutes:.0f} minutes, of {voices:,} voices with {speech:.0f} minutes of
speech, without transcripts.

## Figures

Word errors against the model's own texts of the voices alone, with the turns of the clean voices.

{figures}
"""


def train(options: Namespace) -> None:
    """Train a conditioned encoder and write it, with its card, to a folder."""
    options.out.mkdir(parents=True, exist_ok=True)
    models, pieces = _load(options), _pieces(options)
    torch.manual_seed(0)
    encoder = ConditionedEncoder(models, options.rank)
    distillation = Distillation(models, encoder, options.language)
    others = pieces[TRAIN]
    drawn = np.random.default_rng(1).permutation(len(others))[: options.targets]
    with Progress() as progress:
        bar = progress.add_task("targets", total=len(drawn))
        targets = distillation.targets(
            [others[number] for number in drawn],
            options.out / "texts.json",
            lambda done: progress.update(bar, completed=done),
        )
        if not targets:
            raise ValueError(f"{options.recordings}: no piece has a text to learn from")
        bar = progress.add_task("minutes of training", total=options.minutes)
        training = Training(distillation, targets, others, options.minutes, options.out)
        for line in training.run():
            progress.update(bar, completed=training.seconds / 60)
            progress.console.print(line)
    measured = _evaluate(options, models, encoder, pieces[DEVELOPMENT])
    card = CARD.format(
        model=options.model,
        file=FILE,
        mixtures=training.step * BATCH,
        minutes=training.seconds / 60,
        voices=len({each.speaker for each in others}),
        speech=sum(len(each.samples) for each in others) / SAMPLE_RATE / 60,
        figures=measured,
    )
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(f"encoder in {options.out}\n\n{measured}")


def evaluate(options: Namespace) -> None:
    """Print the word errors of an encoder on voices that were not trained on."""
    models = _load(options)
    encoder = ConditionedEncoder.load(models, options.out / FILE)
    print(_evaluate(options, models, encoder, _pieces(options)[options.part]))


def _evaluate(
    options: Namespace, models: WhisperModels, encoder: ConditionedEncoder, pieces: list[Piece]
) -> str:
    chosen = list(pairs(pieces, options.pairs))
    evaluation = Evaluation(models, encoder, options.language)
    with Progress() as progress:
        errors = list(progress.track(evaluation.run(chosen), total=len(chosen)))
    return f"{len(chosen)} pairs of voices:\n\n{figures(errors)}"


def _pieces(options: Namespace) -> dict[str, list[Piece]]:
    """Return the pieces of all recordings by part of the split. Raises ValueError if a part has
    fewer than two speakers.
    """
    detect_speech = SpeechDetector()
    found: dict[str, list[Piece]] = {TRAIN: [], DEVELOPMENT: [], TEST: []}
    for each in find_recordings(options.recordings):
        for piece in cut(each.name, load_samples(each), detect_speech):
            found[part_of(piece.speaker)].append(piece)
    for part, pieces in found.items():
        if len({each.speaker for each in pieces}) < 2:
            raise ValueError(f"{options.recordings}: it needs more voices, two at least of {part}")
    return found


def _load(options: Namespace) -> WhisperModels:
    """Return the main model in float32. Raises StartError."""
    device = choose_device(options.device, nvidia_device_present())
    prepare_device(device)
    named = ModelReference.parse(options.model, Path.cwd())
    return load_whisper(Checkpoint(named.name, named.revision), device, torch.float32)
