"""The two commands of `python -m extras.conditioning`: an encoder is trained, and evaluated."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch
from rich.progress import Progress
from transformers import WhisperForConditionalGeneration

from config import ModelReference
from extras.conditioning.encoder import FILE, ConditionedEncoder
from extras.conditioning.evaluation import Evaluation, figures, pairs
from extras.conditioning.mixtures import DEVELOPMENT, TRAIN, Piece, cut, part_of
from extras.conditioning.options import Plan
from extras.conditioning.training import Losses, Report, Training, own_texts
from extras.medusa.recordings import find_recordings, load_samples
from whosaid.asr import Checkpoint, load_whisper
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.runtime.device import choose_device, prepare_device
from whosaid.runtime.environment import nvidia_device_present
from whosaid.timebase import SAMPLE_RATE

HELD_OUT_SHARE = 8  # a development target for as many training targets
PAIRS_OF_CARD = 10


def train(options: Namespace) -> None:
    """Train a conditioned encoder and write it, with its card, to a folder."""
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    options.out.mkdir(parents=True, exist_ok=True)
    models, pieces = _load(options), _pieces(options.recordings)
    torch.manual_seed(0)
    encoder = ConditionedEncoder(models, plan.rank)
    network = WhisperForConditionalGeneration.from_pretrained(**_checkpoint(options).source)
    losses = []
    with Progress() as progress:
        for part, count in ((TRAIN, plan.targets), (DEVELOPMENT, plan.targets // HELD_OUT_SHARE)):
            own = [each for each in pieces if part_of(each.speaker) == part]
            if len({each.speaker for each in own}) < 2:
                raise ValueError(f"{options.recordings}: too few voices, none left for {part}")
            bar = progress.add_task(f"texts for {part}", total=min(count, len(own)))
            path = options.out / f"texts-{part}.json"
            spoken = own_texts(
                models, own, options.language, count, path, partial(progress.advance, bar)
            )
            losses.append(Losses(models, encoder, network, spoken))
        training = Training(losses[0], losses[1], plan, options.out)
        bar = progress.add_task("minutes of training", total=plan.minutes)

        def show(report: Report) -> None:
            progress.update(bar, completed=report.minutes)
            progress.console.print(report)

        report = training.run(show)
    measured = _evaluate(options, models, encoder, pieces, DEVELOPMENT, PAIRS_OF_CARD)
    card = _card(options, plan, report, losses[0].spoken.others, measured)
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(f"encoder in {options.out}\n\n{measured}")


def evaluate(options: Namespace) -> None:
    """Print the word errors of an encoder on held-out voices."""
    models = _load(options)
    encoder = ConditionedEncoder.load(models, options.conditioning / FILE)
    pieces = _pieces(options.recordings)
    print(_evaluate(options, models, encoder, pieces, options.part, options.pairs))


def _evaluate(
    options: Namespace,
    models: WhisperModels,
    encoder: ConditionedEncoder,
    pieces: list[Piece],
    part: str,
    count: int,
) -> str:
    chosen = list(pairs([each for each in pieces if part_of(each.speaker) == part], count))
    errors = []
    with Progress() as progress:
        for each in progress.track(
            Evaluation(models, encoder, options.language).run(chosen), total=len(chosen)
        ):
            errors.append(each)
    return f"{len(chosen)} pairs of {part} voices:\n\n{figures(errors)}"


def _card(
    options: Namespace, plan: Plan, report: Report, pieces: list[Piece], measured: str
) -> str:
    minutes = sum(len(each.samples) for each in pieces) / SAMPLE_RATE / 60
    return f"""---
base_model: {options.model}
tags: [whisper, target-speaker, overlapped-speech]
---

# Conditioning of {options.model} on one speaker's turns

`{FILE}` makes the encoder of {options.model} follow one speaker where several talk at once. The
weights of {options.model} stay as they are.

## Training

    python -m extras.conditioning train --model {options.model} --recordings RECORDINGS \\
        --out this/folder

{report.examples:,} mixtures in {report.minutes:.0f} minutes, from {minutes:.0f} minutes of
{len({each.speaker for each in pieces}):,} voices, without transcripts. Plan: {plan}.

## Figures

Word errors against the model's own texts of the voices alone; turns are those of the clean voices.
{measured}
"""


def _pieces(source: Path) -> list[Piece]:
    """Return the pieces of all recordings of single voices."""
    detect_speech = SpeechDetector()
    return [
        piece
        for each in find_recordings(source)
        for piece in cut(each.name, load_samples(each), detect_speech)
    ]


def _load(options: Namespace) -> WhisperModels:
    """Return the main model in float32. Raises StartError."""
    device = choose_device(options.device, nvidia_device_present())
    prepare_device(device)
    return load_whisper(_checkpoint(options), device, torch.float32)


def _checkpoint(options: Namespace) -> Checkpoint:
    """Return a hub id, or a folder relative to the current one."""
    named = ModelReference.parse(options.model, Path.cwd())
    return Checkpoint(named.name, named.revision)
