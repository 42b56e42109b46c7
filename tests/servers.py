"""Both servers on loopback, started like Inference Endpoints."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx2
import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub import InferenceClient

from config import REPOSITORY

SECRET = "hf_this_token_must_not_show"
TOOLKIT_SOURCE = REPOSITORY.parent / "shared" / "toolkit" / "src"
# In bfloat16, which not every torch has, times of the two servers may differ by 20 ms.
SAME_NUMBERS = {"DTYPE": "float32"}
TOOLKIT_PYTHON = REPOSITORY / ".venv-toolkit" / "bin" / "python"
HF_SERVE_LISTENS = r"running on \S*?(http://127\.0\.0\.1:\d+)"
OURS_LISTENS = r"listening on (http://127\.0\.0\.1:\d+)"
TOOLKIT_LISTENS = "Model initialized successfully"


@cache
def loopback() -> httpx2.Client:
    """Return a client for servers without TLS, which opens a connection for each request. httpx's
    functions load all certificates at each call, for 40 ms.
    """
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(verify=False, trust_env=False, timeout=120, limits=limits)


def require_toolkit() -> None:
    """Skip where the toolkit's source or its environment is missing."""
    if not TOOLKIT_SOURCE.is_dir():
        pytest.skip("no source of huggingface-inference-toolkit in ../shared/toolkit")
    if not (TOOLKIT_PYTHON.parent.parent / "ready").is_file():
        pytest.skip(
            "left out: no .venv-toolkit (scripts/setup --toolkit makes it where Python 3.11 is)"
        )


def hf_serve(**variables: str) -> subprocess.Popen[str]:
    """hf-serve on a free port, with `variables` as the deployer's environment."""
    program = str(Path(sys.executable).with_name("hf-serve"))
    return _start([program, "--host", "127.0.0.1", "--port", "0"], variables)


def ours(
    command: list[str] | None = None,
    stdin: int | None = None,
    stderr: int = subprocess.PIPE,
    **variables: str,
) -> subprocess.Popen[str]:
    """`python -m whosaid.server`, or a `command` that runs it, on a free port."""
    where = {"HOST": "127.0.0.1", "PORT": "0", "PAGE": "false", "PYTHONPATH": str(REPOSITORY)}
    command = command or [sys.executable, "-m", "whosaid.server"]
    return _start(command, where | variables, stdin=stdin, stderr=stderr)


def toolkit(listening: socket.socket | None = None, **variables: str) -> subprocess.Popen[str]:
    """The toolkit's server under uvicorn, as its entry point starts it, on the socket `listening`
    or, where it is not to live that long, on a port of the system's choice.
    """
    app = "huggingface_inference_toolkit.webservice_starlette:app"
    where = ["--fd", str(listening.fileno())] if listening else ["--port", "0"]
    return _start(
        [str(TOOLKIT_PYTHON), "-m", "uvicorn", app, *where],
        variables | {"PYTHONPATH": str(TOOLKIT_SOURCE)},
        pass_fds=[listening.fileno()] if listening else [],
    )


def _start(
    command: list[str],
    variables: dict[str, str],
    pass_fds: list[int] | None = None,
    stdin: int | None = None,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    names = ("PATH", "HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    repository = {"HF_MODEL_DIR": str(REPOSITORY), "HF_TASK": "custom", "HF_TRUST_REMOTE_CODE": "1"}
    return subprocess.Popen(
        command,
        env=kept | repository | SAME_NUMBERS | variables,
        cwd="/",
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        pass_fds=pass_fds or [],
    )


@dataclass
class Server:
    """A running server: its address, and its log so far."""

    url: str
    log: list[str]

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

    The pattern's first group is the address, unless `url` is.
    """
    server, listening = Server("", []), threading.Event()

    def follow(stream) -> None:
        for line in stream:
            server.log.append(line)
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
        assert server.url, "".join(server.log)
        yield server
    finally:
        process.terminate()
        process.wait()
        for reader in readers:
            reader.join()


@contextmanager
def running_hf_serve(**variables: str) -> Iterator[Server]:
    with hf_serve(**variables) as process, following(process) as server:
        yield server


@contextmanager
def running_toolkit(**variables: str) -> Iterator[Server]:
    """The toolkit's server on a socket that listens before it starts, so that nobody has to try
    again until it answers.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with (
            toolkit(listening, **variables) as process,
            following(process, TOOLKIT_LISTENS, url) as server,
        ):
            yield server


def hub_client(url: str, token: str, monkeypatch: pytest.MonkeyPatch) -> InferenceClient:
    """The hub's own client, on a new connection: a server closes one on which nothing was asked for
    a while. Offline mode, which the suite runs in, would refuse even loopback.
    """
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()
    return InferenceClient(model=url, token=token)


def check_failed_start(start, expected: int) -> str:
    """One line on standard error, which is returned, says what is wrong; none shows the token. What
    else can fail does so in tests/test_loading_endpoint.py, under both servers' libraries.
    """
    with start(ASR_MODEL="/no/such", HF_TOKEN=SECRET) as process:
        out, err = process.communicate()
    assert process.returncode == expected
    assert "START_FAILED: ASR_MODEL: neither a hub id" in err, err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert SECRET not in out + err
    return err
