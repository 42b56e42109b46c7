"""Times decoding plain, with an assistant and with Medusa heads.

On the demo models heads and assistant are those
that ship, and Medusa-Block's layer and heads are random. On the deep pair drafts are right as often
as is set, with heads of either type.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import fill, terminal_text
from benchmarks.report import RESULTS, listed, put, read_kept, save, settings
from benchmarks.speed.cells import NOISE
from benchmarks.speed.engines import decode
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import Action, peak_memory, repeats_within, time_interleaved
from config import DEMO_MODELS
from extras.medusa.benchmark.figures import figures
from extras.medusa.benchmark.script import set_acceptance
from tests.support.model_pairs import deep_pair, demo_pair
from tests.support.speech import Samples
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels
from whosaid.asr.checkpoint.medusa import MedusaHeads, ResidualBlocks
from whosaid.asr.checkpoint.weights import below
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions
from whosaid.cli.parser import CommandParser, option

PLAIN, ASSISTANT, LINEAR, BLOCK = "plain", "assistant", "Medusa-Linear", "Medusa-Block"
RATES = (0.75, 0.6, 0.45, 0.35)
DEEP_ACCEPTANCE = 0.6  # of the deep pair's assistant, as the heads' mean
SEED, SCALE = 3, 0.02  # of random heads and of a random block
BATCHES, SHORT, LONG = (1, 8, 24), 5, 30  # windows at once; seconds of a window
PAGE = Path(__file__).with_name("README.md")
BUDGET = 20.0  # seconds of a cell


@dataclass(frozen=True)
class Pair:
    """A main model as each column has it; with `rates` its heads draft as is set."""

    name: str
    columns: dict[str, WhisperModels]
    rates: Sequence[float] = ()


def main() -> None:
    """Measure the cells, print the figures, and with `--publish` write them into README.md."""
    parser = CommandParser(
        "python -m extras.medusa.benchmark", "Drafts of Medusa heads beside an assistant's.", ()
    )
    option(
        parser, "--quick", "a short smoke test, whose figures prove nothing", action="store_true"
    )
    option(parser, "--cells", "only cells whose name has this text", default="", metavar="TEXT")
    option(parser, "--fresh", "drop the results of earlier runs", action="store_true")
    option(parser, "--publish", "write the figures into README.md", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = BATCHES[:1] if options.quick else BATCHES
    lengths = (SHORT,) if options.quick else (SHORT, LONG)
    fresh = options.fresh or options.quick
    path = RESULTS / ("medusa-quick.json" if options.quick else "medusa.json")
    results = read_kept(path, settings(), {"cells": []}, fresh)
    started = time.perf_counter()
    known = pairs(device)
    for pair in known:
        chosen = [
            (seconds, batch)
            for seconds in lengths
            for batch in batches
            if options.cells in f"{pair.name}, {seconds} s, batch {batch}"
        ]
        engines = {name: DecodeEngine(models) for name, models in pair.columns.items() if chosen}
        for cell in chosen:
            measured = measure(pair, engines, cell, 0.0 if options.quick else BUDGET)
            put(results["cells"], measured, "models", "window", "batch")
            minutes = (time.perf_counter() - started) / 60
            results["settings"]["minutes"] = round(minutes, 1)
            save(path, results)
            print(f"{minutes:5.1f} min  {pair.name}, {cell[0]} s, batch {cell[1]}", flush=True)
    measured = figures(results, [pair.name for pair in known], PLAIN)
    measured["settings"] = listed(results["settings"])
    print(terminal_text(measured))
    if options.publish and not options.quick:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


def pairs(device: torch.device) -> list[Pair]:
    """Return the demo models, and the deep pair."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    demo = demo_pair(device, dtype)
    alone = dataclasses.replace(demo, assistant=None)
    trained = with_assistant(alone, Checkpoint(str(DEMO_MODELS / "medusa")))
    deep = deep_pair(NOISE[DEEP_ACCEPTANCE], device, dtype)
    deep_alone = dataclasses.replace(deep, assistant=None)
    demo_columns = {
        PLAIN: alone,
        ASSISTANT: demo,
        LINEAR: trained,
        BLOCK: with_random_heads(alone, len(RATES), block=True),
    }
    deep_columns = {
        PLAIN: deep_alone,
        ASSISTANT: deep,
        LINEAR: with_random_heads(deep_alone, len(RATES), block=False),
        BLOCK: with_random_heads(deep_alone, len(RATES), block=True),
    }
    return [Pair("demo models", demo_columns), Pair("deep pair", deep_columns, RATES)]


def with_random_heads(models: WhisperModels, count: int, block: bool) -> WhisperModels:
    """Return the models with heads that nearly copy; Medusa-Block gets a copy of the last layer."""
    generator = torch.Generator(models.device).manual_seed(SEED)
    width = models.model.config.d_model
    weight, bias = (
        SCALE
        * torch.randn(
            count, *shape, generator=generator, device=models.device, dtype=models.model.dtype
        )
        for shape in ((width, width), (width,))
    )
    last = f"model.decoder.layers.{models.model.config.decoder_layers - 1}."
    layer = below(dict(models.model.named_parameters()), last) if block else None
    heads = MedusaHeads("random", (ResidualBlocks(weight, bias),), None, layer)
    return dataclasses.replace(models, medusa=heads)


def measure(
    pair: Pair, engines: Mapping[str, DecodeEngine], cell: tuple[int, int], budget: float
) -> dict[str, Any]:
    """Measure one cell, a window's seconds and a batch: seconds of every column, interleaved;
    tokens a pass; MiB at the peak.
    """
    seconds, batch = cell
    windows = cut(recording(2 * batch * seconds), seconds)[: 2 * batch]
    device = engines[PLAIN].models.device
    if pair.rates:
        for name in (LINEAR, BLOCK):
            set_acceptance(engines[name], windows, pair.rates)
    actions: dict[str, Action] = {
        name: partial(decode_windows, engine, windows, batch, name != PLAIN)
        for name, engine in engines.items()
    }
    peaks = {}
    for name, action in actions.items():
        engines[name].memory.release()
        peaks[name] = peak_memory(action, device)
    gained = {
        name: decode_windows(engine, windows, batch, name != PLAIN)
        for name, engine in engines.items()
    }
    spent = sum(sum(times) for times in time_interleaved(actions, 1, device).values())
    return {
        "models": pair.name,
        "window": seconds,
        "batch": batch,
        "seconds": time_interleaved(actions, repeats_within(budget, spent), device),
        "tokens a pass": gained,
        "MiB": peaks,
    }


def decode_windows(
    engine: DecodeEngine, windows: Sequence[Samples], batch: int, assisted: bool
) -> float:
    """Decode given windows. Returns the tokens that a row gained in a pass that drafted for it."""
    options = DecodeOptions(assisted=assisted, batch_size=batch)
    return decode(engine, windows, options)[1].tokens_per_step


if __name__ == "__main__":
    main()
