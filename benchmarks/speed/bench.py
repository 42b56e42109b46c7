"""Times decoding, compared with transformers' pipeline and CTranslate2: `scripts/bench speed`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.report import Results, Tables, settings
from benchmarks.speed.cells import (
    ASSISTED,
    COLUMNS,
    CT2,
    OURS,
    PIPELINE,
    PIPELINE_ASSISTED,
    Cell,
    Pair,
    pairs,
    quick_pairs,
)
from benchmarks.speed.engines import CTranslate2, Ours, TransformersPipeline
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import MIN_REPEATS, Action, ratio, repeats_within, time_interleaved
from tests.support.speech import Samples
from whosaid.transcript import DecodeStats

# Seconds; a first repeat that took longer counts, a shorter one was a warm-up.
WARM_UP = 12.0
BUDGET = 5.0  # seconds of a cell for more than the fewest repeats
RATIOS = {
    "pipeline / ours": (PIPELINE, OURS),
    "CTranslate2 / ours": (CT2, OURS),
    "ours / ours assisted": (OURS, ASSISTED),
}


def measure(options: Namespace, path: Path) -> None:
    """Measure the cells whose names contain the options' texts."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    facts = settings() | {"dtype": str(dtype)}
    results = Results(path, facts, {"cells": []}, options.fresh or options.quick)
    for pair in quick_pairs() if options.quick else pairs():
        cells = [cell for cell in pair.cells if options.cells in cell.name]
        if not cells or options.models not in pair.name:
            continue
        bench = Bench(pair, device, dtype)
        for cell in cells:
            row = bench.measure(cell, 0.0 if options.quick else BUDGET)
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
        self.pipeline = TransformersPipeline(models, pair.max_tokens)
        self.ctranslate2 = CTranslate2(models, pair.max_tokens)

    def measure(self, cell: Cell, budget: float) -> dict[str, Any]:
        """Return the cell's figures for the results; `budget` is seconds for more repeats."""
        actions = self._actions(cell)
        self.ours.assisted_stats = DecodeStats()
        seconds = time_interleaved(actions, 1, self.device)
        spent = sum(sum(times) for times in seconds.values())
        if spent < WARM_UP:
            self.ours.assisted_stats = DecodeStats()
            seconds = time_interleaved(actions, repeats_within(budget, spent), self.device)
        else:
            more = time_interleaved(actions, MIN_REPEATS - 1, self.device)
            seconds = {name: seconds[name] + more[name] for name in actions}
        return {
            "models": self.pair.name,
            "cell": cell.name,
            "batch": cell.batch,
            "seconds": seconds,
            "acceptance": self.ours.assisted_stats.acceptance,
        }

    def _windows(self, cell: Cell) -> list[Samples]:
        if cell.seconds:
            return self.ours.windows(recording(cell.seconds))
        count = 4 * cell.batch
        return cut(recording(count * cell.window), cell.window)[:count]

    def _actions(self, cell: Cell) -> dict[str, Action]:
        windows, batch = self._windows(cell), cell.batch
        own: Callable[..., object] = partial(self.ours.decode, windows, batch)
        actions: dict[str, Action] = {CT2: partial(self.ctranslate2.decode, windows, batch)}
        if cell.seconds:
            samples = recording(cell.seconds)
            own = partial(self.ours.transcribe, samples, batch)
            pipeline = partial(self.pipeline.transcribe, samples, batch)
            actions[PIPELINE] = partial(pipeline, assisted=False)
            actions[PIPELINE_ASSISTED] = partial(pipeline, assisted=True)
        actions |= {OURS: partial(own, assisted=False), ASSISTED: partial(own, assisted=True)}
        return {name: actions[name] for name in cell.columns}
