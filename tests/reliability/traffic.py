"""The requests of the reliability suite, and measurements of the server's process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.servers import OURS_LISTENS, Server, following, hf_serve, ours
from tests.test_robustness import LIMITS, SECRET

HF_SERVE, OURS = "hf-serve", "ours"

WATCHED = Path(__file__).with_name("watched_server.py")
RUNNING = "asr_requests_in_progress "
MIB = 2**20
KEY = "key_that_must_not_show"
JSON = {"content-type": "application/json"}
CODES = ("INVALID_REQUEST", "INVALID_PARAMETER", "INVALID_AUDIO", "AUDIO_TOO_LONG", "UNSUPPORTED")


@dataclass
class Subject:
    """A running server with its process, the folder of its temporary files, and what it did to the
    outside, if that is watched."""

    server: Server
    process: psutil.Process
    temporary: Path
    events: Path
    before: int  # characters of `events` that tell of the start

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def log(self) -> str:
        return "".join(self.server.log)

    @property
    def peak(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    @property
    def resident(self) -> float:
        return self.process.memory_info().rss / MIB

    @property
    def footprint(self) -> tuple[int, int, list[str]]:
        """Descriptors, threads and temporary files."""
        files = sorted(str(path) for path in self.temporary.rglob("*") if path.is_file())
        return self.process.num_fds(), self.process.num_threads(), files

    @property
    def reached_out(self) -> str:
        """Return the server's connections to other hosts since it listens."""
        return self.events.read_text()[self.before :]

    def reset_peak(self) -> None:
        """Let the peak begin at the memory held now; see proc(5)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@contextmanager
def subject(kind: str, folder: Path, **variables: str) -> Iterator[Subject]:
    """A server of either kind; `variables` are its environment. Ours is watched."""
    temporary, events = folder / "temporary", folder / "events"
    temporary.mkdir()
    events.touch()
    variables = {
        "TMPDIR": str(temporary),
        "HF_TOKEN": SECRET,
        "API_KEY": KEY,
        "MAX_AUDIO_SECONDS": str(LIMITS.max_seconds),
        "MAX_AUDIO_BYTES": str(LIMITS.max_bytes),
        **variables,
    }
    if kind == HF_SERVE:
        starting, listening = hf_serve(**variables), {}
    else:
        command = [sys.executable, str(WATCHED), str(events)]
        starting, listening = ours(command, **variables), {"listens": OURS_LISTENS}
    with starting as process, following(process, **listening) as server:
        before = events.read_text()
        assert "connect" not in before
        yield Subject(server, psutil.Process(process.pid), temporary, events, len(before))


@contextmanager
def forked_servers(folder: Path) -> Iterator[Callable[..., ForkedServer]]:
    """Starts servers of ours quickly, with the given environment, each when the last has ended."""
    events = folder / "events"
    events.touch()
    command = [sys.executable, str(WATCHED), str(events), "--forks"]
    with ours(command, stdin=subprocess.PIPE, stderr=subprocess.STDOUT) as parent:

        def start(**variables: str) -> ForkedServer:
            print(json.dumps({"API_KEY": KEY, **variables}), file=parent.stdin, flush=True)
            return ForkedServer(parent.stdout)

        yield start


class ForkedServer:
    """A running server and its end; `log` are the `lines` read so far."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self._status: int | None = None
        self.log: list[str] = []
        self.process_id = int(self._find(r"started (\d+)"))
        self.url = self._find(OURS_LISTENS)

    def exit_status(self) -> int:
        """Return the status with which the process ends after its signal."""
        if self._status is None:
            self._status = int(self._find(r"ended (-?\d+)"))
        return self._status

    def kill(self) -> None:
        """End it, if it still runs: another can start then."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGKILL)
            self.exit_status()

    def _find(self, pattern: str) -> str:
        for line in self._lines:
            self.log.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError("".join(self.log))


def scaled(quick: Any, *whole: Any) -> list[Any]:
    """Parameters of a test: the `quick` ones, and the `whole` ones for `scripts/test --all`."""
    marks = [pytest.mark.reliability, pytest.mark.timeout(1_800)]
    more = [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=marks) for each in whole
    ]
    return [quick, *more]


# hf-serve answers by the same handler, and takes as long again.
QUICK_SERVERS = scaled(OURS, HF_SERVE)


async def running_requests(http: httpx2.AsyncClient) -> int:
    """Return how many requests the server has accepted and not answered."""
    metrics = (await http.get("/metrics")).text
    (line,) = (line for line in metrics.splitlines() if line.startswith(RUNNING))
    return int(float(line.split()[1]))


def send_all(
    url: str, requests: Sequence[dict[str, Any]], clients: int
) -> list[httpx2.Response | httpx2.HTTPError]:
    """The answers to `requests`, each the arguments of `httpx2.AsyncClient.post`, in their order;
    `clients` send at once."""
    return asyncio.run(_send_all(url, requests, clients))


async def _send_all(url, requests, clients):
    answers: list[httpx2.Response | httpx2.HTTPError] = [None] * len(requests)
    waiting = iter(enumerate(requests))
    async with client(url) as http:

        async def work() -> None:
            for number, request in waiting:
                arguments = {"url": "/", **request}
                try:
                    answers[number] = await http.post(**arguments)
                except httpx2.HTTPError as error:
                    answers[number] = error

        await asyncio.gather(*(work() for _ in range(clients)))
    return answers


def client(url: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    key = {"authorization": f"Bearer {KEY}"}
    return httpx2.AsyncClient(
        base_url=url, timeout=200, limits=limits, headers=key, trust_env=False
    )


def in_json(body: Any) -> dict[str, Any]:
    """The request with this JSON body. Raises TypeError for what JSON cannot say."""
    return {"content": json.dumps(body).encode(), "headers": JSON}


def code_of(answer: httpx2.Response) -> str:
    """The code that a refusal begins with, or OK."""
    if answer.status_code == 200:
        return "OK"
    return str(answer.json().get("detail", "")).partition(":")[0]


def run(work: Callable[[httpx2.AsyncClient], Awaitable[Any]], url: str) -> Any:
    """Return the result of `work`, called with a client of the server at `url`."""

    async def with_client() -> Any:
        async with client(url) as http:
            return await work(http)

    return asyncio.run(with_client())
