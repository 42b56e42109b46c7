"""An event loop in a thread of its own, for callers that have none, or must not wait in theirs."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for callers of any thread; its own ends when nobody holds on to this."""

    def __init__(self, name: str) -> None:
        self._loop, unused = asyncio.new_event_loop(), asyncio.Event()
        run = partial(_run, self._loop, unused)
        threading.Thread(target=run, name=name, daemon=True).start()
        end = weakref.finalize(self, self._loop.call_soon_threadsafe, unused.set)
        end.atexit = False  # no thread begins or ends then

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns; it is cancelled where the wait for it is interrupted."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _run(loop: asyncio.AbstractEventLoop, unused: asyncio.Event) -> None:
    """Run the loop until it is `unused`.

    asyncio.Runner would then wait for the loop's idle threads with another one, which cannot begin
    where the interpreter is about to end.
    """
    try:
        loop.run_until_complete(_until(unused))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _until(unused: asyncio.Event) -> None:
    """What has not ended then is cancelled, and has its time to clean up."""
    await unused.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
