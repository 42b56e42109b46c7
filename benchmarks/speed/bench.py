"""Loads a pair of models into every engine and measures its cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.speed.cells import (
    ASSISTED,
    CT2,
    OURS,
    OWN,
    PIPELINE,
    PIPELINE_ASSISTED,
    Cell,
    Pair,
)
from benchmarks.speed.engines import CTranslate2, Ours, TransformersPipeline
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import (
    MIN_REPEATS,
    Action,
    peak_memory,
    repeats_within,
    time_interleaved,
)
from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import DecodeStats

# A first repeat that took longer, in seconds, counts; a shorter one was for warming up.
WARM_UP = 12.0


class Bench:
    """A pair's models and the engines that hold them."""

    def __init__(self, pair: Pair, device: torch.device, dtype: torch.dtype) -> None:
        self.pair, self.device = pair, device
        self.models = pair.load(device, dtype)
        self.ours = Ours(self.models, pair.max_tokens)
        self.pipeline = TransformersPipeline(self.models, pair.max_tokens)
        self.ctranslate2 = CTranslate2(self.models, pair.max_tokens)

    def measure(self, cell: Cell, budget: float) -> dict[str, Any]:
        """Return the cell's figures as they are kept; `budget` is in seconds for more repeats."""
        actions = self._actions(cell, self.ours)
        self.ours.assisted_stats = DecodeStats()
        seconds = time_interleaved(actions, 1, self.device)
        spent = sum(sum(times) for times in seconds.values())
        if spent < WARM_UP:
            self.ours.assisted_stats = DecodeStats()
            seconds = time_interleaved(actions, repeats_within(budget, spent), self.device)
        else:
            more = time_interleaved(actions, MIN_REPEATS - 1, self.device)
            seconds = {name: seconds[name] + more[name] for name in actions}
        stats = self.ours.assisted_stats
        steps = {str(drafts): count for drafts, count in sorted(stats.steps_by_drafts.items())}
        return {
            "models": self.pair.name,
            "cell": cell.name,
            "batch": cell.batch,
            "audio": cell.seconds or sum(map(len, self._windows(cell))) / SAMPLE_RATE,
            "seconds": seconds,
            "acceptance": stats.acceptance,
            "tokens per step": stats.tokens_per_step,
            "steps by drafts": steps,
        }

    def costs(self) -> dict[str, float]:
        """Return the milliseconds of one step of the main model and of the assistant at batch 1."""
        main, draft = self.ours.step_seconds()
        return {"main step ms": 1000 * main, "draft step ms": 1000 * draft}

    def memory(self, cell: Cell) -> dict[str, float]:
        """Return the MiB of each column at its peak, above the loaded models.

        CTranslate2 is left out: it has a process of its own. Ours is an engine without caches yet.
        """
        peaks = {}
        for name in cell.columns:
            if name == CT2:
                continue
            ours = self.ours
            if name in OWN:
                alone = dataclasses.replace(self.models, assistant=None)
                models = self.models if name == ASSISTED else alone
                ours = Ours(models, self.pair.max_tokens)
            peaks[name] = peak_memory(self._actions(cell, ours)[name], self.device)
        return peaks

    def _windows(self, cell: Cell) -> list[Samples]:
        if cell.seconds:
            return self.ours.windows(recording(cell.seconds))
        count = 4 * cell.batch
        return cut(recording(count * cell.window), cell.window)[:count]

    def _actions(self, cell: Cell, ours: Ours) -> dict[str, Action]:
        """Return the action of each column of a cell."""
        windows, batch = self._windows(cell), cell.batch
        own: Callable[..., object] = partial(ours.decode, windows, batch)
        actions: dict[str, Action] = {CT2: partial(self.ctranslate2.decode, windows, batch)}
        if cell.seconds:
            samples = recording(cell.seconds)
            own = partial(ours.transcribe, samples, batch)
            pipeline = partial(self.pipeline.transcribe, samples, batch)
            actions[PIPELINE] = partial(pipeline, assisted=False)
            actions[PIPELINE_ASSISTED] = partial(pipeline, assisted=True)
        actions |= {OURS: partial(own, assisted=False), ASSISTED: partial(own, assisted=True)}
        return {name: actions[name] for name in cell.columns}
