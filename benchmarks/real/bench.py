"""Anybody's recordings through several engines: `scripts/bench real --manifest FILE --model MODEL`.

Engines take turns recording by recording, every other time in reverse, so that a machine that is
slow for a minute is slow for all. Their texts are kept with the references in build/bench. A later
run adds to them, and `--render` makes scores and page again without transcribing.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart import EngineFailed
from benchmarks.real.converted import convert
from benchmarks.real.engines import EngineProcess, Setting, Spec, decoded
from benchmarks.real.figures import figures, summary
from benchmarks.real.manifest import Recording, load_manifests
from benchmarks.real.results import EMPTY, Results, add_answer, add_recording
from benchmarks.report import read_kept, save, settings
from config import ModelSettings
from whosaid.cli.parser import model as read_model
from whosaid.models.download import with_local_models
from whosaid.timebase import SAMPLE_RATE

__all__ = ["figures", "measure"]

PACKAGES = ("torch", "transformers", "ctranslate2", "faster-whisper", "jiwer")


def measure(options: Namespace, path: Path) -> None:
    """Transcribe every recording by every engine; `path` is written after each recording.

    Raises ValueError if manifest or engines are wrong or no engine is left, and StartError if
    the model cannot be had.
    """
    specs = [Spec.parse(text) for text in options.engines]
    recordings = [
        recording
        for recording in load_manifests(options.manifest)
        if options.only in recording.name
    ]
    if not recordings:
        raise ValueError("no recording is left to hear")
    setting = _setting(options)
    results = read_kept(path, _facts(options, setting), EMPTY, options.fresh)
    seconds = {each: len(decoded(each)) / SAMPLE_RATE for each in recordings}
    for recording in recordings:
        add_recording(results, recording, seconds[recording])
    engines = _start(specs, setting, min(recordings, key=seconds.__getitem__))
    try:
        _hear(engines, recordings, options.repeats, results, path)
    finally:
        for engine in engines:
            engine.close()


def _hear(
    engines: Sequence[EngineProcess],
    recordings: Sequence[Recording],
    repeats: int,
    results: Results,
    path: Path,
) -> None:
    """Transcribe every recording with every engine, by turns, `repeats` times."""
    for turn in range(repeats * len(recordings)):
        recording = recordings[turn % len(recordings)]
        forward = (turn + turn // len(recordings)) % 2 == 0
        for engine in engines if forward else reversed(engines):
            heard = engine.transcribe(recording)
            add_answer(results, recording, engine.spec, heard, first=turn < len(recordings))
        save(path, results)
        print(summary(results, recording), file=sys.stderr, flush=True)


def _start(specs: Sequence[Spec], setting: Setting, recording: Recording) -> list[EngineProcess]:
    """Load the engines one after the other and return those that answer; print the others' names.

    Each engine transcribes the shortest recording once as a warm-up.
    """
    engines: list[EngineProcess] = []
    for spec in specs:
        started = time.perf_counter()
        try:
            engine = EngineProcess(spec, setting)
            engine.transcribe(recording)
        except EngineFailed as error:
            print(f"left out: {error}", file=sys.stderr, flush=True)
            continue
        engines.append(engine)
        seconds = time.perf_counter() - started
        print(f"{spec.name} ready after {seconds:.1f} s", file=sys.stderr, flush=True)
    if not engines:
        raise ValueError("no engine is left")
    return engines


def _model(text: str) -> str:
    try:
        return read_model(text)
    except ArgumentTypeError as error:
        raise ValueError(f"--model={text}: {error}") from error


def _setting(options: Namespace) -> Setting:
    """Return the engines' common settings; fetch and convert the model if need be."""
    chosen = ModelSettings.for_models(_model(options.model))
    model = Path(with_local_models(chosen).asr_model.name)
    return Setting(
        model=model,
        converted=convert(model),
        device="cuda" if torch.cuda.is_available() else "cpu",
        precision=options.precision,
        threads=options.threads or torch.get_num_threads(),
        batch_size=options.batch_size,
        words=options.words,
    )


def _facts(options: Namespace, setting: Setting) -> dict[str, Any]:
    """Return the settings that the figures depend on."""
    torch.set_num_threads(setting.threads)
    return {
        "model": Path(options.model).name,
        "precision": setting.precision,
        "batch size": setting.batch_size,
        "word times": setting.words,
        "repeats": options.repeats,
        **settings(PACKAGES),
    }
