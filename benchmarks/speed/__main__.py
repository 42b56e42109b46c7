"""How fast is decoding beside what people use today? `scripts/bench [--quick] [--rows TEXT]
[--cells TEXT]`

Every cell times some columns over the same audio in turns; see `engines`, `pairs` and `recordings`
for what they are. The results are kept in build/bench/decoding.json after every cell;
docs/benchmarks/decoding.md and .svg are drawn from it, `--render` draws them again. The one
decision: cells are chosen by hand, not as a full product. A recording of n windows is not run at
batches above n; four full batches are timed without the pipeline, which cuts as it likes; what the
pipeline and CTranslate2 do with a deep model is timed at one acceptance, on which it does not
depend.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from asr.checkpoint.loading import WhisperModels
from benchmarks.report import RESULTS, read, save, settings
from benchmarks.speed.engines import ChunkedPipeline, CTranslate, Ours
from benchmarks.speed.page import (
    ASSISTED,
    CT2,
    GREEDY,
    PIPELINE,
    PIPELINE_ASSISTED,
    page,
    summary,
    write_page,
)
from benchmarks.speed.recordings import SEED as SPEECH_SEED
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import LEAST_TURNS, Action, in_turns, peak_memory, turns_within
from demo.build.clip import Samples
from testing.model_pairs import BASE, LARGE, deep_pair, demo_pair, random_pair
from testing.model_pairs import SEED as WEIGHTS_SEED
from timebase import SAMPLE_RATE

BUDGET = 5.0  # seconds a cell may take where more turns would fit than it must have
WARM = 12.0  # seconds; a first turn that took longer counts, a shorter one was for warming up
NOISE = {
    1.0: 0.0,
    0.9: 0.43,
    0.8: 0.56,
    0.6: 0.67,
    0.3: 0.84,
}  # acceptance wanted: disturbance of the deep assistant
LARGE_BATCHES = (0.9, 0.8, 0.3)  # acceptances timed at batch 24, too
EVERY = (PIPELINE, PIPELINE_ASSISTED, CT2, GREEDY, ASSISTED)
ENGINES = (CT2, GREEDY, ASSISTED)
OWN = (GREEDY, ASSISTED)


@dataclass(frozen=True)
class Cell:
    """`seconds` of whole audio; or, with `window`, four batches of windows of at most that many
    seconds.
    """

    batch: int
    columns: Sequence[str]
    seconds: int = 0
    window: int = 0

    @property
    def name(self) -> str:
        """As the table shows it."""
        length = f"{self.seconds} s" if self.seconds < 600 else f"{self.seconds // 60} min"
        return length if self.seconds else f"{4 * self.batch} windows of {self.window} s"


@dataclass(frozen=True)
class Row:
    """A pair of models and the cells it is timed in; `memory` is the length of the audio it is
    measured on, if any.
    """

    name: str
    make: Callable[[torch.device, torch.dtype], WhisperModels]
    cells: tuple[Cell, ...]
    most_tokens: int | None = None
    memory: int = 0


def whole(seconds: int, *batches: int, columns: Sequence[str] = EVERY) -> tuple[Cell, ...]:
    """Whole audio at some batch sizes; the pipeline takes an assistant at batch 1 alone."""
    return tuple(
        Cell(
            batch,
            tuple(name for name in columns if batch == 1 or name != PIPELINE_ASSISTED),
            seconds=seconds,
        )
        for batch in batches
    )


def four_batches(window: int, *batches: int, columns: Sequence[str] = ENGINES) -> tuple[Cell, ...]:
    """Fixed windows, four times as many as fit into the batch."""
    return tuple(Cell(batch, columns, window=window) for batch in batches)


def rows(device: torch.device) -> Iterator[Row]:
    """All that is timed on this device."""
    demo = (*whole(8, 1), *whole(60, 1, 4), *whole(600, 1, 8, 24), *four_batches(30, 1, 4, 8, 24))
    yield Row("demo models", demo_pair, demo, memory=600)
    base = (*whole(8, 1), *whole(60, 1, 4), *whole(600, 24), *four_batches(30, 1, 8))
    yield Row("base size", partial(random_pair, BASE, 0.05), base, most_tokens=60, memory=60)
    for acceptance, noise in NOISE.items():
        cells = four_batches(15, 1, 8, *((24,) if acceptance in LARGE_BATCHES else ()), columns=OWN)
        if acceptance == 0.9:
            cells = (*whole(8, 1), *whole(60, 1, 4), *whole(600, 24, columns=OWN), *cells)
        yield Row(
            f"deep pair, {acceptance}",
            partial(deep_pair, noise),
            cells,
            memory=600 * (acceptance == 0.9),
        )
    if device.type == "cuda":
        large = (
            *whole(60, 1),
            *whole(3600, 1, 24, columns=(PIPELINE, *OWN)),
            *four_batches(30, 24, 128, columns=OWN),
        )
        yield Row(
            "large-v3 size", partial(random_pair, LARGE, 0.03), large, most_tokens=150, memory=3600
        )


def quick_rows() -> Iterator[Row]:
    """A minute's smoke test: every model, every column, little audio."""
    small = (*whole(8, 1), *four_batches(8, 2))
    yield Row("demo models", demo_pair, small, memory=8)
    yield Row("deep pair, 0.9", partial(deep_pair, NOISE[0.9]), small)
    yield Row("base size", partial(random_pair, BASE, 0.05), small[:1], most_tokens=20)


class Bench:
    """A row's models and the engines that hold them, made once."""

    def __init__(self, row: Row, device: torch.device, dtype: torch.dtype) -> None:
        self.row, self.device = row, device
        self.models = row.make(device, dtype)
        self.ours = Ours(self.models, row.most_tokens)
        self.pipeline = ChunkedPipeline(self.models, row.most_tokens)
        self.ctranslate = CTranslate(self.models, row.most_tokens)

    def measure(self, cell: Cell, budget: float) -> dict[str, Any]:
        """The cell's figures, as they are kept."""
        actions = self._actions(cell, self.ours)
        tally = self.ours.count_drafts_anew()
        seconds = in_turns(actions, 1, self.device)
        spent = sum(sum(turns) for turns in seconds.values())
        if spent < WARM:
            tally = self.ours.count_drafts_anew()
            seconds = in_turns(actions, turns_within(budget, spent), self.device)
        else:
            more = in_turns(actions, LEAST_TURNS - 1, self.device)
            seconds = {name: seconds[name] + more[name] for name in actions}
        return {
            "row": self.row.name,
            "cell": cell.name,
            "batch": cell.batch,
            "audio": sum(len(window) for window in self._windows(cell)) / SAMPLE_RATE,
            "seconds": seconds,
            "acceptance": tally.acceptance,
            "tokens a round": tally.tokens_a_round,
            "drafts": {str(drafts): count for drafts, count in sorted(tally.lengths.items())},
        }

    def costs(self) -> dict[str, float]:
        """Milliseconds of a step of the main model and of the assistant at batch 1."""
        main, draft = self.ours.step_seconds()
        return {"main step ms": 1000 * main, "draft step ms": 1000 * draft}

    def memory(self, cell: Cell) -> dict[str, float]:
        """MiB at the peak of each column above the loaded models; ours from an engine that holds
        nothing yet.
        """
        peaks = {}
        for name in cell.columns:
            if name == CT2:  # in a process of its own
                continue
            ours = self.ours
            if name in OWN:
                models = (
                    self.models
                    if name == ASSISTED
                    else dataclasses.replace(self.models, assistant=None)
                )
                ours = Ours(models, self.row.most_tokens)
            peaks[name] = peak_memory(self._actions(cell, ours)[name], self.device)
        return peaks

    def _windows(self, cell: Cell) -> list[Samples]:
        if cell.seconds:
            return self.ours.windows(recording(cell.seconds))
        count = 4 * cell.batch
        return cut(recording(count * cell.window), cell.window)[:count]

    def _actions(self, cell: Cell, ours: Ours) -> dict[str, Action]:
        windows, batch = self._windows(cell), cell.batch
        own: Callable[..., object] = partial(ours.decode, windows, batch)
        every: dict[str, Action] = {CT2: partial(self.ctranslate.decode, windows, batch)}
        if cell.seconds:
            samples = recording(cell.seconds)
            own = partial(ours.transcribe, samples, batch)
            every[PIPELINE] = partial(self.pipeline.transcribe, samples, batch, assisted=False)
            every[PIPELINE_ASSISTED] = partial(self.pipeline.transcribe, samples, 1, assisted=True)
        every |= {GREEDY: partial(own, assisted=False), ASSISTED: partial(own, assisted=True)}
        return {name: every[name] for name in cell.columns}


def main() -> None:
    """Measure what is asked for and write the page."""
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = "decoding-quick" if options.quick else "decoding"
    if not options.render:
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        chosen = [
            row
            for row in (quick_rows() if options.quick else rows(device))
            if options.rows in row.name
        ]
        run(
            chosen,
            options.cells,
            device,
            RESULTS / f"{name}.json",
            0.0 if options.quick else BUDGET,
        )
    results = read(RESULTS / f"{name}.json")
    print(page(results))
    if not options.quick:
        write_page(results)


def run(chosen: Sequence[Row], cells: str, device: torch.device, path: Path, budget: float) -> None:
    """Every cell of the rows, each kept in `path` as soon as it is measured."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    facts: dict[str, Any] = {
        **settings(),
        "dtype": str(dtype),
        "seed of the speech": SPEECH_SEED,
        "seed of made weights": WEIGHTS_SEED,
        "least turns": LEAST_TURNS,
        "seconds for more turns": budget,
    }
    results: dict[str, Any] = {"settings": facts, "rows": {}, "cells": []}
    started = time.perf_counter()
    for row in chosen:
        bench = Bench(row, device, dtype)
        facts_of_row: dict[str, Any] = {**bench.costs(), "most tokens": row.most_tokens}
        results["rows"][row.name] = facts_of_row
        for cell in row.cells:
            if cells not in cell.name:
                continue
            results["cells"].append(bench.measure(cell, budget))
            if cell == remembered(row):
                facts_of_row["memory"] = {
                    "cell": cell.name,
                    "batch": cell.batch,
                    "MiB": bench.memory(cell),
                }
            facts["minutes"] = round((time.perf_counter() - started) / 60, 1)
            save(path, results)
            print(f"{facts['minutes']:5.1f} min  {summary(results['cells'][-1])}", flush=True)


def remembered(row: Row) -> Cell | None:
    """The cell in which memory is measured: the largest batch over audio of the length that the row
    names.
    """
    named = [cell for cell in row.cells if row.memory and cell.seconds == row.memory]
    return max(named, key=lambda cell: cell.batch, default=None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute's smoke test, no page")
    parser.add_argument(
        "--rows", default="", metavar="TEXT", help="only rows whose name holds this"
    )
    parser.add_argument(
        "--cells", default="", metavar="TEXT", help="only cells whose name holds this"
    )
    parser.add_argument("--render", action="store_true", help="draw the page from the last results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
