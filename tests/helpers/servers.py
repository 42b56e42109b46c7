"""The toolkit's server, started like Inference Endpoints, and what tests of servers share."""

import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub import InferenceClient

from config import REPOSITORY
from tests.support.servers import Server, following, hf_serve, start_server

SECRET = "hf_this_token_must_not_show"
TOOLKIT_SOURCE = REPOSITORY.parent / "shared" / "toolkit" / "src"
TOOLKIT_PYTHON = REPOSITORY / ".venv-toolkit" / "bin" / "python"
TOOLKIT_LISTENS = "Model initialized successfully"


def free_port() -> int:
    """Return a free port below the range that the system assigns from, so that no other process
    gets it before it is used."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", 10_000 + secrets.randbelow(6_000)))
            return int(probe.getsockname()[1])


def require_toolkit() -> None:
    """Skip if the toolkit's source or its environment is missing."""
    if not TOOLKIT_SOURCE.is_dir():
        pytest.skip("no source of huggingface-inference-toolkit in ../shared/toolkit")
    if not (TOOLKIT_PYTHON.parent.parent / "ready").is_file():
        pytest.skip(
            "left out: no .venv-toolkit (scripts/setup --toolkit makes it where Python 3.11 is)"
        )


def toolkit(listening: socket.socket | None = None, **variables: str) -> subprocess.Popen[str]:
    """Run the toolkit's server under uvicorn, as its entry point starts it, on the socket
    `listening`; if it is to fail at once, on a port of the system's choice."""
    app = "huggingface_inference_toolkit.webservice_starlette:app"
    where = ["--fd", str(listening.fileno())] if listening else ["--port", "0"]
    command = [str(TOOLKIT_PYTHON), "-m", "uvicorn", app, *where]
    passed = [listening.fileno()] if listening else []
    return start_server(command, variables | {"PYTHONPATH": str(TOOLKIT_SOURCE)}, pass_fds=passed)


@contextmanager
def running_hf_serve(**variables: str) -> Iterator[Server]:
    with hf_serve(**variables) as process, following(process) as server:
        yield server


@contextmanager
def running_toolkit(**variables: str) -> Iterator[Server]:
    """Run the toolkit's server on a socket that listens before it: requests need no retries."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with (
            toolkit(listening, **variables) as process,
            following(process, TOOLKIT_LISTENS, url) as server,
        ):
            yield server


def hub_client(url: str, token: str, monkeypatch: pytest.MonkeyPatch) -> InferenceClient:
    """The hub's own client, on a new connection: a server closes one on which nothing was asked for
    a while. Offline mode, which the suite runs in, would refuse even loopback."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()
    return InferenceClient(model=url, token=token)


def check_failed_start(start, expected: int) -> str:
    """Check that one line on standard error says what is wrong and none shows the token; return the
    line. tests/test_loading_endpoint.py has the other failures, under both servers' libraries."""
    with start(ASR_MODEL="/no/such", HF_TOKEN=SECRET) as process:
        out, err = process.communicate()
    assert process.returncode == expected
    assert "START_FAILED: ASR_MODEL: neither a hub id" in err, err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert SECRET not in out + err
    return err
