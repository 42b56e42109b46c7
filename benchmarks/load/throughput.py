"""What batching across requests gains, without HTTP: many clients at once beside one at a time.

The service answers the clips of one client and those of many, each of whom sends the next one when
the last is answered, by turns. Then short requests are answered while a long recording is, each as
soon as the one before it was, and alone.

The one decision: what is timed begins with the request's parsed body and ends with its answer, so
that the figures are those of decoding and scheduling; `scripts/bench load` has those of HTTP. The
models are loaded as the handler does it, so that the engine's thread alone has threads beneath it.
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

import numpy as np
import torch

from asr import Transcriber
from asr.checkpoint.loading import Checkpoint, load_whisper
from audio.decode import AudioLimits
from benchmarks.speed.cells import NOISE
from benchmarks.speed.recordings import recording
from benchmarks.timing import ratio
from handler import EndpointHandler, TranscriptionRequest
from runtime.device import choose_device, choose_dtype, prepare_device
from runtime.openmp import run_in_passing_thread
from server.service import Service
from testing.audio_files import wav_file
from testing.model_pairs import deep_pair
from timebase import SAMPLE_RATE

CLIENTS, EACH = 16, 2  # clips of each client
CLIP, SHORT = 10, 8  # seconds of a clip, and of a short request
SHORT_REQUESTS = 20  # at most, while the long recording is answered
DEEP = "deep"


@dataclass(frozen=True)
class Rates:
    """Seconds that each repeat took for all clips: of one client, and of all clients; and the
    seconds for which those waited for each.
    """

    serial: list[float]
    together: list[float]
    waited: list[float]


def loaded_handler(name: str, device: torch.device, dtype: torch.dtype) -> EndpointHandler:
    """The endpoint with the models that `name` is a folder of, without diarization."""
    if name == DEEP:
        models = deep_pair(NOISE[0.8], device, dtype)
    else:
        models = load_whisper(Checkpoint(name), device, dtype)
    made = object.__new__(EndpointHandler)
    made.transcriber, made.diarizer = Transcriber(models), None
    made.transcriber.warm_up()
    made.limits = AudioLimits(7200, 500_000_000)
    return made


def requests_of(
    handler: EndpointHandler, count: int, seconds: int, **parameters: object
) -> list[TranscriptionRequest]:
    """Requests for `count` different clips of a dialogue, `seconds` each."""
    samples, length = recording(600), seconds * SAMPLE_RATE
    starts = np.linspace(0, len(samples) - length, count).astype(int)
    files = [
        wav_file(samples[start : start + length].astype(np.float64), SAMPLE_RATE)
        for start in starts
    ]
    bodies = [base64.b64encode(file).decode() for file in files]
    return [handler.parse({"inputs": each, "parameters": parameters}) for each in bodies]


async def measure_rates(
    service: Service, requests: Sequence[TranscriptionRequest], times: int
) -> Rates:
    """Serve the requests as those of one client and as those of all, by turns."""

    async def client(place: int, clients: int) -> list[float]:
        return [await _timed(service, each) for each in requests[place::clients]]

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
    service: Service, long: TranscriptionRequest | None, short: Sequence[TranscriptionRequest]
) -> list[float]:
    """Seconds that each of the short requests took, one after the other, while `long` ran."""
    running = asyncio.ensure_future(service.answer(long)) if long else None
    took = []
    for request in short:
        await asyncio.sleep(0)
        if running is not None and running.done():
            break
        took.append(await _timed(service, request))
    if running is not None:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return took


async def _timed(service: Service, request: TranscriptionRequest) -> float:
    started = time.perf_counter()
    await service.answer(request)
    return time.perf_counter() - started


def main() -> None:
    """Print one table a model."""
    options = _options()
    device = choose_device("auto", torch.cuda.is_available())
    dtype = choose_dtype("auto", device)
    prepare_device(device)
    for name in options.models:
        load = partial(loaded_handler, name, device, dtype)
        handler = run_in_passing_thread(load, torch.get_num_threads())
        service = Service(handler, options.rows)
        parameters = {"language": options.language, "assisted": options.assisted, "diarize": False}
        try:
            print(f"{name}, {dtype}, {vars(options)}")
            asyncio.run(_measure(handler, service, options, parameters))
        finally:
            service.close()


async def _measure(
    handler: EndpointHandler,
    service: Service,
    options: argparse.Namespace,
    parameters: dict[str, object],
) -> None:
    """Measure and print; a service belongs to one event loop."""
    clips = requests_of(handler, CLIENTS * EACH, CLIP, **parameters)
    _print_rates(await measure_rates(service, clips, options.times))
    if options.long:
        short = requests_of(handler, SHORT_REQUESTS, SHORT, **parameters)
        (long,) = requests_of(handler, 1, 600, **parameters)
        _print_waits("alone", await measure_short(service, None, short[:8]))
        _print_waits("beside 10 min", await measure_short(service, long, short))


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
