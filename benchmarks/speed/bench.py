"""Times decoding, compared with transformers' pipeline and CTranslate2: `scripts/bench speed`."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.pipeline import Pipeline
from benchmarks.report import Results, Tables, settings
from benchmarks.speed.cells import (
    ASSISTED,
    COLUMNS,
    CT2,
    OURS,
    PIPELINE,
    Cell,
    Pair,
    pairs,
    quick_pairs,
)
from benchmarks.speed.engines import CTranslate2, Ours
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import Action, ratio, time_interleaved
from whosaid.transcript import DecodeStats

REPEATS = 5  # of each cell, after a first run that is not counted
RATIOS = {
    "pipeline / ours": (PIPELINE, OURS),
    "CTranslate2 / ours": (CT2, OURS),
    "ours / ours assisted": (OURS, ASSISTED),
}


def measure(options: Namespace, path: Path) -> None:
    """Measure all cells; `path` is written after each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    facts = settings() | {"dtype": str(dtype)}
    results = Results(path, facts, {"cells": []}, options.fresh or options.quick)
    for pair in quick_pairs() if options.quick else pairs():
        bench = Bench(pair, device, dtype)
        for cell in pair.cells:
            row = bench.measure(cell, 1 if options.quick else REPEATS)
            results.put("cells", row, "models", "cell", "batch")


def figures(results: dict[str, Any]) -> Tables:
    """Return times with their ratios."""
    return {"times": [_times(cell) for cell in results["cells"]]}


def _times(cell: dict[str, Any]) -> dict[str, str]:
    seconds, accepted = cell["seconds"], cell["acceptance"]
    row = {
        "cell": f"{cell['models']}: {cell['cell']}",
        "batch": str(cell["batch"]),
        **{name: f"{median(seconds[name]):.2f}" if name in seconds else "" for name in COLUMNS},
    }
    for name, (slower, faster) in RATIOS.items():
        both = slower in seconds and faster in seconds
        row[name] = str(ratio(seconds[slower], seconds[faster])) if both else ""
    return row | {"accepted": "" if accepted is None else f"{accepted:.2f}"}


class Bench:
    """A pair's models and the engines that hold them."""

    def __init__(self, pair: Pair, device: torch.device, dtype: torch.dtype) -> None:
        self.pair, self.device = pair, device
        models = pair.load(device, dtype)
        self.ours = Ours(models, pair.max_tokens)
        limit = {"max_new_tokens": pair.max_tokens, "force_unique_generate_call": True}
        self.pipeline = Pipeline(models, **(limit if pair.max_tokens else {}))
        self.ctranslate2 = CTranslate2(models, pair.max_tokens)

    def measure(self, cell: Cell, repeats: int) -> dict[str, Any]:
        """Return the cell's figures for the results."""
        actions = self._actions(cell)
        for warm_up in actions.values():
            warm_up()
        self.ours.assisted_stats = DecodeStats()
        seconds = time_interleaved(actions, repeats, self.device)
        what = {"models": self.pair.name, "cell": cell.name, "batch": cell.batch}
        return {**what, "seconds": seconds, "acceptance": self.ours.assisted_stats.acceptance}

    def _actions(self, cell: Cell) -> dict[str, Action]:
        batch = cell.batch
        if cell.window:
            count = 4 * batch
            windows = cut(recording(count * cell.window), cell.window)[:count]
            return {
                OURS: partial(self.ours.decode, windows, batch, assisted=False),
                ASSISTED: partial(self.ours.decode, windows, batch, assisted=True),
            }
        samples = recording(cell.seconds)
        actions: dict[str, Action] = {
            PIPELINE: partial(self.pipeline.transcribe, samples, batch),
            CT2: partial(self.ctranslate2.decode, self.ours.windows(samples), batch),
            OURS: partial(self.ours.transcribe, samples, batch, assisted=False),
            ASSISTED: partial(self.ours.transcribe, samples, batch, assisted=True),
        }
        return {name: actions[name] for name in cell.columns}
