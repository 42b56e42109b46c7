"""Clients that send one body repeatedly, and time each request.

Loops are closed, as in k6: each user sends the next request after the last answer. A request is
timed from the moment at which it was due, so that a slow client cannot flatter a server.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np

from tests.support.audio_files import request_body, wav_file
from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE

# Seconds: enough for a minute of audio by the largest model on a slow machine, and the queue before
# it.
TIMEOUT_S = 1800.0
OK = 200
HEADERS = {"content-type": "application/json"}


@dataclass
class Load:
    """The outcome of one measurement.

    `seconds` has the time of each answered request, in order of the answers; `statuses` counts the
    others. `texts` are the distinct transcripts. `wall` is the time until the last answer.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    wall: float = 0.0

    @property
    def rate(self) -> float:
        """Return the answers a second."""
        return len(self.seconds) / self.wall if self.wall else 0.0

    def figures(self) -> dict[str, Any]:
        median, p95 = np.percentile(self.seconds or [0.0], [50, 95]).tolist()
        return {
            **({"med": median, "p95": p95} if self.seconds else {}),
            "requests": len(self.seconds),
            "other statuses": self.statuses,
            "different texts": len(self.texts),
            "rate": self.rate,
        }


def body_of(samples: Samples, **parameters: object) -> bytes:
    """Return the endpoint's JSON body with samples as a WAV file."""
    return json_body(wav_file(samples.astype(np.float64), SAMPLE_RATE), **parameters)


def json_body(file: bytes, **parameters: object) -> bytes:
    """Return the endpoint's JSON body with an audio file and parameters."""
    return json.dumps(request_body(file, **parameters)).encode()


async def closed(url: str, body: bytes, users: int, seconds: float, fewest: int) -> Load:
    """Let `users` send requests for `seconds`, and until each has sent `fewest`."""
    load, started = Load(), time.perf_counter()
    async with _client() as client:

        async def user() -> None:
            asked = 0
            while asked < fewest or time.perf_counter() - started < seconds:
                await _ask(client, url, body, time.perf_counter(), load)
                asked += 1

        await asyncio.gather(*(user() for _ in range(users)))
    load.wall = time.perf_counter() - started
    return load


async def beside(
    url: str, body: bytes, long: bytes, pause: float, most: int, at_once: int = 1
) -> Load:
    """Send `most` short requests, one every `pause` seconds, while `at_once` `long` ones run.

    Return the load of the short ones.
    """
    load = Load()
    async with _client() as client, busy(url, long, at_once):
        asked = []
        for _ in range(most):
            await asyncio.sleep(pause)
            asked.append(asyncio.ensure_future(_ask(client, url, body, time.perf_counter(), load)))
        await asyncio.gather(*asked)
    return load


@asynccontextmanager
async def busy(url: str, body: bytes, at_once: int = 1) -> AsyncIterator[None]:
    """Keep `at_once` requests running until the block ends; repeat each one when it is answered.

    Raises OSError if one is refused.
    """
    load = Load()
    async with _client() as client:

        async def keep_busy() -> None:
            while not load.statuses:
                await _ask(client, url, body, time.perf_counter(), load)

        running = [asyncio.ensure_future(keep_busy()) for _ in range(at_once)]
        try:
            yield
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    if load.statuses:
        raise OSError(f"a request that should run beside others was refused: {load.statuses}")


def _client() -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)


async def _ask(client: httpx2.AsyncClient, url: str, body: bytes, due: float, load: Load) -> None:
    try:
        answer = await client.post(url, content=body, headers=HEADERS)
    except httpx2.HTTPError as error:
        status = type(error).__name__
    else:
        status = str(answer.status_code)
        if answer.status_code == OK:
            load.seconds.append(time.perf_counter() - due)
            load.texts.add(answer.json()["text"])
            return
    load.statuses[status] = load.statuses.get(status, 0) + 1
