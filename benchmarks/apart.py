"""Runs an engine in its own process.

Engines never share a process: with more OpenMP threads than cores libgomp's threads sleep between
products, and the engines' memory could not be measured separately. A process that waits for its
turn sleeps, and so does not slow the others.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any


class EngineFailed(Exception):
    """An engine cannot be loaded or has failed; one line."""


class Apart:
    """An object that `make` returns in another process, where its methods are called."""

    def __init__(self, name: str, make: Callable[..., object], *arguments: object) -> None:
        self.name = name
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        self.call(make, *arguments)

    def call(self, method: str | Callable[..., object], *arguments: object) -> Any:  # noqa: ANN401
        """Return what the method returns; if it fails, end the process and raise EngineFailed."""
        try:
            return self._pool.submit(_call, method, *arguments).result()
        except (EngineFailed, BrokenProcessPool) as error:
            self.close()
            raise EngineFailed(f"{self.name}: {error}") from None

    def close(self) -> None:
        self._pool.shutdown()


# In the process
_made: list[Any] = []


def _call(method: str | Callable[..., object], *arguments: object) -> object:
    """Call the object's method of that name, or the function that makes the object."""
    warnings.simplefilter("ignore")
    try:
        if isinstance(method, str):
            return getattr(_made[0], method)(*arguments)
        _made.append(method(*arguments))
        return None
    except (Exception, SystemExit) as error:
        raise EngineFailed(" ".join(str(error).split()) or type(error).__name__) from None
