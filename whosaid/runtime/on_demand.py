"""Keeps models in memory while requests use them, and frees the memory after an idle time.

async with models.use() as loaded:
    ...
"""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Lock, Timer
from typing import Generic, TypeVar

import torch

from whosaid.errors import ModelError, StartError
from whosaid.runtime.errors import endpoint_errors
from whosaid.runtime.host_memory import return_freed

logger = logging.getLogger("endpoint")

M = TypeVar("M")


class OnDemand(Generic[M]):
    """`models`, which are unloaded by `unload` after `seconds` without use, if given, and loaded
    again by `load`. `end` follows the last unload. Safe to use from any thread.
    """

    def __init__(
        self,
        models: M,
        load: Callable[[], M],
        unload: Callable[[M], None],
        seconds: float | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._models: M | None = models
        self._load, self._unload, self._seconds, self._end = load, unload, seconds, end
        self._users = 0
        self._timer: Timer | None = None
        self._lock = Lock()  # held briefly
        self._changing = Lock()  # held while models load or unload
        self._rest()

    @property
    def current(self) -> M | None:
        return self._models

    @property
    def in_use(self) -> M:
        """Return the models, within a block of `use`."""
        assert self._models is not None, "the caller is not within `use`"
        return self._models

    @asynccontextmanager
    async def use(self) -> AsyncIterator[M]:
        """Yield the models, loaded again if need be; they stay until the block ends.

        Raises ModelError or OutOfMemory if they cannot be loaded; the next use tries again.
        """
        with self._lock:
            self._users += 1
            models = self._models
        try:
            if models is None:
                models = await asyncio.to_thread(self._loaded_again)
            yield models
        finally:
            with self._lock:
                self._users -= 1
            self._rest()

    def close(self) -> None:
        with self._changing:
            self._seconds = None
            if self._timer is not None:
                self._timer.cancel()
            models, self._models = self._models, None
            if models is not None:
                self._unload(models)
            self._end()

    def _loaded_again(self) -> M:
        with self._changing, endpoint_errors():
            if self._models is None:
                began = time.perf_counter()
                try:
                    self._models = self._load()
                except StartError as error:
                    logger.error("the models cannot be loaded again: %s", error)
                    raise ModelError(
                        "the models cannot be loaded again; the endpoint's log says why"
                    ) from error
                logger.info("models loaded again in %.1f s", time.perf_counter() - began)
            models = self._models
        self._rest()  # the request may have been cancelled meanwhile
        return models

    def _rest(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._users or self._seconds is None or self._models is None:
                return
            self._timer = Timer(self._seconds, self._unload_unused)
            self._timer.daemon = True
            self._timer.start()

    def _unload_unused(self) -> None:
        with self._changing:
            with self._lock:
                if self._users or self._models is None:
                    return
                models, self._models = self._models, None
            self._unload(models)
            del models
            gc.collect()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch._C._cuda_clearCublasWorkspaces()  # of each stream; empty_cache keeps them
                torch.cuda.empty_cache()
            return_freed()
        logger.info("models unloaded after %g s without requests", self._seconds or 0)
