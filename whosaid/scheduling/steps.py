"""Runs work in small steps: coroutines that yield to other work, resumed by hand, without asyncio.

    async def decode(data: bytes) -> Audio:
        for block in blocks(data):
            ...
            await give_way((decoded, expected))

    steps = decode(data)
    steps.send(None)  # a step: returns its report, at the end raises StopIteration with the result

The caller decides which thread takes a step, and what it does between two steps. No thread may take
a step of a coroutine or close it while another thread runs it.
"""

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def give_way(report: object = None) -> Generator[object, None, None]:
    """End the current step, and hand `report` to the caller of `send`."""
    yield report


def run_steps(coroutine: Coroutine[Any, None, T]) -> T:
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
