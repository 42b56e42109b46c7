"""What the engine's choices on a CPU rest on: four ratios of times.

How much longer does attention to the audio take for several positions than for one, as drafts have
them? How much longer does an encoder take for many windows together than for one after the other?
How much longer does decoding take beside another thread that has computed before and now rests,
and how much beside a busy process, with threads that make room for it and with as many as before?
Each compares parts of this project with themselves; `kernels` compares them with torch's.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch

from benchmarks.pages import keep
from benchmarks.report import settings, table
from benchmarks.speed.engines import decode
from benchmarks.speed.kernels import CPU, FRAMES, HEADS, OPERAND_BYTES, operand_count, transposed
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import Action, ratio, time_interleaved, time_once
from tests.support.model_pairs import BASE, demo_pair, random_pair
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.model.cpu_kernels import attention
from whosaid.asr.model.encoder import AudioEncoder, LogMel

POSITIONS = (2, 4, 7, 11)
ROWS = {"demo": (1, 24), "base": (1, 24), "large-v3": (1, 4)}
WINDOWS = 16
SECONDS = 60  # of audio that is decoded
PAIRS: dict[str, Callable[[torch.device, torch.dtype], WhisperModels]] = {
    "demo": demo_pair,
    "base": partial(random_pair, BASE, 0.05),
}
MAX_TOKENS = 60  # random weights never end


def positions(models: Iterable[str], repeats: int) -> Iterator[list[str]]:
    """Attention to 30 s of audio: several positions over one, for each model and count of rows."""
    for name in models:
        heads, size = HEADS[name]
        for rows in ROWS[name]:
            shape = (rows, heads, FRAMES, size)
            pairs = [
                (transposed(torch.randn(shape)), transposed(torch.randn(shape)))
                for _ in range(operand_count(rows * heads * FRAMES * size))
            ]
            actions: dict[str, Action] = {}
            for count in (1, *POSITIONS):
                query = torch.randn(rows, heads, count, size)
                actions[str(count)] = partial(_attend, query, pairs)
            time_interleaved(actions, 1, CPU)
            seconds = time_interleaved(actions, repeats, CPU)
            cells = [str(ratio(seconds[str(count)], seconds["1"])) for count in POSITIONS]
            yield [f"{name}, {rows} x {heads} heads of {size}", *cells]


def encoders(models: Iterable[str], repeats: int) -> Iterator[list[str]]:
    """Encoding windows together over encoding them one by one, for each model."""
    windows = cut(recording(WINDOWS * 30))[:WINDOWS]
    for name in models:
        loaded = PAIRS[name](CPU, torch.float32)
        encode = AudioEncoder(loaded.model).forward
        features = LogMel(loaded.feature_extractor, CPU)(windows)
        actions: dict[str, Action] = {
            "together": partial(encode, features),
            "one by one": partial(_encode_one_by_one, encode, features),
        }
        time_interleaved(actions, 1, CPU)
        seconds = time_interleaved(actions, repeats, CPU)
        yield [name, str(ratio(seconds["together"], seconds["one by one"]))]


def threads(models: Iterable[str], repeats: int) -> Iterator[list[str]]:
    """Decoding at batch 1 beside a thread that has decoded, too, and rests, over alone."""
    windows, options = cut(recording(SECONDS)), DecodeOptions(batch_size=1)

    def start(loaded: WhisperModels) -> Action:
        """Decoding with an engine of the thread that calls this."""
        action = partial(decode, DecodeEngine(loaded), windows, options, MAX_TOKENS)
        action()
        return action

    for name in models:
        loaded = PAIRS[name](CPU, torch.float32)
        action = start(loaded)
        alone, beside = [], []
        for _ in range(repeats):
            alone.append(time_once(action, CPU))
            with ThreadPoolExecutor(1) as other:
                other.submit(start, loaded).result()
                beside.append(time_once(action, CPU))
        yield [name, str(ratio(beside, alone))]


def neighbours(models: Iterable[str], repeats: int) -> Iterator[list[str]]:
    """Decoding at batch 24 beside a busy process, over alone, for each model.

    With threads that follow what the neighbour leaves, with all of them, and with one alone.
    """
    windows, options, most = cut(recording(SECONDS)), DecodeOptions(), torch.get_num_threads()
    for name in models:
        engine = DecodeEngine(PAIRS[name](CPU, torch.float32))
        action = partial(decode, engine, windows, options, MAX_TOKENS)
        action()
        seconds: dict[str, list[float]] = {"alone": [], "following": [], "all": [], "one": []}
        for _ in range(repeats):
            engine.threads.enabled = True
            seconds["alone"].append(time_once(action, CPU))
            with _busy_process():
                seconds["following"].append(time_once(action, CPU))
                engine.threads.enabled = False
                for kind, count in (("all", most), ("one", 1)):
                    torch.set_num_threads(count)
                    seconds[kind].append(time_once(action, CPU))
            torch.set_num_threads(most)
        kinds = ("following", "all", "one")
        yield [name, *(str(ratio(seconds[kind], seconds["alone"])) for kind in kinds)]


@contextmanager
def _busy_process() -> Iterator[None]:
    """A process that keeps one processor busy."""
    script = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        try:
            yield
        finally:
            busy.kill()


def _attend(query: torch.Tensor, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for keys, values in pairs:
        attention(query, keys, values)


def _encode_one_by_one(encoder: Callable[[torch.Tensor], object], features: torch.Tensor) -> None:
    for place in range(len(features)):
        encoder(features[place : place + 1])


@torch.inference_mode()
def main(options: Namespace) -> None:
    """Measure, print, and keep the figures and the page."""
    repeats = 1 if options.quick else options.repeats
    attended = list(positions(["demo"] if options.quick else HEADS, repeats))
    models = ["demo"] if options.quick else list(PAIRS)
    encoded = list(encoders(models, -(-repeats // 3)))
    threaded = list(threads(models, repeats))
    disturbed = list(neighbours(models, repeats))
    facts = {
        **settings(("torch", "transformers", "numpy")),
        "repeats": repeats,
        "bytes of operands": int(OPERAND_BYTES),
        "windows encoded together": WINDOWS,
        "seconds decoded": SECONDS,
    }
    results = {
        "settings": facts,
        "positions": attended,
        "encoders": encoded,
        "threads": threaded,
        "neighbours": disturbed,
    }
    by_threads = ("models", "follow what it leaves", "all processors", "one")
    figures = {
        "positions": table(("rows x heads", *map(str, POSITIONS)), attended),
        "encoders": table(("models", "ratio"), encoded),
        "threads": table(("models", "ratio"), threaded),
        "neighbours": table(by_threads, disturbed),
    }
    keep("cpu", results, figures, options)
