"""What diarization costs beside pyannote.audio and beside recognition: `scripts/bench diarization`.

How long a whole diarization takes with the demo's models, and its embedding stage alone; how long
recognition and diarization take side by side; what the diarization of a long file needs in memory.
With `--pipeline` also what a pipeline of real weights takes for a minute, ten and an hour.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from benchmarks.charts import Chart
from benchmarks.diarization.stages import (
    OURS,
    STOCK,
    Bench,
    Published,
    beside_recognition,
    diarize,
    diarize_published,
    embed_demo,
    measure_memory,
)
from benchmarks.pages import keep
from benchmarks.report import RESULTS, machine, read_kept, settings, table
from benchmarks.timing import ratio
from config import REPOSITORY
from tests.support.speech import Samples
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE

AUDIO = (".flac", ".mp3", ".ogg", ".wav")
PACKAGES = ("torch", "pyannote.audio", "transformers", "numpy")
Section = tuple[str, list[str], list[list[str]]]


def main(options: Namespace) -> None:
    """Measure, and keep the figures, the page and the picture."""
    warnings.filterwarnings("ignore", module="pyannote")
    logging.disable_progress_bar()
    limits = AudioLimits(max_seconds=600, max_bytes=10**7)
    file = (REPOSITORY / "demo" / "conversation.ogg").read_bytes()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    samples = decode_audio(file, SAMPLE_RATE, limits).samples
    if options.quick:
        samples = samples[: 20 * SAMPLE_RATE]
        options.repeats, options.minutes = 1, 0
    bench = Bench(device, samples, options.repeats)
    left_out = {"quick", "fresh"}
    if options.pipeline is None:
        left_out |= {"recordings", "lengths", "stock_minutes"}
    chosen = {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in left_out and value
    }
    facts = settings(PACKAGES) | {
        "seconds of the conversation": round(len(samples) / SAMPLE_RATE),
        "batch size": bench.batch_size,
        **chosen,
    }
    fresh = options.fresh or options.quick
    results = read_kept(RESULTS / "diarization.json", facts, {"sections": []}, fresh)
    results["diarization"] = seconds = diarize(bench)
    kept = {name: section for name, *section in results["sections"]}
    # A table that this run leaves out stays as it was.
    kept |= {
        name: [header, rows]
        for name, header, rows in _sections(bench, options, seconds)
        if rows or name not in kept
    }
    results["sections"] = [[name, *section] for name, section in kept.items()]
    figures = {name: table(header, rows) for name, (header, rows) in kept.items()}
    pictures = {"diarization": _chart(results["settings"], seconds)}
    keep("diarization", results, figures, options, pictures)


def _sections(
    bench: Bench, options: Namespace, seconds: dict[str, list[float]]
) -> Iterator[Section]:
    """Every table with its place on the page."""
    relative = "times as long as this project"
    whole = [
        [name, f"{median(times):.2f}", str(ratio(times, seconds[OURS]))]
        for name, times in seconds.items()
    ]
    yield "conversation", ["", "seconds", relative], whole
    embedding = ["", "windows", "largest difference", "seconds", relative]
    yield "embedding", embedding, embed_demo(bench)
    beside = ["threads each", "recognition, s", "diarization, s", "both, s"]
    counts = sorted({1, torch.get_num_threads()})
    yield (
        "recognition",
        [*beside, "both / slower one", "both / one after the other"],
        [beside_recognition(bench, threads) for threads in counts],
    )
    yield "published", *_published(bench, options)
    header = ["audio", "its samples, MiB", f"peak of {OURS}, MiB", f"peak of {STOCK}, MiB"]
    yield "memory", header, measure_memory(bench, options.minutes) if options.minutes else []


def _published(bench: Bench, options: Namespace) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the pipeline of real weights; no rows where none is given."""
    header = ["audio", "threads"]
    header += [f"{name}, s a second" for name in (OURS, STOCK)]
    header += [f"{STOCK} / {OURS}", *(f"peak of {name}, MiB" for name in (OURS, STOCK))]
    if options.pipeline is None:
        return header, []
    speech = bench.conversation if options.recordings is None else _joined(options.recordings)
    published = Published(str(options.pipeline), speech, options.stock_minutes)
    most = torch.get_num_threads()
    return header, [
        diarize_published(bench, published, minutes, threads)
        for minutes in options.lengths
        for threads in sorted({1, most}, reverse=True)
        if threads == most or minutes <= published.stock_minutes
    ]


def _joined(folder: Path) -> Samples:
    """All recordings of a folder in order of their names."""
    limits = AudioLimits(max_seconds=3600, max_bytes=10**9)
    files = sorted(file for file in folder.iterdir() if file.suffix in AUDIO)
    if not files:
        raise SystemExit(f"{folder}: no recording ({', '.join(AUDIO)})")
    return np.concatenate(
        [decode_audio(file.read_bytes(), SAMPLE_RATE, limits).samples for file in files]
    )


def _chart(facts: dict[str, Any], seconds: dict[str, list[float]]) -> Chart:
    return Chart(
        question="Seconds to diarize two minutes of conversation",
        unit=" s",
        groups=("",),
        bars={name: (median(seconds[name]),) for name in (OURS, STOCK)},
        note=f"The demo's models, {machine(facts)}, float32, batch {facts['batch size']}. "
        "Both find the same turns.",
        digits=2,
    )
