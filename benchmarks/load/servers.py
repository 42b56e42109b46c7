"""The two compared servers, each in its own process on loopback.

Both get the same models through the same environment variables, and the same requests, so that only
the server differs. The server that waits for its turn sleeps.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from config import DEMO_MODELS, REPOSITORY

HF_SERVE, OURS = "hf-serve", "ours"
SERVERS = (OURS, HF_SERVE)
LISTENS = {
    HF_SERVE: r"running on \S*?(http://127\.0\.0\.1:\d+)",
    OURS: r"listening on (http://127\.0\.0\.1:\d+)",
}
# The queue holds all measured requests, so that they wait instead of being refused.
ENVIRONMENT = {
    "HF_MODEL_DIR": str(REPOSITORY),
    "HF_TASK": "custom",
    "HF_TRUST_REMOTE_CODE": "1",
    "HF_HUB_OFFLINE": "1",
    "HOST": "127.0.0.1",
    "PORT": "0",
    "PAGE": "false",
    "MAX_QUEUE": "100000",
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": str(REPOSITORY),
}
MODELS = ("ASR_MODEL", "ASSISTANT_MODEL", "DIARIZATION_MODEL")
DEMO = {"ASR_MODEL": str(DEMO_MODELS / "asr"), "ASSISTANT_MODEL": str(DEMO_MODELS / "assistant")}


@contextmanager
def running(models: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the URLs of both servers by name; raises OSError if one does not start."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(started(name, models)) for name in SERVERS}


@contextmanager
def started(name: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Run the server `name` with this environment and yield its address; raises OSError if it does
    not start.
    """
    program = Path(sys.executable)
    commands = {
        HF_SERVE: [str(program.with_name("hf-serve")), "--host", "127.0.0.1", "--port", "0"],
        OURS: [str(program), "-m", "whosaid.server"],
    }
    unset = [part for variable in MODELS for part in ("-u", variable)]
    variables = [f"{key}={value}" for key, value in {**ENVIRONMENT, **environment}.items()]
    with tempfile.TemporaryFile("w+") as log:
        command = ["env", *unset, *variables, *commands[name]]
        with subprocess.Popen(command, cwd="/", stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                yield _address(name, process, log.fileno())
            finally:
                process.terminate()


def _address(name: str, process: subprocess.Popen[bytes], log: int) -> str:
    """Return the server's URL, once its log has it."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        text = os.pread(log, 2**20, 0).decode(errors="replace")
        if found := re.search(LISTENS[name], text):
            return found[1]
        if process.returncode is not None:
            raise OSError(f"{name} does not start: {' '.join(text.split())[-300:]}")
