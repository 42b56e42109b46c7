"""A process that begins again without CUDA graphs, where the start with them lost the device.

After a CUDA error such as an illegal memory access nothing in the process can use the device any
more, so that only a new process can try without graphs. Servers of others begin this one, and to
end it would have the platform begin it again with the same graphs, and so on. So the process is
replaced in place: same number, same command line, CUDA_GRAPHS=0 in the environment. Python's files
and sockets close by themselves then, and so do the device's. It is done once, and only by a process
that its own command line began; a worker that another process made cannot be begun that way.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from pathlib import Path

from config import turn_graphs_off

logger = logging.getLogger("endpoint")

ADVICE = "WITHOUT CUDA graphs, decoding will be slower; scripts/gpu-check says more"


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
