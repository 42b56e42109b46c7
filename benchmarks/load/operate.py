"""Measures the figures of docs/operate.md: `scripts/bench operate [--model FOLDER]`.

A server starts several times; the last one's memory and throughput are measured, without speakers
and with them, for one client and for as many as fill all rows. With `--minutes`, the memory of a
server under mixed requests is sampled instead. Prices of GPUs are computed.
"""

import asyncio
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.counts import Interval, bootstrap
from benchmarks.gpu_check.memory import LARGE_V3, MB, published_footprint
from benchmarks.load.clients import Load, body_of, closed
from benchmarks.load.servers import DEMO, OURS, started
from benchmarks.report import Results, Tables, settings
from benchmarks.speed.recordings import recording
from config import DEMO_MODELS, REPOSITORY, SPEAKERS_MODEL
from tests.support.servers import Server, loopback
from whosaid.timebase import SAMPLE_RATE

PACKAGES = ("torch", "transformers", "pyannote.audio")
LONG = 60  # seconds of audio: two windows, so that a CROWD of clients fills the 32 rows of a CPU
CLIENTS = _, CROWD = (1, 16)
KINDS = {"text": False, "speakers": True}
MIXED = (8, 30, 120)  # seconds of audio of the clients under which memory is sampled
WARM_UP = 5  # minutes after which memory should not grow
IDLE_SECONDS = 10
LOADED = re.compile(r'^asr_load_seconds\{part="(\w+)"\} (\S+)$', re.MULTILINE)
IDLE = re.compile(r"^asr_rows 0\.0$", re.MULTILINE)

# A point of a curve: seconds since its beginning, and MB.
Sample = tuple[float, float]
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Card:
    """A GPU on Inference Endpoints: dollars an hour, TB/s, TFLOPS of dense float16, and rows."""

    dollars: float
    bandwidth: float
    compute: float
    rows: int


# Prices of docs/operate.md, makers' data sheets, and rows of docs/gpu.md.
CORES, CORES_DOLLARS = "two vCPUs (intel-spr x2)", 0.067
H200 = Card(5.0, 4.8, 989, 96)
CARDS = {
    "T4": Card(0.5, 0.32, 65, 12),
    "L4": Card(0.8, 0.3, 121, 24),
    "A10G": Card(1.0, 0.6, 70, 24),
    "L40S": Card(1.8, 0.864, 362, 48),
    "A100 80 GB": Card(2.5, 2.04, 312, 96),
    "H100 (gcp)": Card(10.0, 3.35, 989, 96),
}
H200_SPEED = 1256.0  # of docs/gpu.md at 96 rows
# A window of docs/gpu.md, and seconds fitted to the H200's figures without an assistant: of a step
# besides reading weights and caches, and of the encoder.
WINDOW_SECONDS, STEPS = 27.0, 110
STEP_SECONDS, ENCODER_SECONDS = 0.00255, 0.0106
DECODER_BYTES = 1.6e9


def measure(options: Namespace, path: Path) -> None:
    """Measure a set of models, and write `path`.

    Raises OSError if the server does not start or refuses a request.
    """
    name, environment = _models(options)
    facts = {**settings(PACKAGES), "seconds of a recording": LONG}
    results = Results(path, facts, {"served": [], "growth": []}, options.fresh or options.quick)
    if options.minutes:
        part, row = "growth", _growth(environment, options.minutes)
    else:
        starts, seconds = (1, 2.0) if options.quick else (3, 60.0)
        part, row = "served", _served(environment, starts, seconds)
    results.put(part, {"models": name, **row}, "models")


def _models(options: Namespace) -> tuple[str, dict[str, str]]:
    """Return the name of the models and the server's environment."""
    if options.model is None:
        return "demo models", {**DEMO, "DIARIZATION_MODEL": str(DEMO_MODELS / "diarization")}
    pipeline = options.pipeline or REPOSITORY / SPEAKERS_MODEL
    models = {"ASR_MODEL": options.model, "DIARIZATION_MODEL": pipeline}
    name = f"{options.model.name}, {pipeline.name}"
    return name, {variable: str(folder.resolve()) for variable, folder in models.items()}


def _served(environment: dict[str, str], starts: int, seconds: float) -> dict[str, Any]:
    """Return the seconds of each start by part, and memory and throughput of the last server, under
    `seconds` of each load.
    """
    phases: list[dict[str, float]] = []
    environment = {**environment, "IDLE_UNLOAD_SECONDS": str(IDLE_SECONDS)}
    while True:
        began = time.perf_counter()
        with started(OURS, environment) as server:
            ready = time.perf_counter() - began
            phases.append({"ready": ready, **load_seconds(_metrics(server))})
            if len(phases) == starts:
                return {"starts": phases, **_loaded(server, seconds)}


def _loaded(server: Server, seconds: float) -> dict[str, Any]:
    """Return memory, audio seconds a second, and the seconds of an answer after idle ones."""
    process, samples = psutil.Process(server.process_id), recording(LONG)
    held, speeds = {"at rest": memory(process)}, {}
    for clients, (kind, speakers) in product(CLIENTS, KINDS.items()):
        body = body_of(samples, language="en", diarize=speakers)
        with watched(process) as curve:
            load = answered(server.url, [body], clients, seconds)
        held[f"{kind}, {clients}: peak"] = max(megabytes for _, megabytes in curve)
        speeds[f"{kind}, {clients}"] = load.rate * LONG
    held["after them"] = memory(process)
    while not IDLE.search(_metrics(server)):
        time.sleep(1)
    time.sleep(IDLE_SECONDS)  # the models are dropped after the gauge falls
    held["unloaded"] = memory(process)
    again = answered(server.url, [body_of(samples[:SAMPLE_RATE])], 1, 0.0)
    return {"memory": held, "speeds": speeds, "again": again.wall}


def _growth(environment: dict[str, str], minutes: int) -> dict[str, Any]:
    """Return the least memory of each minute in which six clients send requests."""
    bodies = [
        body_of(recording(seconds), language="en", diarize=speakers)
        for seconds, speakers in product(MIXED, KINDS.values())
    ]
    with started(OURS, environment) as server, watched(psutil.Process(server.process_id)) as curve:
        load = answered(server.url, bodies, 1, 60.0 * minutes)
    return {"requests": len(load.seconds), "minima": minima(curve, minutes)}


def answered(url: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Let `clients` send each body for so many seconds, at least once; raises OSError if a request
    is refused.
    """

    async def run() -> list[Load]:
        return await asyncio.gather(*(closed(url, body, clients, seconds, 1) for body in bodies))

    loads = asyncio.run(run())
    if refused := [load.statuses for load in loads if load.statuses]:
        raise OSError(f"the server refuses measured requests: {refused}")
    return Load(
        [each for load in loads for each in load.seconds], wall=max(load.wall for load in loads)
    )


def _metrics(server: Server) -> str:
    return loopback().get(f"{server.url}/metrics").raise_for_status().text


def load_seconds(metrics: str) -> dict[str, float]:
    """Return the seconds of each part of the latest load."""
    return {part: float(seconds) for part, seconds in LOADED.findall(metrics)}


def memory(process: psutil.Process) -> float:
    """Return the MB of a process and its children, shared pages once (PSS). The resident memory
    counts of those whose pages only root may read.
    """
    total = 0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            try:
                total += each.memory_full_info().pss
            except psutil.AccessDenied:
                total += each.memory_info().rss
    return total / MB


@contextmanager
def watched(process: psutil.Process) -> Iterator[list[Sample]]:
    """Sample the memory about once a second while the block runs."""
    curve: list[Sample] = []
    ended, began = Event(), time.perf_counter()

    def sample() -> None:
        while True:
            curve.append((time.perf_counter() - began, memory(process)))
            if ended.wait(1.0):
                return

    thread = Thread(target=sample)
    thread.start()
    try:
        yield curve
    finally:
        ended.set()
        thread.join()


def minima(curve: Sequence[Sample], minutes: int) -> list[float]:
    """Return the least MB of each of the first `minutes`."""
    return [
        min(megabytes for second, megabytes in curve if second // 60 == minute)
        for minute in range(minutes)
    ]


# The page, from results alone


def slope(values: Sequence[float]) -> Interval:
    """Return the least-squares slope of evenly spaced values, for one step."""
    steps, heights = np.arange(len(values)), np.asarray(values)

    def fitted(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        times = steps[drawn] - steps[drawn].mean(axis=1, keepdims=True)
        return np.asarray((times * heights[drawn]).sum(axis=1) / (times**2).sum(axis=1).clip(1))

    return bootstrap(len(values), fitted)


def computed_speed(card: Card) -> float:
    """Return the seconds of audio that a GPU should decode in a second with large-v3.

    A step reads the decoder's weights and the rows' caches; encoders differ by their TFLOPS.
    """
    read = DECODER_BYTES + card.rows * published_footprint(LARGE_V3, None).per_row
    step = STEP_SECONDS + read / (card.bandwidth * 1e12)
    encoder = ENCODER_SECONDS * H200.compute / card.compute
    return WINDOW_SECONDS * card.rows / (STEPS * step + card.rows * encoder)


def figures(results: Cell) -> Tables:
    """Return starts, memory, its growth, throughput and prices."""
    starts, held, speeds = list[dict[str, str]](), list[dict[str, str]](), list[dict[str, str]]()
    for row in results["served"]:
        name = {"models": row["models"]}
        phases = {part: [start[part] for start in row["starts"]] for part in row["starts"][0]}
        starts.append(name | {part: f"{median(took):.1f} s" for part, took in phases.items()})
        held.append(name | {when: f"{mb / 1000:.2f} GB" for when, mb in row["memory"].items()})
        again = {"first answer when unloaded": f"{row['again']:.1f} s"}
        speeds.append(name | {who: f"{speed:.1f}" for who, speed in row["speeds"].items()} | again)
    growth, prices = [_growing(row) for row in results["growth"]], _prices(results["served"])
    return {"starts": starts, "memory": held, "growth": growth, "speeds": speeds, "prices": prices}


def _growing(row: Cell) -> dict[str, str]:
    settled = row["minima"][WARM_UP:]
    hour = slope(settled)
    interval = f"{60 * hour.value:+.0f} ({60 * hour.low:+.0f} to {60 * hour.high:+.0f})"
    return {
        "models": row["models"],
        "requests": str(row["requests"]),
        "MB, minute by minute": " ".join(f"{megabytes:.0f}" for megabytes in settled),
        "MB an hour": interval,
    }


def _prices(served: Sequence[Cell]) -> list[dict[str, str]]:
    """Return the prices of an hour of audio with all rows in use, measured, then computed."""
    prices = [
        (CORES, f"{row['models']}, {kind}", row["speeds"][f"{kind}, {CROWD}"], CORES_DOLLARS)
        for row, kind in product(served, KINDS)
    ]
    prices.append(("H200", "large-v3, decoding, measured", H200_SPEED, H200.dollars))
    for name, card in CARDS.items():
        prices.append((name, "large-v3, decoding, computed", computed_speed(card), card.dollars))
    return [
        {
            "machine": machine,
            "$ an hour": f"{dollars:g}",
            "work": work,
            "audio a second": f"{speed:,.1f} s",
            "$ an hour of audio": f"{dollars / speed:.4f}",
        }
        for machine, work, speed, dollars in prices
    ]
