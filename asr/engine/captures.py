"""Work over memory that stays where it is, captured as CUDA graphs and replayed.

Graphs belong to an owner, the memory that they were captured over, and are dropped with it. All
graphs of an owner share one memory pool, which is safe because they run one after the other and
their results are used up before the next one runs. And they share a capture stream that no other
owner has at the same time: cuBLAS keeps a workspace for each stream, graphs hold its address, and
newer versions of torch free it as soon as one graph that was captured on the stream goes
(pytorch#193402). So an owner's graphs go together, and take nothing from those of others.

Work runs eagerly before it is captured: libraries that create handles or compile kernels at first
use must not do so inside a capture (pytorch#99397). Where a capture fails, its owner's graphs are
dropped, the work runs eagerly, and captures are tried again some time later: slower, but right.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from runtime.errors import is_device_lost, is_out_of_memory
from runtime.versions import end_capture_allocation

logger = logging.getLogger("endpoint")

MAX_REFUSED = 3  # graphs of an owner for which memory was short; then captures pause
# After the first, second, third capture that failed so much work runs without another one; where
# captures fail after that too there are none any more.
PAUSES = (256, 2048, 16_384)
HIGH_PRIORITY = -1  # of a stream; newer versions of torch replay kernels with their own priority

T = TypeVar("T")


@dataclass(frozen=True)
class Captured(Generic[T]):
    """A graph and where it leaves its result."""

    graph: torch.cuda.CUDAGraph
    result: T


@dataclass
class GraphSet:
    """The graphs of one owner by key, with their pool and the stream they are captured on."""

    stream: torch.cuda.Stream
    pool: Any
    graphs: dict[Hashable, Captured[Any]] = field(default_factory=dict)
    seen: set[Hashable] = field(default_factory=set)  # what has run eagerly
    refused: set[Hashable] = field(default_factory=set)  # for whose graph memory was short

    def is_worth_capturing(self, key: Hashable) -> bool:
        """Whether it has run eagerly, and its graph was not refused."""
        return key in self.seen and key not in self.refused


class Captures:
    """Runs work eagerly at its first use, captures it at its second, replays it afterwards.

    With `enabled` False nothing is captured. `captured` and `dropped` count graphs so far.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.captured = self.dropped = 0
        self._sets: dict[Hashable, GraphSet] = {}
        self._streams: list[torch.cuda.Stream] = []  # which no owner has now
        self._failures = 0
        self._pause = 0  # so much work is left to run before the next capture

    @property
    def graph_count(self) -> int:
        """How many graphs are held."""
        return sum(len(each.graphs) for each in self._sets.values())

    def held(self) -> list[Hashable]:
        """What graphs there are for, all owners together."""
        return [key for each in self._sets.values() for key in each.graphs]

    def run(self, owner: Hashable, key: Hashable, work: Callable[[], T], capture: bool = True) -> T:
        """What `work` returns, tensors of which it makes new ones only where it runs eagerly.

        `work` must ask the device for no value, use no tensor of the host, and read and write what
        lives until `release(owner)`; all that it depends on besides is in `key`. What a replay
        returns is overwritten by the owner's next run. `capture` False runs it eagerly.
        """
        self._pause = max(0, self._pause - 1)
        if not (self.enabled and capture):
            return work()
        graphs = self._sets.get(owner)
        if graphs is None:
            graphs = self._sets[owner] = self._new_set()
        captured = graphs.graphs.get(key)
        if captured is None and not self._pause and graphs.is_worth_capturing(key):
            captured = self._capture(owner, key, work)
        if captured is None:
            graphs.seen.add(key)
            return work()
        captured.graph.replay()
        result: T = captured.result
        return result

    def release(self, owner: Hashable) -> None:
        """Drop an owner's graphs, before the memory they were captured over is freed."""
        graphs = self._sets.pop(owner, None)
        if graphs is not None:
            self.dropped += len(graphs.graphs)
            graphs.graphs.clear()
            self._streams.append(graphs.stream)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run eagerly for a while; graphs are kept."""
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled

    def disable(self, reason: str) -> None:
        """Run eagerly from now on, and say so."""
        for owner in list(self._sets):
            self.release(owner)
        if self.enabled:
            self.enabled = False
            logger.error("CUDA graphs are off, decoding is slower from now on: %s", reason)

    def _new_set(self) -> GraphSet:
        if not self._streams:
            stream = torch.cuda.Stream(priority=HIGH_PRIORITY)  # type: ignore[no-untyped-call]
            self._streams.append(stream)
        return GraphSet(self._streams.pop(), torch.cuda.graph_pool_handle())

    def _capture(self, owner: Hashable, key: Hashable, work: Callable[[], T]) -> Captured[T] | None:
        """The work as a graph; None where it could not be captured.

        A capture runs nothing, so the work can still be run eagerly after one that failed.
        """
        graphs = self._sets[owner]
        # A capture that fails leaves this thread on the capture's stream: the outer context mends
        # that. Another thread, that of diarization, may allocate during a capture.
        with torch.cuda.stream(torch.cuda.current_stream()):
            graph = torch.cuda.CUDAGraph()
            try:
                with (
                    _objects_frozen(),
                    torch.cuda.graph(graph, graphs.pool, graphs.stream, "thread_local"),
                ):
                    result = work()
                captured = graphs.graphs[key] = Captured(graph, result)
            except RuntimeError as error:
                if is_device_lost(error) and not _is_capture_error(error):
                    raise
                failure = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
                out_of_memory = is_out_of_memory(error)
            else:
                self.captured += 1
                return captured
        self._give_up(owner, key, failure, out_of_memory)
        return None

    def _give_up(self, owner: Hashable, key: Hashable, failure: str, out_of_memory: bool) -> None:
        """Drop the owner's graphs; pause captures, or only this one where memory was short."""
        end_capture_allocation(self._sets[owner].pool)
        refused = self._sets[owner].refused | {key}
        self.release(owner)
        if out_of_memory and len(refused) < MAX_REFUSED:
            logger.warning("no memory for the CUDA graph of %s: it runs eagerly", key)
            self._sets[owner] = self._new_set()
            self._sets[owner].refused = refused
            return
        self._failures += 1
        if self._failures > len(PAUSES):
            self.disable(f"{self._failures} captures failed, the last: {failure}")
            return
        self._pause = PAUSES[self._failures - 1]
        logger.warning(
            "a capture failed, the next CUDA graph is tried after %d steps: %s",
            self._pause,
            failure,
        )


def _is_capture_error(error: RuntimeError) -> bool:
    """Whether CUDA refused the capture, which is over then, rather than lost the device."""
    text = str(error).lower()
    return "captur" in text or "cublas" in text or "graph" in text


@contextmanager
def _objects_frozen() -> Iterator[None]:
    """Keep all objects out of the garbage collection with which torch 2.5 begins each capture."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
