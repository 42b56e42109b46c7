"""The two commands of `python -m extras.conditioning`: an encoder is trained, and evaluated."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from transformers import WhisperForConditionalGeneration

from config import ModelReference
from extras.conditioning.encoder import ConditionedEncoder
from extras.conditioning.mixtures import DEVELOPMENT, TRAIN, Piece, cut, part_of
from extras.conditioning.options import Plan
from extras.conditioning.training import Losses, Report, Training, own_texts
from extras.medusa.recordings import find_recordings, load_samples
from whosaid.asr import Checkpoint, load_whisper
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.runtime.device import choose_device, prepare_device
from whosaid.runtime.environment import nvidia_device_present


def train(options: Namespace) -> None:
    """Train a conditioned encoder and write it, with its card, to the output folder."""
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    options.output_dir.mkdir(parents=True, exist_ok=True)
    models = load_model(options)
    console = Console()
    pieces = voices(options.recordings)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("the model's own texts", total=None)
        spoken = [
            own_texts(
                models,
                [each for each in pieces if part_of(each.speaker) == part],
                options.language,
                count,
                options.output_dir / f"texts-{part}.json",
                lambda count: progress.advance(task, count),
            )
            for part, count in ((TRAIN, plan.targets), (DEVELOPMENT, plan.targets // 8))
        ]
    for each, part in zip(spoken, (TRAIN, DEVELOPMENT), strict=True):
        console.print(f"{part}: {len(each.pieces)} targets of {len(each.others)} pieces of {len({p.speaker for p in each.others})} speakers, {sum(len(p.samples) for p in each.others) / 16000 / 60:.1f} minutes")
    network = WhisperForConditionalGeneration.from_pretrained(_checkpoint(options.model).name)
    torch.manual_seed(0)
    encoder = ConditionedEncoder(models, plan.rank)
    losses, held_out = (Losses(models, encoder, network, each) for each in spoken)
    training = Training(losses, held_out, plan, options.output_dir)

    def show(report: Report) -> None:
        by_kind = " ".join(f"{kind} {value:.3f}" for kind, value in report.held_out.items())
        console.print(
            f"{report.minutes:.1f} min, {report.examples} examples: cross entropy"
            f" {report.cross_entropy:.3f}, distance {report.distance:.3f}; held out {by_kind}"
        )

    training.run(show)


def voices(source: Path) -> list[Piece]:
    """Return the pieces of all recordings of single voices."""
    detect_speech = SpeechDetector()
    return [
        piece
        for each in find_recordings(source)
        for piece in cut(each.name, load_samples(each), detect_speech)
    ]


def load_model(options: Namespace) -> WhisperModels:
    """Return the main model in float32. Raises StartError."""
    device = choose_device(options.device, nvidia_device_present())
    prepare_device(device)
    return load_whisper(_checkpoint(options.model), device, torch.float32)


def _checkpoint(name: str) -> Checkpoint:
    """Return a hub id, or a folder relative to the current one."""
    named = ModelReference.parse(name, Path.cwd())
    return Checkpoint(named.name, named.revision)
