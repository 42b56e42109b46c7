"""Runs an engine in a process of its own.

Engines never share a process. The OpenMP threads of one would put those of the next to sleep (more
threads than cores: libgomp sleeps between any two products), and their memory could not be measured
separately. A process that waits for its turn sleeps and takes no time from the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any


class EngineFailed(Exception):
    """An engine cannot be loaded or has failed; one line."""


class Apart:
    """A process in which functions of modules are called, one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Return what the function returns there; if it fails, end the process and raise
        EngineFailed.
        """
        try:
            return self._pool.submit(_call, function, *arguments).result()
        except (EngineFailed, BrokenProcessPool) as error:
            self.close()
            raise EngineFailed(f"{self.name}: {error}") from None

    def close(self) -> None:
        self._pool.shutdown()


def _call(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    warnings.simplefilter("ignore")
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise EngineFailed(" ".join(str(error).split()) or type(error).__name__) from None
