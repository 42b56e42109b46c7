"""Runs a benchmark: measures, keeps the results as JSON, and makes the page of them.

A benchmark is a module with `measure(options, path)`, which writes results to `path` after every
step, and `figures(results)`, which makes tables of them.
"""

import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

from transformers.utils import logging

from benchmarks.apart import EngineFailed
from benchmarks.pages import publish
from benchmarks.report import RESULTS, read
from whosaid.errors import EndpointError
from whosaid.models import whisper_base
from whosaid.runtime.environment import cache_folder


def run(module: str, options: Namespace) -> int:
    """Measure, unless only earlier results are rendered, and write the page.

    Return the exit status: 1 with one line if a requirement is missing.
    """
    name, benchmark = options.benchmark, import_module(module)
    quick = "-quick" if getattr(options, "quick", False) else ""
    path: Path = getattr(options, "output", None) or RESULTS / f"{name}{quick}.json"
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        if not options.render:
            benchmark.measure(options, path)
        results = read(path)
    except (ValueError, OSError, EndpointError, EngineFailed) as error:
        print(f"scripts/bench {name}: {error}", file=sys.stderr)
        return 1
    publish(name, path, results["settings"], benchmark.figures(results), options.publish)
    return 0


def whisper_of(options: Namespace) -> Path:
    """Return the folder of --model, or of the Whisper that scripts/demo downloaded.

    Raises ValueError if there is none.
    """
    model = options.model or whisper_base.cached(cache_folder())
    if model is None:
        raise ValueError("--model is needed: scripts/demo has not downloaded Whisper base yet")
    return Path(model)
