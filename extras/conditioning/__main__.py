"""`python -m extras.conditioning`: trains an encoder that follows one speaker."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from config import REPOSITORY, SPEAKERS_MODEL, InferenceConfig, ModelReference
from whosaid.cli.parser import CommandParser, one_of, option, whole_number
from whosaid.errors import EndpointError

COMMAND = "python -m extras.conditioning"
EXAMPLE = f"{COMMAND} --model openai/whisper-base --recordings voices/ --out conditioning"
TEXTS, STATE = "texts.json", "training.state"
CARD = """---
base_model: {model}
tags: [whisper, target-speaker, overlapped-speech]
---

# {model}, conditioned on one speaker's turns

`{file}` makes the encoder of {model} follow one speaker where several talk at once. The model's own
weights stay as they are.

    {command} --model {model} --recordings RECORDINGS

{mixtures:,} mixtures of {voices:,} voices, with {speech:.0f} minutes of speech and no transcripts.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says. Ends the process with one line if it fails."""
    parser = CommandParser(
        COMMAND,
        "Train an encoder to follow one of several speakers who talk at once. The same command"
        " continues an interrupted run.",
        [("train an encoder", EXAMPLE)],
        "A recording has one voice; its speaker is its file name up to the first hyphen.",
    )
    add = partial(option, parser)
    add("--model", "a Whisper: a Hub id or a folder", required=True)
    add("--recordings", "a folder of audio files, or a manifest", type=Path, required=True)
    add("--out", "the folder for the encoder and its card", type=Path, required=True)
    add("--language", "of all recordings; default: en", default="en")
    add("--device", "default: auto", type=one_of("auto", "cuda", "cpu"), default="auto")
    add("--minutes", "how long to train; default: 60", type=float, default=60.0)
    add("--rank", "of the low-rank updates; default: 16", type=whole_number(1), default=16)
    add("--initial", "the weights to start from, a file; default: none", type=Path)
    add("--pipeline", "the pyannote pipeline that makes the masks; default: the demo's")
    options = parser.parse_args(arguments)
    try:
        _train(options)
    except (EndpointError, OSError, SafetensorError, ValueError) as error:
        sys.exit(f"{COMMAND}: {error}")


def _train(options: Namespace) -> None:
    import torch

    from extras.conditioning.mixtures import WINDOWS, cut_at_speeds
    from extras.conditioning.training import Distillation, train
    from extras.medusa.recordings import find_recordings
    from whosaid.asr import Checkpoint, load_whisper
    from whosaid.asr.checkpoint.conditioning import FILE
    from whosaid.asr.frontend.vad import SpeechDetector
    from whosaid.runtime.device import choose_device, prepare_device
    from whosaid.timebase import SAMPLE_RATE

    language = InferenceConfig.read({"language": options.language}).language or "en"
    if not options.minutes > 0:
        raise ValueError("--minutes: should be more than 0")
    there = {each.name for each in options.out.glob("*")}
    if there - {TEXTS, STATE, FILE, "README.md"} or (there and TEXTS not in there):
        raise ValueError(f"{options.out}: has files of others; choose a new folder")
    detect = SpeechDetector()
    pieces = [
        piece
        for each in find_recordings(options.recordings)
        for piece in cut_at_speeds(each.name, each.name.partition("-")[0], each.samples(), detect)
    ]
    voices = [{each.speaker for each in pieces if each.frames == frames} for frames in WINDOWS]
    if min(map(len, voices)) < 2:
        raise ValueError(f"{options.recordings}: at least two voices are needed")
    options.out.mkdir(parents=True, exist_ok=True)
    device = choose_device(options.device)
    prepare_device(device)
    named = ModelReference.parse(options.model, Path.cwd())
    models = load_whisper(Checkpoint(named.name, named.revision), device, torch.float32)
    torch.manual_seed(0)
    pipeline = options.pipeline or str(REPOSITORY / SPEAKERS_MODEL)
    distillation = Distillation(models, options.rank, language, pipeline)
    targets = distillation.targets(pieces, options.out / TEXTS)
    if {each.piece.frames for each in targets} != WINDOWS.keys():
        raise ValueError(f"{options.recordings}: the model finds no usable text in the recordings")
    speakers = {each.speaker for each in pieces}
    facts = {"model": options.model, "file": FILE, "command": COMMAND, "voices": len(speakers)}
    seconds = sum(len(each.samples) for each in pieces) / len(WINDOWS) / SAMPLE_RATE
    minutes, state, initial = options.minutes, options.out / STATE, options.initial
    for mixtures, losses in train(distillation, targets, pieces, minutes, state, initial):
        distillation.save(options.out / FILE)
        card = CARD.format(**facts, mixtures=mixtures, speech=seconds / 60)
        (options.out / "README.md").write_text(card, encoding="utf-8")
        print("{:,} mixtures: cross entropy {:.3f}, distance {:.3f}".format(mixtures, *losses))
    print(f"encoder in {options.out}")


if __name__ == "__main__":
    main()
