"""CUDA graphs on a CPU with real values: what a capture records is what a replay executes.

During a capture nothing is computed, as on a GPU: every aten operation is recorded with the memory
it reads and writes, outputs get memory of the capture's pool (reused once their tensor is dead, by
this graph and by later ones of the same pool), and that memory holds NaN and impossible indices. A
replay poisons the whole pool, then executes the recorded operations into the recorded memory. So
these show as wrong tokens or as a Fault, none of which a stand-in that runs the step's Python again
can show: a host value baked in, a value read or a host tensor uploaded while capturing, a tensor
made in one capture and read elsewhere, a result read after the next replay, host memory read
before its copy arrived, and graphs replayed over memory that was freed.

Only torch's side is replaced: runner, keys, pools and what follows a failure are the engine's own.
Not emulated: kernels of half precision, other threads and streams, library calls that synchronise
inside one operation, what a device has of memory and time.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whosaid.asr.engine import beam_search, cuda_graphs, drafting, state
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner, StepKey
from whosaid.asr.model import cpu_kernels, decoder, draft_heads, encoder
from whosaid.asr.model.decoder import PaddedLinear

ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", RuntimeError)
POISON = 0x7FFFFFFF  # NaN in every float, an impossible index in every integer
GRAIN, SEGMENT = 512, 1 << 22  # bytes; torch's own are 512 B and 2 or 20 MiB
WAITS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
LEAVES = ("scaled_dot_product_attention",)  # composite, but one operation here
RANDOM = torch.Tag.nondeterministic_seeded
EMPTY, COPY_WHAT_DIFFERS = torch.empty, beam_search._copy_what_differs


class Fault(AssertionError):
    """What a GPU would refuse, or what would be wrong there; no RuntimeError, so not swallowed."""


class _Block(np.ndarray):
    """A block's memory while a tensor owns it; a class of its own, for weak references."""


class Stream:
    """Stands in for torch.cuda.Stream; `workspaces` is how often cuBLAS has freed what it keeps
    for the stream, which newer versions of torch let it do as soon as a graph captured there dies.
    """

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.priority = priority
        self.workspaces = 0

    def free_workspace(self) -> None:
        """A graph that was captured here has died."""
        self.workspaces += 1


class Pool:
    """A capture's private memory: best fit, split, given back when the tensor that owned it dies.

    Captures into it from several streams are a Fault: the allocator would not share its memory.
    """

    def __init__(self) -> None:
        self.segments: list[np.ndarray] = []
        self.free: list[tuple[int, int, int]] = []  # segment, start, stop
        self.stream: Stream | None = None

    def new(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor in this memory."""
        span = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        count = max(GRAIN, -(-span * dtype.itemsize // GRAIN) * GRAIN)
        fitting = [each for each in self.free if each[2] - each[1] >= count]
        if not fitting:
            self.segments.append(np.zeros(max(SEGMENT, count), np.uint8))
            poison(self.segments[-1])
            fitting = [(len(self.segments) - 1, 0, len(self.segments[-1]))]
            self.free += fitting
        number, start, stop = min(fitting, key=lambda each: each[2] - each[1])
        self.free.remove((number, start, stop))
        if stop - start > count:
            self.free.append((number, start + count, stop))
        block = self.segments[number][start : start + count].view(_Block)
        weakref.finalize(block, self._give_back, number, start, start + count)
        return torch.from_numpy(block).view(dtype).as_strided(tuple(size), tuple(stride))

    def _give_back(self, number: int, start: int, stop: int) -> None:
        for each in [e for e in self.free if e[0] == number and (e[2] == start or e[1] == stop)]:
            self.free.remove(each)
            start, stop = min(start, each[1]), max(stop, each[2])
        self.free.append((number, start, stop))

    def shadow(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The same memory without owning it; None where it is not this pool's."""
        for segment in self.segments:
            offset = tensor.data_ptr() - segment.ctypes.data
            if tensor.numel() and 0 <= offset < len(segment):
                size = tensor.dtype.itemsize
                count = (len(segment) // size - 1) * size
                flat = torch.from_numpy(segment[offset % size :][:count]).view(tensor.dtype)
                return flat.as_strided(tensor.size(), tensor.stride(), offset // size)
        return None


class EmulatedGraph:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self.outside: Counter[int] = Counter()  # storages read or written that are no pool's
        self.constants: dict[int, torch.Tensor] = {}  # host scalars, which a launch carries with it
        self.pool, self.stream, self.workspace = Pool(), Stream(), 0
        self.owner: Emulator | None = None

    def replay(self) -> None:
        """Execute what was recorded. Raises Fault where memory it uses was freed."""
        assert self.owner is not None
        self.owner.replays += 1
        self.owner.clock += self.owner.replay_seconds
        for storage in self.outside:
            if torch._C._storage_Use_Count(storage) <= self.owner.held[storage]:
                raise Fault("a graph is replayed over memory that was freed")
        if self.stream.workspaces != self.workspace:
            raise Fault("a graph is replayed after another one of its stream has died")
        for segment in self.pool.segments:
            poison(segment)
        for function, args, kwargs, results in self.records:
            made = function(*args, **kwargs)
            if results:
                for target, value in zip(results, _tensors(made), strict=True):
                    target.copy_(value)


class Recorder(TorchDispatchMode):
    """Records one capture; computes nothing."""

    # What an operation makes of shapes and types alone, over all captures: meta kernels are slow.
    shapes: ClassVar[dict[Any, Any]] = {}

    def __init__(self, graph: EmulatedGraph, memory: Pool) -> None:
        super().__init__()
        self.graph, self.memory = graph, memory

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, operation = kwargs or {}, Operation.of(function)
        name = operation.name
        if operation.composite:
            with self:
                made = function.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name == "lift_fresh" and not args[0].dim():
            constant = args[0].clone()  # `tensor[place] = 1`: on CUDA no copy, but baked in
            self.graph.constants[constant.untyped_storage()._cdata] = constant
            return constant
        _refuse(operation, args)
        if operation.is_view:
            return function(*args, **kwargs)  # no work on the device
        recorded = _map_tensors(self._shadow, args), _map_tensors(self._shadow, kwargs)
        if operation.writes:
            self.graph.records.append((function, *recorded, []))
            return args[0] if len(function._schema.returns) == 1 else None
        made = _map_tensors(
            lambda each: self.memory.new(each.size(), each.stride(), each.dtype),
            self._shapes_of(function, args, kwargs),
        )
        results = [self._shadow(each) for each in _tensors(made)]
        self.graph.records.append((function, *recorded, results))
        return made

    def _shapes_of(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What the operation returns, as meta tensors."""
        key = (function, _signature(args), _signature(kwargs))
        if key not in self.shapes:
            named = _map_tensors(_to_meta, kwargs)
            if "device" in named:
                named.update(device="meta", pin_memory=None)
            self.shapes[key] = function(*_map_tensors(_to_meta, args), **named)
        return self.shapes[key]

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        own = self.memory.shadow(tensor)
        if own is not None:
            return own
        alias = tensor.detach()
        storage = alias.untyped_storage()._cdata
        if tensor.numel() and storage not in self.graph.constants:
            self.graph.outside[storage] += 1
        return alias


class Pinned(torch.Tensor):
    """Host memory: what is copied to it from the device is there when an event says so."""

    emulator: Any = None

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy now, or with `non_blocking` when an event that is recorded later was awaited."""
        plain = self.as_subclass(torch.Tensor)
        if not non_blocking:
            plain.copy_(source)
            return self
        poison(plain.numpy().view(np.uint8).reshape(-1))
        self.emulator.copies.append((plain, source.clone()))
        return self


class Emulator:
    """What was captured and replayed, which captures fail, and copies to the host under way.

    `fails` gives the error of capture number n, counted from 1, or None. It is raised where the
    capture ends, as by cudaGraphInstantiate, or with `at_begin` before anything is recorded.
    """

    eager_seconds, capture_seconds, replay_seconds = 10.0, 50.0, 1.0

    def __init__(self) -> None:
        self.fails: Callable[[int], Exception | None] = lambda _: None
        self.at_begin = False
        self.captures = self.replays = self.eager = 0
        self.clock = 0.0  # seconds that steps would have taken
        self.pools: list[Pool] = []  # of each capture
        self.held: Counter[int] = Counter()  # tensors of ours over each outside storage
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.operations: Counter[str] = Counter()  # recorded, by name
        self.shape: Any = None  # of the step that runs
        self.ran: set[object] = set()  # steps that ran eagerly
        self.capturing = False

    @contextlib.contextmanager
    def graph(
        self, graph: EmulatedGraph, pool: Pool, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        """Stand in for torch.cuda.graph."""
        assert capture_error_mode == "thread_local"
        self.captures += 1
        self.clock += self.capture_seconds
        self.pools.append(pool)
        if pool.stream is None:
            pool.stream = stream
        if pool.stream is not stream:
            raise Fault("a pool's graphs are captured on several streams")
        # No name keeps the error: by its traceback it would hold on to this frame, and the graph.
        failing = [each for each in (self.fails(self.captures),) if each is not None]
        if failing and self.at_begin:
            raise failing.pop()
        graph.pool, graph.owner, self.capturing = pool, self, True
        graph.stream, graph.workspace = stream, stream.workspaces
        weakref.finalize(graph, stream.free_workspace)
        try:
            with Recorder(graph, pool):
                yield
        finally:
            self.capturing = False
        if failing:
            raise failing.pop()
        self.operations.update(record[0].name() for record in graph.records)
        self.held.update(graph.outside)
        weakref.finalize(graph, self.held.subtract, graph.outside)

    def event(self) -> Any:
        """Stand in for torch.cuda.Event."""
        emulator = self

        class Event:
            def record(self) -> None:
                self.arrives = list(emulator.copies)

            def synchronize(self) -> None:
                for target, value in self.arrives:
                    target.copy_(value)
                emulator.copies = [
                    each for each in emulator.copies if not any(each is own for own in self.arrives)
                ]

        return Event()

    def empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        """Stand in for torch.empty."""
        made = EMPTY(*size, **options)
        if not pin_memory:
            return made
        pinned = made.as_subclass(Pinned)
        pinned.emulator = self
        return pinned

    def watched(self, step: Callable[..., None]) -> Callable[..., None]:
        """The decode step, counted where it runs eagerly."""

        def watch(state: Any, filters: Any, shape: Any) -> None:
            self.shape, key = shape, (state.rows.tokens.data_ptr(), state.capacity, shape)
            if not self.capturing:
                self.ran.add(key)
                self.eager += 1
                self.clock += self.eager_seconds
            elif key not in self.ran:
                raise Fault("a step is captured before it ran eagerly")
            step(state, filters, shape)

        return watch


def emulate_graphs(patch: pytest.MonkeyPatch) -> Emulator:
    """Engines made from now on take their device for CUDA. Few shapes are captured at load."""
    emulator = Emulator()
    patch.setattr(
        "whosaid.asr.engine.engine.runner_for", lambda _, enabled: CudaGraphRunner(enabled)
    )
    for name, stand_in in {
        "CUDAGraph": EmulatedGraph,
        "graph": emulator.graph,
        "graph_pool_handle": Pool,
        "Event": emulator.event,
        "Stream": Stream,
        "current_stream": lambda *_: None,
        "stream": lambda _: contextlib.nullcontext(),
        "mem_get_info": lambda _: (64 << 30, 64 << 30),
    }.items():
        patch.setattr(torch.cuda, name, stand_in)
    patch.setattr(torch, "empty", emulator.empty)
    patch.setattr(cuda_graphs, "decode_step", emulator.watched(cuda_graphs.decode_step))
    # The branches that ask for the type of the device.
    patch.setattr(
        beam_search,
        "_copy_what_differs",
        lambda cache, texts, parents, rows: beam_search._copy_all(
            cache, parents, emulator.shape.kv_len
        ),
    )
    patch.setattr(cpu_kernels, "AVAILABLE", False)
    for module in (decoder, encoder):
        patch.setattr(module, "encoder_batch_size", lambda windows, device: windows)
    for module in (decoder, draft_heads):
        patch.setattr(module, "vocabulary_product", lambda weight, dtype: PaddedLinear(weight))
    # Five rows, and few sizes of everything.
    patch.setattr(state, "CUDA_ROWS", ((0, 5),))
    for name, sizes in {"rows": (1, 5), "positions": (64, 512), "prompt": (8, 64)}.items():
        patch.setitem(cuda_graphs.SIZES, name, sizes)
    patch.setitem(cuda_graphs.SIZES, "guess", (0, 64))
    patch.setattr(drafting, "TIMED_ROWS", (1,))
    return emulator


def held_steps(runner: CudaGraphRunner) -> list[StepKey]:
    """What the graphs of steps that it holds were captured for."""
    return [key for key in runner.held() if isinstance(key, StepKey)]


def poison(memory: np.ndarray) -> None:
    """Fill bytes with what no computation may read."""
    whole = len(memory) // 4 * 4
    memory[:whole].view(np.uint32)[:] = POISON


class Operation(NamedTuple):
    """What is to be known of an operation of aten; most are recorded thousands of times."""

    name: str
    composite: bool  # made of others, which are recorded in its place
    writes: bool
    is_view: bool
    waits: bool  # for a value of the device
    draws: bool

    @classmethod
    @functools.cache
    def of(cls, function: Any) -> Operation:
        """That of an overload."""
        schema, key = function._schema, "CompositeImplicitAutograd"
        name = schema.name.removeprefix("aten::")
        composite = bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))
        infos = [each.alias_info for each in schema.arguments]
        writes = any(each is not None and each.is_write for each in infos)
        aliases = any(each.alias_info is not None for each in schema.returns)
        return cls(
            name,
            composite and name not in LEAVES,
            writes,
            not writes and (aliases or name == "_unsafe_view"),
            name == "_local_scalar_dense"
            or (name not in INDEXED and any(tag in function.tags for tag in WAITS)),
            RANDOM in function.tags and name not in LEAVES,
        )


def _refuse(operation: Operation, args: Any) -> None:
    """Raise Fault for an operation that no capture may hold."""
    name = operation.name
    if operation.waits:
        raise Fault(f"{name} reads a value while capturing")
    if name == "lift_fresh":
        raise Fault("a tensor is made of host values while capturing")
    if operation.draws:
        raise Fault(f"{name} draws random numbers while capturing")
    if name in INDEXED and any(
        each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
    ):
        raise Fault("a boolean index makes the host wait while capturing")


def _map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Arguments or results with every tensor changed; torch's trees take several times as long."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_map_tensors(change, each) for each in value])
    if isinstance(value, dict):
        return {key: _map_tensors(change, each) for key, each in value.items()}
    return value


def _signature(value: Any) -> Any:
    """Arguments as far as shapes depend on them, hashable."""
    if isinstance(value, torch.Tensor):
        return value.size(), value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(_signature(each) for each in value)
    if isinstance(value, dict):
        return tuple((key, _signature(each)) for key, each in value.items())
    return type(value), value


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensors(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made]
    return (
        [each for part in made for each in _tensors(part)] if isinstance(made, list | tuple) else []
    )
