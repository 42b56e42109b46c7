"""An event loop in its own thread, for callers that have no loop or must not block theirs."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for callers of any thread; the thread ends when this object is collected."""

    def __init__(self, name: str) -> None:
        self._loop, unused = asyncio.new_event_loop(), asyncio.Event()
        run = partial(_run, self._loop, unused)
        threading.Thread(target=run, name=name, daemon=True).start()
        end = weakref.finalize(self, self._loop.call_soon_threadsafe, unused.set)
        end.atexit = False  # at the interpreter's exit no thread is started or ended

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result; cancel the coroutine if the wait is interrupted."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _run(loop: asyncio.AbstractEventLoop, unused: asyncio.Event) -> None:
    """Run `loop` until `unused` is set, then close it. asyncio.Runner would wait for idle threads
    with another thread, which cannot start while the interpreter exits.
    """
    try:
        loop.run_until_complete(_until(unused))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _until(unused: asyncio.Event) -> None:
    await unused.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)  # their clean-up
