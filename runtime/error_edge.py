"""The edge of the endpoint: every exception that is not ours becomes ours, so that neither a
traceback nor a path leaves it.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from errors import EndpointError, ModelError, OutOfMemory
from runtime.device_errors import is_device_lost, is_out_of_memory

logger = logging.getLogger("endpoint")

# When the process must end: time for answers to leave, and the status the platform sees.
SECONDS_TO_ANSWER, EXIT_STATUS = 1.0, 70
ENDING = "end of the process"


@contextmanager
def endpoint_errors() -> Iterator[None]:
    """Pass our own errors on and turn every other exception into one; the log says its origin.

    A lost device, on which every call fails from now on, ends the process, so that the platform
    starts a new one.
    """
    try:
        yield
    except Exception as error:
        if any(is_device_lost(cause) for cause in causes(error)):
            # Torch's message holds no user data.
            reasons = [" ".join(str(cause).split()) for cause in causes(error)]
            end_process(f"the device is lost: {reasons[-1]}")
        if isinstance(error, EndpointError):
            raise
        if is_out_of_memory(error):
            raise OutOfMemory(
                "this request does not fit into the memory of this endpoint"
            ) from error
        origin = traceback.extract_tb(error.__traceback__)[-1]
        logger.error(
            "%s in %s, line %s", type(error).__name__, Path(origin.filename).name, origin.lineno
        )
        raise ModelError(
            f"unexpected {type(error).__name__}; the log of the endpoint names its origin"
        ) from error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def end_process(reason: str) -> None:
    """End this process a moment from now, after its clients have been answered; the log says why,
    once.
    """
    if process_ends():
        return
    logger.critical("the process ends: %s", reason)
    timer = threading.Timer(SECONDS_TO_ANSWER, os._exit, (EXIT_STATUS,))
    timer.name, timer.daemon = ENDING, True
    timer.start()


def process_ends() -> bool:
    """Whether this process is about to end, whatever becomes of what it does."""
    return any(thread.name == ENDING for thread in threading.enumerate())
