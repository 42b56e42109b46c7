"""Both servers, each in its own process on loopback, started like Inference Endpoints."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

import httpx2

from config import REPOSITORY

# In bfloat16, which not every torch has, times of the two servers may differ by 20 ms.
SAME_NUMBERS = {"DTYPE": "float32"}
# Variables of this process that servers get too.
KEPT = (
    "PATH", "HOME", "LD_LIBRARY_PATH", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
HF_SERVE_LISTENS = r"running on \S*?(http://127\.0\.0\.1:\d+)"
OURS_LISTENS = r"listening on (http://127\.0\.0\.1:\d+)"


@cache
def loopback() -> httpx2.Client:
    """Return a client for servers without TLS, which opens a connection for each request. httpx's
    functions load all certificates at each call, for 40 ms."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(verify=False, trust_env=False, timeout=120, limits=limits)


def hf_serve(**variables: str) -> subprocess.Popen[str]:
    """hf-serve on a free port, with `variables` as the deployer's environment."""
    program = str(Path(sys.executable).with_name("hf-serve"))
    return start_server([program, "--host", "127.0.0.1", "--port", "0"], variables)


def ours(
    command: list[str] | None = None,
    stdin: int | None = None,
    stderr: int = subprocess.PIPE,
    **variables: str,
) -> subprocess.Popen[str]:
    """`python -m whosaid.server`, or a `command` that runs it, on a free port."""
    where = {"HOST": "127.0.0.1", "PORT": "0", "PAGE": "false", "PYTHONPATH": str(REPOSITORY)}
    command = command or [sys.executable, "-m", "whosaid.server"]
    return start_server(command, where | variables, stdin=stdin, stderr=stderr)


def start_server(
    command: list[str],
    variables: dict[str, str],
    pass_fds: list[int] | None = None,
    stdin: int | None = None,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    repository = {"HF_MODEL_DIR": str(REPOSITORY), "HF_TASK": "custom", "HF_TRUST_REMOTE_CODE": "1"}
    return subprocess.Popen(
        command, env=kept | repository | SAME_NUMBERS | variables, cwd="/", stdin=stdin,
        stdout=subprocess.PIPE, stderr=stderr, text=True, pass_fds=pass_fds or [],
    )  # fmt: skip


@dataclass
class Server:
    """A running server: its address, its log so far, and its process."""

    url: str
    log: list[str]
    process_id: int
    logs: threading.Condition = field(default_factory=threading.Condition)

    def logged(self, text: str, times: int = 1) -> str:
        """Return the log once it has `text` so many times: lines are read in another thread."""
        with self.logs:
            assert self.logs.wait_for(lambda: "".join(self.log).count(text) >= times, 60), self.log
            return "".join(self.log)

    def post(
        self,
        content: bytes,
        content_type: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> httpx2.Response:
        headers = {"content-type": content_type}
        return loopback().post(self.url, content=content, headers=headers, params=params)

    def ask(self, body: object) -> httpx2.Response:
        return self.post(json.dumps(body).encode())


@contextmanager
def following(
    process: subprocess.Popen[str], listens: str = HF_SERVE_LISTENS, url: str = ""
) -> Iterator[Server]:
    """Follow both streams of a server and hand it over once its log has `listens`.

    The pattern's first group is the address, unless `url` is. Raises OSError if the server ends
    before."""
    server, listening = Server("", [], process.pid), threading.Event()

    def follow(stream: IO[str] | None) -> None:
        for line in stream or ():
            with server.logs:
                server.log.append(line)
                server.logs.notify_all()
            if found := re.search(listens, line):
                server.url = url or found[1]
                listening.set()
        listening.set()

    streams = (process.stdout, process.stderr)
    readers = [threading.Thread(target=follow, args=(stream,)) for stream in streams]
    for reader in readers:
        reader.start()
    try:
        listening.wait()
        if not server.url:
            raise OSError(f"the server does not start: {''.join(server.log)}")
        yield server
    finally:
        process.terminate()
        process.wait()
        for reader in readers:
            reader.join()
