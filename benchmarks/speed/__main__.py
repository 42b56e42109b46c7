"""Times decoding beside transformers' pipeline and CTranslate2 and fills docs/benchmarks/speed.md.

Results are kept in build/bench/speed.json after every cell; page and pictures are made from that
file alone.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.pages import publish
from benchmarks.report import RESULTS, put, read, read_kept, save, settings
from benchmarks.speed.bench import Bench
from benchmarks.speed.cells import Pair, pairs, quick_pairs
from benchmarks.speed.figures import figures, summary
from benchmarks.speed.recordings import SEED as AUDIO_SEED
from benchmarks.timing import MIN_REPEATS
from tests.support.model_pairs import SEED as WEIGHTS_SEED

BUDGET = 5.0  # seconds of a cell in which more repeats than the fewest may run


def main(options: Namespace) -> None:
    """Measure what is asked for and write the page."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = RESULTS / ("speed-quick.json" if options.quick else "speed.json")
    if not options.render:
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        known = quick_pairs() if options.quick else pairs()
        chosen = [pair for pair in known if options.models in pair.name]
        budget, fresh = (0.0, True) if options.quick else (BUDGET, options.fresh)
        run(chosen, options.cells, device, path, budget, fresh)
    results = read(path)
    publish("speed", path, results["settings"], figures(results), options.publish)


def run(
    chosen: Sequence[Pair],
    cells: str,
    device: torch.device,
    path: Path,
    budget: float,
    fresh: bool,
) -> None:
    """Measure the cells whose name contains `cells`; each is written to `path` at once, among the
    earlier ones unless `fresh`.
    """
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    facts: dict[str, Any] = {
        **settings(),
        "dtype": str(dtype),
        "seed of the audio": AUDIO_SEED,
        "seed of random weights": WEIGHTS_SEED,
        "fewest repeats": MIN_REPEATS,
        "seconds for more repeats": budget,
    }
    results = read_kept(path, facts, {"models": {}, "cells": []}, fresh)
    started = time.perf_counter()
    for pair in chosen:
        bench = Bench(pair, device, dtype)
        of_pair: dict[str, Any] = results["models"].setdefault(pair.name, {})
        of_pair |= {**bench.costs(), "max tokens": pair.max_tokens}
        for cell in pair.cells:
            if cells not in cell.name:
                continue
            measured = bench.measure(cell, budget)
            put(results["cells"], measured, "models", "cell", "batch")
            if cell == pair.memory_cell:
                peaks = bench.memory(cell)
                of_pair["memory"] = {"cell": cell.name, "batch": cell.batch, "MiB": peaks}
            minutes = round((time.perf_counter() - started) / 60, 1)
            results["settings"]["minutes"] = minutes
            save(path, results)
            print(f"{minutes:5.1f} min  {summary(measured)}", flush=True)
