"""The two commands of `python -m extras.medusa`: heads are trained, and evaluated.

The same command continues an interrupted run. Results of decoding and training so far are in the
work folder, named by model, recordings and plan.
"""

import hashlib
import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path

import torch
from rich.progress import track

from config import REPOSITORY, ModelReference
from extras.medusa.evaluation import summary, transcribe_both
from extras.medusa.heads import Projection, save_heads
from extras.medusa.hidden_states import Teacher, Text, cache_name, cached_texts
from extras.medusa.options import Plan
from extras.medusa.recordings import find_recordings
from extras.medusa.training import (
    HELD_OUT,
    Epoch,
    Training,
    check_shortlist,
    check_windows,
    choose_shortlist,
)
from whosaid.asr import Checkpoint, Transcriber, load_whisper, with_assistant
from whosaid.asr.checkpoint.assistants import main_digest
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.medusa import HEADS_MODEL_TYPE
from whosaid.runtime.device import choose_device, prepare_device

WORK = REPOSITORY / "build" / "medusa"
CARD = Path(__file__).with_name("card.template")


def train(options: Namespace) -> None:
    """Train heads and write them, with their card, to the output folder."""
    config = options.output_dir / "config.json"
    kind = json.loads(config.read_text("utf-8")).get("model_type") if config.is_file() else None
    if kind != HEADS_MODEL_TYPE and any(options.output_dir.glob("*")):
        raise ValueError(f"{options.output_dir}: has files that are not heads; choose a new folder")
    recordings = find_recordings(options.recordings)
    models = load_model(options)
    if models.medusa is not None:
        raise ValueError(f"{models.name} already has heads")
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    check_shortlist(models.special_tokens, plan.shortlist)
    teacher = Teacher(models)
    # Before decoding, find speech in as many recordings as the training needs.
    check_windows(len(list(islice(teacher.windows(recordings), HELD_OUT))))
    folder = (options.work or WORK) / cache_name(models, recordings)
    texts = cached_texts(teacher, recordings, folder)
    shortlist = choose_shortlist(texts, models.special_tokens, plan.shortlist)
    projection = Projection.of(models.model, shortlist)
    state = folder / f"{hashlib.sha256(repr(plan).encode()).hexdigest()[:12]}.state"
    training = Training(texts, projection, plan, state)
    save_heads(options.output_dir, training.run(_print_epoch), projection, models)
    card = _card(options.model, main_digest(models), len(recordings), texts, training)
    (options.output_dir / "README.md").write_text(card, encoding="utf-8")
    print(f"heads in {options.output_dir}")


def _card(
    base: str, digest: str, recordings: int, texts: Sequence[Text], training: Training
) -> str:
    """Return the model card; `base` names the main model, `digest` identifies its weights."""
    plan, best, projection = training.plan, training.best, training.projection
    drafts = f" They draft from a shortlist of {len(projection.shortlist):,} tokens."
    return CARD.read_text(encoding="utf-8").format(
        base=base,
        digest=digest,
        recordings=recordings,
        heads=plan.heads,
        blocks="one residual block" if plan.layers == 1 else f"{plan.layers} residual blocks",
        drafts="" if projection.complete else drafts,
        positions=sum(len(text.tokens) for text in texts),
        texts=len(texts),
        windows=len({text.window for text in texts}),
        epochs=training.epoch,
        kept=best.number,
        right=", ".join(f"{share:.1%}" for share in best.right),
        chain=best.chain,
    )


def evaluate(options: Namespace) -> None:
    """Print the gain from heads on recordings."""
    recordings = find_recordings(options.recordings)
    models = load_model(options)
    if options.heads is not None:
        models = with_assistant(models, _checkpoint(options.heads))
    if models.medusa is None:
        raise ValueError("there are no heads: set --heads")
    transcriber = Transcriber(models)
    results = [
        transcribe_both(transcriber, each, options.batch_size, options.repeats)
        for each in track(recordings, "transcribing")
    ]
    print(f"\n{summary(results)}")


def load_model(options: Namespace) -> WhisperModels:
    """Return the main model, in float32 on a CPU and in float16 on CUDA. Raises StartError."""
    device = choose_device(options.device)
    prepare_device(device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    return load_whisper(_checkpoint(options.model), device, dtype)


def _checkpoint(name: str) -> Checkpoint:
    """Return a hub id, or a folder relative to the current one."""
    named = ModelReference.parse(name, Path.cwd())
    return Checkpoint(named.name, named.revision)


def _print_epoch(epoch: Epoch) -> None:
    shares = " ".join(f"{share:.1%}" for share in epoch.right)
    told = f"loss {epoch.loss:.3f}, right by depth {shares}, chain {epoch.chain:.3f}"
    print(f"epoch {epoch.number}: {told}", flush=True)
