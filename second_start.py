"""A second start without CUDA graphs, where the first one, with them, failed.

Most failures leave the device usable, and the same models are started again. After a CUDA error
such as an illegal memory access nothing in the process can use it any more, so that only a new
process can try without graphs. Servers of others begin this one, and to end it would have the
platform begin it again with the same graphs, and so on. So the process is replaced in place: same
number, same command line, CUDA_GRAPHS=0 in the environment. Python's files and sockets close by
themselves then, and so do the device's. It is done once, and only by a process that its own command
line began; a worker that another process made cannot be begun that way.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
from pathlib import Path

import torch

from asr import Transcriber, WhisperModels
from config import turn_graphs_off
from device_errors import is_device_lost

logger = logging.getLogger("endpoint")

ADVICE = "WITHOUT CUDA graphs, decoding will be slower; scripts/gpu-check says more"


def start(models: WhisperModels, cuda_graphs: bool) -> Transcriber:
    """A transcriber that has run once; without CUDA graphs where it does not run with them."""
    if cuda_graphs and models.device.type == "cuda":
        try:
            return _warmed(models, cuda_graphs=True)
        except Exception as error:
            if is_device_lost(error):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        # Outside the except block: until here the exception held on to the device's memory.
        logger.critical("the start failed (%s): it is tried %s", reason, ADVICE)
        gc.collect()
        torch.cuda.empty_cache()
    return _warmed(models, cuda_graphs=False)


def _warmed(models: WhisperModels, cuda_graphs: bool) -> Transcriber:
    transcriber = Transcriber(models, cuda_graphs=cuda_graphs)
    transcriber.warm_up()
    return transcriber


def restart_without_graphs(reason: str) -> None:
    """Replace this process; returns where that was done already, or cannot be done."""
    if not began_by_command_line() or not turn_graphs_off():
        return
    logger.critical("the start failed (%s): the process begins again %s", reason, ADVICE)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def began_by_command_line(processes: Path = Path("/proc")) -> bool:
    """Whether this process is what its command line says: no worker, forked or spawned."""
    if multiprocessing.parent_process() is not None:
        return False
    own, parent = (_command_line(processes / each) for each in ("self", str(os.getppid())))
    asked = [os.fsencode(each) for each in sys.orig_argv[1:]]
    return bool(asked) and own[1:] == asked and own != parent


def _command_line(process: Path) -> list[bytes]:
    """Its words; none where there is no such process, as above the first of a container."""
    try:
        return (process / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return []
