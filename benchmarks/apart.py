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
        self._run(_make, make, *arguments)

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Return what the method returns; if it fails, end the process and raise EngineFailed."""
        return self._run(_call, method, *arguments)

    def close(self) -> None:
        self._pool.shutdown()

    def _run(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        try:
            return self._pool.submit(_in_one_line, function, *arguments).result()
        except (EngineFailed, BrokenProcessPool) as error:
            self.close()
            raise EngineFailed(f"{self.name}: {error}") from None


# In the process
_made: list[Any] = []


def _make(make: Callable[..., object], *arguments: object) -> None:
    _made.append(make(*arguments))


def _call(method: str, *arguments: object) -> object:
    return getattr(_made[0], method)(*arguments)


def _in_one_line(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    warnings.simplefilter("ignore")
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise EngineFailed(" ".join(str(error).split()) or type(error).__name__) from None
