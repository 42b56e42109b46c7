"""What diarization costs beside pyannote.audio and beside recognition: `scripts/bench diarization`.

Four questions: how long the embedding stage takes, on the demo's models and on a network of full
size; how long a whole diarization takes; how long recognition and diarization take side by side;
and what the diarization of a long file needs in memory.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from transformers.utils import logging

from audio.decode import AudioLimits, decode_audio
from benchmarks.charts import Chart
from benchmarks.diarization.stages import (
    OURS,
    STOCK,
    Bench,
    beside_recognition,
    diarize,
    embed_demo,
    embed_full_size,
    measure_memory,
)
from benchmarks.pages import keep
from benchmarks.report import machine, settings, table
from benchmarks.timing import ratio
from config import REPOSITORY
from timebase import SAMPLE_RATE

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
        options.repeats, options.seconds, options.minutes = 1, 12.0, 0
    bench = Bench(device, samples, options.repeats)
    chosen = {name: value for name, value in vars(options).items() if name != "quick"}
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
    rows = [*embed_demo(bench), *embed_full_size(bench, options.seconds)]
    yield "embedding", embedding, rows
    beside = ["threads each", "recognition, s", "diarization, s", "both, s"]
    counts = sorted({1, torch.get_num_threads()})
    yield (
        "recognition",
        [*beside, "both / slower one", "both / one after the other"],
        [beside_recognition(bench, threads) for threads in counts],
    )
    header = ["audio", "its samples, MiB", f"peak of {OURS}, MiB", f"peak of {STOCK}, MiB"]
    yield "memory", header, measure_memory(bench, options.minutes) if options.minutes else []


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
        "--seconds", type=float, default=30.0, help="audio for the network of full size"
    )
    parser.add_argument(
        "--minutes", type=int, default=60, help="audio for the memory; 0 leaves it out"
    )
    parser.add_argument("--quick", action="store_true", help="a minute's smoke test, no page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
