"""What diarization costs beside pyannote.audio and beside recognition: `scripts/bench diarization`.

How long a whole diarization takes with the demo's models, and its embedding stage alone; how long
recognition and diarization take side by side; what the diarization of a long file needs in memory.
With `--pipeline` also what a pipeline of real weights takes for a minute, ten and an hour.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from audio.decode import AudioLimits, decode_audio
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
from benchmarks.report import machine, settings, table
from benchmarks.timing import ratio
from config import REPOSITORY
from demo.build.clip import Samples
from timebase import SAMPLE_RATE

AUDIO = (".flac", ".mp3", ".ogg", ".wav")
PACKAGES = ("torch", "pyannote.audio", "transformers", "numpy")
Section = tuple[str, list[str], list[list[str]]]


def main() -> None:
    """Measure, and keep the figures, the page and the picture."""
    options = _options()
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
    chosen = {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name != "quick" and value is not None
    }
    facts = settings(PACKAGES) | {
        "seconds of the conversation": round(len(samples) / SAMPLE_RATE),
        "batch size": bench.batch_size,
        **chosen,
    }
    seconds = diarize(bench)
    sections = list(_sections(bench, options, seconds))
    results = {"settings": facts, "diarization": seconds, "sections": sections}
    figures = {name: table(header, rows) for name, header, rows in sections}
    keep("diarization", results, figures, options.quick, {"diarization": _chart(facts, seconds)})


def _sections(
    bench: Bench, options: argparse.Namespace, seconds: dict[str, list[float]]
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


def _published(bench: Bench, options: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench diarization",
        description="Time diarization beside pyannote.audio and beside recognition.",
    )
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed")
    parser.add_argument(
        "--minutes", type=int, default=60, help="audio for the memory; 0 leaves it out"
    )
    parser.add_argument(
        "--pipeline",
        type=Path,
        metavar="FOLDER",
        help="a pipeline of real weights, measured as well",
    )
    parser.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="audio files that it hears one after the other; without them the demo's conversation",
    )
    parser.add_argument(
        "--lengths", type=float, nargs="+", default=[1, 10, 60], help="minutes that it hears"
    )
    parser.add_argument(
        "--stock-minutes",
        type=float,
        default=10,
        help="pyannote.audio hears no more at once; more is heard once, with all threads",
    )
    parser.add_argument("--quick", action="store_true", help="a minute's smoke test, no page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
