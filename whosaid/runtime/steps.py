"""Runs work in small steps: coroutines that yield to other work, resumed by hand, without asyncio.

    async def decode(data: bytes) -> Audio:
        for block in blocks(data):
            ...
            await give_way((decoded, expected))

    steps = Steps(decode(data))
    while not steps.done:
        steps.advance()
    steps.result

The caller decides which thread takes a step, and what it does between two steps.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@types.coroutine
def give_way(report: object = None) -> Generator[object, None, None]:
    """End the current step, and hand `report` to the caller of `Steps.advance`."""
    yield report


class Steps(Generic[T]):
    """A coroutine that runs from one `give_way` to the next; for one thread at a time.

    Nothing runs before the first `advance`. `result` exists once the steps are `done`.
    """

    result: T

    def __init__(self, coroutine: Coroutine[Any, None, T]) -> None:
        self._coroutine = coroutine
        self.done = False

    def advance(self) -> Any:  # noqa: ANN401
        """Take one step. Return the coroutine's report, None at the end.

        Raises what the coroutine raises; no step follows then.
        """
        try:
            return self._coroutine.send(None)
        except StopIteration as end:
            self.result, self.done = end.value, True
            return None

    def close(self) -> None:
        """Free the coroutine's resources.

        Call this only in the thread that may advance the coroutine: a coroutine that runs in
        another thread must not be closed.
        """
        self._coroutine.close()


def run_steps(coroutine: Coroutine[Any, None, T]) -> T:
    steps = Steps(coroutine)
    while not steps.done:
        steps.advance()
    return steps.result
