"""Counts a CUDA device's launches for a step, and for a window that takes over a row.

    .venv/bin/python -m tests.helpers.launches

prints the figures of docs/gpu.md. The engine runs with emulated graphs over a model of Whisper
large-v3's layers and alignment heads, but narrow. Operations are aten's, as they arrive at the
device: one is about one kernel; views and empty tensors are none, and a replayed graph is one."""

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks import report
from tests.helpers.cuda_emulator import (
    EmulatedGraph,
    Operation,
    emulated_cuda,
    map_tensors,
    named_cpu,
    on_cuda,
)
from tests.helpers.oracle import models_of, noise_windows
from tests.support.tiny_whispers import Published
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.batch import Batch
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result_reader import ResultReader
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder, alignment_heads
from whosaid.asr.model.encoder import Encoder, LogMel

LARGE_V3 = Published(
    text_entries=300, languages=4, mel_bins=128, seconds=1, encoder_layers=32, decoder_layers=32
)
# openai/whisper's `_ALIGNMENT_HEADS`; all heads are the first of their layer here.
ALIGNED_LAYERS = (7, 10, 12, 13, 16, 17, 19, 21, 24, 25)
# What each part of the work begins with, innermost first.
PARTS = {
    "spectrogram": (LogMel, "__call__"),
    "encoder": (Encoder, "encode"),
    "prefill": (CudaGraphRunner, "prefill"),
    "result": (ResultReader, "read"),
    "moving rows": (DecodeState, "move"),
    "step": (CudaGraphRunner, "launch"),
    "arrival": (Batch, "_collect"),  # the emulator's own copies, which the device makes unasked
}
ROWS, WINDOWS, TOKENS = 4, 8, 16


class LaunchCounter(TorchDispatchMode):
    """Counts operations by the part of the work that they belong to, outside graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.parts = ["other"]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, operation = kwargs or {}, Operation.of(func)
        if operation.composite:
            with self:
                result = func.decompose(
                    *map_tensors(named_cpu, args), **map_tensors(named_cpu, kwargs)
                )
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        is_empty = operation.name.startswith("empty") or not getattr(result, "numel", lambda: 1)()
        if not (operation.is_view or is_empty):
            self.counts[self.parts[-1]] += 1
        return result

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Attribute what runs in each part; count each replay once."""
        for part, (owner, name) in PARTS.items():
            patch.setattr(owner, name, self._attributed(part, getattr(owner, name)))
        replay = EmulatedGraph.replay

        def once(graph: EmulatedGraph) -> None:
            with _disable_current_modes():
                replay(graph)
            self.counts[self.parts[-1]] += 1

        patch.setattr(EmulatedGraph, "replay", once)

    def _attributed(self, part: str, function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.parts.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.parts.pop()

        return run


def count_launches(graphs: bool = True) -> dict[str, float]:
    """Return the operations a window of each part, and those of a step; rows end one by one. The
    count begins and ends with a full batch, so as many windows leave as enter."""
    with pytest.MonkeyPatch.context() as patch, emulated_cuda(patch):
        counter = LaunchCounter()
        counter.watch(patch)
        engine = DecodeEngine(on_cuda(_models()), graphs)
        options = DecodeOptions(batch_size=ROWS)
        _decode(engine, options, counter)
        steps, counts = _decode(engine, options, counter)
    del counts["arrival"]
    step = counts.pop("step") / steps
    return {**{part: n / (WINDOWS - ROWS) for part, n in counts.items()}, "step": step}


def count_moves(rows: int) -> int:
    """Return the operations that move so many rows, which have ended with none waiting."""
    model = _models().model  # not in inference mode, whose tensors it would keep for others
    with torch.inference_mode():
        state = DecodeState.allocate(Decoder(model, alignment_heads(model)), None, 2 * rows)
        with LaunchCounter() as counter:
            state.move(range(rows, 2 * rows), range(rows))
    return sum(counter.counts.values())


def _decode(
    engine: DecodeEngine, options: DecodeOptions, counter: LaunchCounter
) -> tuple[int, Counter[str]]:
    """Decode windows of different lengths; return the steps counted, and the operations."""
    prompt = engine.models.special_tokens.prompt("en", "transcribe", True)
    lengths = [TOKENS // 2 + 3 * n if n < ROWS else TOKENS for n in range(WINDOWS)]
    samples = noise_windows(WINDOWS)
    asked = [Request(n, samples[n], prompt, length) for n, length in enumerate(lengths)]
    with engine.session(options) as session:
        session.add(asked)
        session.step()  # the first windows enter
        before = engine.batch(1)._steps
        counter.counts.clear()
        with counter:
            while engine.scheduler.waiting:
                session.step()
        counts = counter.counts.copy()
        steps = engine.batch(1)._steps - before
        while not session.done:
            session.step()
    return steps, counts


@functools.cache
def _models() -> WhisperModels:
    """Float16 models, as on CUDA; no text ends before its limit."""
    models = models_of(LARGE_V3, None, torch.float16)
    models.model.generation_config.alignment_heads = [[layer, 0] for layer in ALIGNED_LAYERS]
    return models


def table() -> str:
    """Return launches without and with graphs, as Markdown."""
    without, with_ = count_launches(graphs=False), count_launches()
    parts = [part for part in [*PARTS, "other"] if part not in ("step", "arrival")]
    rows = [[part, f"{without.get(part, 0):.0f}", f"{with_.get(part, 0):.0f}"] for part in parts]
    for columns in (without, with_):
        columns["window"] = sum(columns.values()) - columns["step"]
    for name in ("window", "step"):
        rows.append([f"**a {name}**", f"{without[name]:.0f}", f"{with_[name]:.0f}"])
    return report.table(["launches", "without graphs", "with graphs"], rows)


if __name__ == "__main__":
    print(table())
