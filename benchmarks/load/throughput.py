"""What batching across requests gains, without HTTP: many clients at once beside one at a time.

The endpoint answers the clips of one client and those of many, each of whom sends the next one when
the last is answered, by turns. Then short requests are answered while a long recording is, each as
soon as the one before it was, and alone.

What is timed begins with the request's parsed body and ends with its answer, so that the figures
are those of decoding and scheduling; `scripts/bench load` has those of HTTP. The models load in the
engine's thread, so that it alone has threads beneath it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from asr import MAX_ROWS, Checkpoint, Limits, Recogniser, Transcriber, load_whisper
from audio.decode import AudioLimits
from benchmarks.speed.cells import NOISE
from benchmarks.speed.recordings import recording
from benchmarks.timing import ratio
from endpoint import Endpoint
from runtime.device import choose_device, choose_dtype, prepare_device
from testing.audio_files import wav_file
from testing.model_pairs import deep_pair
from timebase import SAMPLE_RATE

CLIENTS, EACH = 16, 2  # clips of each client
CLIP, SHORT = 10, 8  # seconds of a clip, and of a short request
SHORT_REQUESTS = 20  # at most, while the long recording is answered
DEEP = "deep"

Body = dict[str, Any]


@dataclass(frozen=True)
class Rates:
    """Seconds that each repeat took for all clips: of one client, and of all clients; and the
    seconds for which those waited for each.
    """

    serial: list[float]
    together: list[float]
    waited: list[float]


def load(name: str, device: torch.device, dtype: torch.dtype, limits: Limits) -> Transcriber:
    """The models that `name` is a folder of, warm."""
    if name == DEEP:
        models = deep_pair(NOISE[0.8], device, dtype)
    else:
        models = load_whisper(Checkpoint(name), device, dtype)
    transcriber = Transcriber(models, limits=limits)
    transcriber.warm_up()
    return transcriber


def bodies_of(count: int, seconds: int, parameters: Body) -> list[Body]:
    """Bodies of requests for `count` different clips of a dialogue, `seconds` each."""
    samples, length = recording(600), seconds * SAMPLE_RATE
    starts = np.linspace(0, len(samples) - length, count).astype(int)
    files = [
        wav_file(samples[start : start + length].astype(np.float64), SAMPLE_RATE)
        for start in starts
    ]
    texts = [base64.b64encode(file).decode() for file in files]
    return [{"inputs": each, "parameters": parameters} for each in texts]


async def measure_rates(endpoint: Endpoint, bodies: Sequence[Body], times: int) -> Rates:
    """Serve requests as those of one client and as those of all, by turns."""

    async def client(place: int, clients: int) -> list[float]:
        return [await _timed(endpoint, each) for each in bodies[place::clients]]

    async def all_of(clients: int) -> list[float]:
        places = range(clients)
        return list(chain(*await asyncio.gather(*(client(each, clients) for each in places))))

    await all_of(CLIENTS)  # memory for all rows is taken at first use
    serial, together, waited = [], [], []
    for _ in range(times):
        started = time.perf_counter()
        await all_of(1)
        serial.append(time.perf_counter() - started)
        started = time.perf_counter()
        waited += await all_of(CLIENTS)
        together.append(time.perf_counter() - started)
    return Rates(serial, together, waited)


async def measure_short(
    endpoint: Endpoint, long: Body | None, short: Sequence[Body]
) -> list[float]:
    """Seconds that each of the short requests took, one after the other, while `long` ran."""
    running = asyncio.ensure_future(endpoint.answer(endpoint.parse(long))) if long else None
    took = []
    for body in short:
        await asyncio.sleep(0)
        if running is not None and running.done():
            break
        took.append(await _timed(endpoint, body))
    if running is not None:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return took


async def _timed(endpoint: Endpoint, body: Body) -> float:
    request = endpoint.parse(body)
    started = time.perf_counter()
    await endpoint.answer(request)
    return time.perf_counter() - started


def main() -> None:
    """Print one table a model."""
    options = _options()
    device = choose_device("auto", torch.cuda.is_available())
    dtype = choose_dtype("auto", device)
    prepare_device(device)
    for name in options.models:
        threads, limits = torch.get_num_threads(), Limits(options.rows or MAX_ROWS, shared=True)
        recogniser = Recogniser(partial(load, name, device, dtype, limits), threads)
        audio_limits = AudioLimits(7200, 500_000_000)
        endpoint = Endpoint(recogniser, None, audio_limits, device, threads)
        parameters = {"language": options.language, "assisted": options.assisted, "diarize": False}
        try:
            print(f"{name}, {dtype}, {vars(options)}")
            asyncio.run(_measure(endpoint, options, parameters))
        finally:
            endpoint.close()


async def _measure(
    endpoint: Endpoint,
    options: argparse.Namespace,
    parameters: Body,
) -> None:
    """Measure and print; requests belong to one event loop."""
    clips = bodies_of(CLIENTS * EACH, CLIP, parameters)
    _print_rates(await measure_rates(endpoint, clips, options.times))
    if options.long:
        short = bodies_of(SHORT_REQUESTS, SHORT, parameters)
        (long,) = bodies_of(1, 600, parameters)
        _print_waits("alone", await measure_short(endpoint, None, short[:8]))
        _print_waits("beside 10 min", await measure_short(endpoint, long, short))


def _print_rates(rates: Rates) -> None:
    serial, together = statistics.median(rates.serial), statistics.median(rates.together)
    print(
        f"  {CLIENTS * EACH} clips of {CLIP} s: one at a time {serial:.2f} s, by {CLIENTS} clients "
        f"{together:.2f} s, {ratio(rates.serial, rates.together)} times the throughput"
    )
    _print_waits("each of them", rates.waited)


def _print_waits(name: str, seconds: list[float]) -> None:
    median, p95 = np.percentile(seconds, [50, 95])
    print(f"  {name}: p50 {median:.2f} s, p95 {p95:.2f} s, {len(seconds)} requests")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench throughput", description=__doc__)
    parser.add_argument("models", nargs="*", default=[DEEP], help=f"folders, or {DEEP}")
    parser.add_argument("--assisted", action="store_true", help="draft with the assistant")
    parser.add_argument("--language", help="detected where none is given")
    parser.add_argument("--rows", type=int, help="at most so many windows at once")
    parser.add_argument("--times", type=int, default=3, help="repeats")
    parser.add_argument("--long", action="store_true", help="short requests beside 10 minutes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
