"""Times decoding at large-v3's size with random weights, without a download.

    PYTHONPATH=. python3 -m benchmarks.speed.large

prints a table like that of docs/gpu.md: full batches of windows of 27 s, 110 tokens each, without
an assistant and with one of two layers that is nearly always right. PyAV, silero-vad and pyannote
are not needed. Random weights write nonsense, so only times mean something.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks.report import table
from benchmarks.timing import time_interleaved
from tests.support.decoding import decode
from tests.support.model_pairs import LARGE, Size, random_pair
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.runtime.device import prepare_device
from whosaid.timebase import SAMPLE_RATE

HEADER = ("assistant", "batch", "ms a step", "RTFx", "graphs", "load, s")
NOISE = 0.03  # of the assistant's weights
SECONDS, TOKENS = 27, 110  # of a window
ROWS, FULL_BATCHES, REPEATS = (1, 8, 24, 96), 3, 3


def measure(
    models: WhisperModels, assisted: bool, rows: Sequence[int], tokens: int
) -> Iterator[list[str]]:
    """Yield a line for each batch size: milliseconds a step, and RTFx."""
    started = time.perf_counter()
    engine = DecodeEngine(models if assisted else replace(models, assistant=None))
    loaded = f"{time.perf_counter() - started:.1f}"
    runner = engine.runner
    graphs = str(runner.graph_count) if isinstance(runner, CudaGraphRunner) else "none"
    noise = np.random.default_rng(0).normal(0, 0.1, SECONDS * SAMPLE_RATE).astype(np.float32)
    prompt = models.special_tokens.prompt("en", "transcribe", timestamps=True)
    for count in rows:
        options = DecodeOptions(batch_size=count, assisted=assisted)
        windows = [Request(key, noise, prompt, tokens) for key in range(FULL_BATCHES * count)]
        run = partial(decode, engine, windows, options)
        run()
        seconds = min(time_interleaved({"": run}, REPEATS, models.device)[""])
        _, stats = run()
        step = 1000 * stats.decode_seconds / stats.steps
        figures = [f"{step:.2f}", f"{SECONDS * len(windows) / seconds:.0f}"]
        yield ["with" if assisted else "without", str(count), *figures, graphs, loaded]


def page(device: torch.device, size: Size, rows: Sequence[int], tokens: int = TOKENS) -> str:
    """Return the table of models of `size` on `device`, in Markdown."""
    prepare_device(device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    models = random_pair(size, NOISE, device, dtype)
    lines = [line for assisted in (False, True) for line in measure(models, assisted, rows, tokens)]
    return table(HEADER, lines)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("benchmarks.speed.large: needs a CUDA device")
    print(page(torch.device("cuda"), LARGE, ROWS))
