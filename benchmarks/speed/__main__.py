"""Times decoding beside transformers' pipeline and CTranslate2 and fills docs/benchmarks/speed.md.

`scripts/bench speed [--quick] [--models TEXT] [--cells TEXT] [--render]`. Results are kept in
build/bench/speed.json after every cell; page and pictures are made from that file alone, and
`--render` makes them again without measuring.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.pages import keep
from benchmarks.report import RESULTS, read, save, settings
from benchmarks.speed.bench import Bench
from benchmarks.speed.cells import Pair, pairs, quick_pairs
from benchmarks.speed.figures import charts, figures, summary
from benchmarks.speed.recordings import SEED as AUDIO_SEED
from benchmarks.timing import MIN_REPEATS
from testing.model_pairs import SEED as WEIGHTS_SEED

BUDGET = 5.0  # seconds of a cell in which more repeats than the fewest may run


def main() -> None:
    """Measure what is asked for and write the page."""
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = RESULTS / ("speed-quick.json" if options.quick else "speed.json")
    if not options.render:
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        known = quick_pairs() if options.quick else pairs(device)
        chosen = [pair for pair in known if options.models in pair.name]
        run(chosen, options.cells, device, path, 0.0 if options.quick else BUDGET)
    results = read(path)
    keep("speed", results, figures(results), options.quick, charts(results))


def run(
    chosen: Sequence[Pair], cells: str, device: torch.device, path: Path, budget: float
) -> None:
    """Measure the cells whose name holds `cells`; each is kept in `path` at once."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    facts: dict[str, Any] = {
        **settings(),
        "dtype": str(dtype),
        "seed of the audio": AUDIO_SEED,
        "seed of random weights": WEIGHTS_SEED,
        "fewest repeats": MIN_REPEATS,
        "seconds for more repeats": budget,
    }
    results: dict[str, Any] = {"settings": facts, "models": {}, "cells": []}
    started = time.perf_counter()
    for pair in chosen:
        bench = Bench(pair, device, dtype)
        of_pair: dict[str, Any] = {**bench.costs(), "max tokens": pair.max_tokens}
        results["models"][pair.name] = of_pair
        for cell in pair.cells:
            if cells not in cell.name:
                continue
            results["cells"].append(bench.measure(cell, budget))
            if cell == pair.memory_cell:
                peaks = bench.memory(cell)
                of_pair["memory"] = {"cell": cell.name, "batch": cell.batch, "MiB": peaks}
            facts["minutes"] = round((time.perf_counter() - started) / 60, 1)
            save(path, results)
            print(f"{facts['minutes']:5.1f} min  {summary(results['cells'][-1])}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench speed",
        description="Time decoding beside transformers' pipeline and CTranslate2.",
    )
    parser.add_argument("--quick", action="store_true", help="a minute's smoke test, no page")
    parser.add_argument(
        "--models", default="", metavar="TEXT", help="only models whose name holds this"
    )
    parser.add_argument(
        "--cells", default="", metavar="TEXT", help="only cells whose name holds this"
    )
    parser.add_argument("--render", action="store_true", help="make the page from the last results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
