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

# When the device is lost: time for the answer to leave, and the status the platform sees.
SECONDS_TO_ANSWER, EXIT_STATUS = 1.0, 70


@contextmanager
def endpoint_errors() -> Iterator[None]:
    """Pass our own errors on and turn every other exception into one; the log says its origin.

    A lost device ends the process, so that the platform starts a new one.
    """
    try:
        yield
    except Exception as error:
        if any(is_device_lost(cause) for cause in causes(error)):
            _end_process(error)
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


def _end_process(error: Exception) -> None:
    """End this process a moment from now, after the client has been answered.

    After such an error every call to the device fails. Torch's message holds no user data.
    """
    reasons = [" ".join(str(cause).split()) for cause in causes(error)]
    logger.critical("the device is lost, the process ends: %s", reasons[-1])
    timer = threading.Timer(SECONDS_TO_ANSWER, os._exit, (EXIT_STATUS,))
    timer.daemon = True
    timer.start()
