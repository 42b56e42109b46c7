"""Prepares servers for the start: logs without request bodies, one line for a failed start, and a
restart without CUDA graphs if a start with graphs lost the device.

The log filters know what hf-serve 0.2.0, huggingface-inference-toolkit 0.5.6 and uvicorn write;
tests against the real servers notice changed texts.

After a CUDA error such as an illegal memory access, only a new process can use the device. So the
process replaces itself once: same process ID, same command line, CUDA_GRAPHS=0 in the environment.
Python's files and sockets and those of the device are closed on exec.
"""

import logging
import multiprocessing
import os
import sys
from pathlib import Path

from whosaid.runtime.environment import turn_graphs_off

logger = logging.getLogger("endpoint")

# By logger: hf-serve logs the whole body after these words, the toolkit a body without `inputs`.
BODY_FOLLOWS = {
    "hf-serve": "Received request with:",
    "huggingface_inference_toolkit": "Body needs to provide a inputs key, received:",
}
ADVICE = "WITHOUT CUDA graphs, decoding will be slower; scripts/gpu-check says more"


def hide_bodies() -> None:
    """Cut request bodies, base64 audio included, from the servers' log records."""
    for name in BODY_FOLLOWS:
        logging.getLogger(name).addFilter(hide_body)


def hide_body(record: logging.LogRecord) -> bool:
    """Replace the body in one record; a logging filter that keeps every record."""
    announced, found, _ = record.getMessage().partition(BODY_FOLLOWS[record.name])
    if found:
        record.msg, record.args = f"{announced}Received request, body not logged", ()
    return True


def keep_one_line(reason: str) -> None:
    """Make uvicorn, which runs the toolkit, log `reason` instead of the SystemExit's traceback."""

    def shorten(record: logging.LogRecord) -> bool:
        if reason not in record.getMessage():
            return "Application startup failed" not in record.getMessage()
        record.msg, record.args = reason, ()
        return True

    logging.getLogger("uvicorn.error").addFilter(shorten)


def restart_without_graphs(reason: str) -> None:
    """Replace this process; return if that was done before or cannot be done."""
    if not began_by_command_line() or not turn_graphs_off():
        return
    logger.critical("the start failed (%s): the process starts again %s", reason, ADVICE)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def began_by_command_line(processes: Path = Path("/proc")) -> bool:
    """Return whether the command line starts this process again, as it starts no forked worker."""
    if multiprocessing.parent_process() is not None:
        return False
    own, parent = (_command_line(processes / each) for each in ("self", str(os.getppid())))
    asked = [os.fsencode(each) for each in sys.orig_argv[1:]]
    return bool(asked) and own[1:] == asked and own != parent


def _command_line(process: Path) -> list[bytes]:
    """Return a process's arguments; empty if it does not exist, as a container's first parent."""
    try:
        return (process / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return []
