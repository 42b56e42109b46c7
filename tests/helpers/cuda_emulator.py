"""A CUDA device on a CPU, with real values: tensors that name the device, graphs that replay.

Tensors of the device are a subclass whose `device` is CUDA; a torch function mode sees every call
with them. It makes a Fault of what a GPU would refuse: tensors of both devices in one operation,
memory of the device read by numpy, a product that runs first inside a capture.

During a capture nothing is computed, as on a GPU: every aten operation is recorded with the memory
it reads and writes, outputs get memory of the capture's pool (reused once their tensor is dead, by
this graph and by later ones of the same pool), and that memory holds NaN and impossible indices. A
replay poisons the whole pool, then executes the recorded operations into the recorded memory. So
these show as wrong tokens or as a Fault, none of which a stand-in that runs the step's Python again
can show: a host value baked in, a value read or a host tensor uploaded while capturing, a tensor
made in one capture and read elsewhere, a result read after the next replay, host memory read
before its copy arrived, and graphs replayed over memory that was freed. Products of a capture have
the precision of the model, in layouts that a GPU multiplies fast, and the sizes of what a step
makes are counted.

Only torch's side is replaced: runner, keys, pools and what follows a failure are the engine's own.
Not emulated: kernels of half precision, other threads, library calls that synchronise inside one
operation, what a device has of memory and time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.weights import Whisper, WhisperModel
from whosaid.asr.engine import cuda_graphs, drafting, memory, speculative
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.rows import PaddedSizes
from whosaid.asr.model import cuda_attention
from whosaid.asr.model.decoder import ALIGNED

ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", RuntimeError)
CUDA = torch.device("cuda")
POISON = 0x7FFFFFFF  # NaN in every float, an impossible index in every integer
GRAIN, SEGMENT = 512, 1 << 22  # bytes; torch's own are 512 B and 2 or 20 MiB
WAITS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
ATTENTION = "scaled_dot_product_attention"  # composite, but one operation here
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv", "convolution", ATTENTION)
# Calls that make a product, as the engine writes them.
MULTIPLYING = ("linear", "matmul", "__matmul__", "mm", "baddbmm", "conv1d", ATTENTION)
READING = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
# Calls that read no memory; `__get__` is that of properties such as `shape`.
INSPECTING = ("__get__", "data_ptr", "dim", "is_contiguous", "numel", "size", "stride")
MASK_ALIGNMENT = 8  # positions; SDPA copies other masks into padded ones, in every layer
RANDOM = torch.Tag.nondeterministic_seeded


class Fault(AssertionError):
    """An error of a GPU, or a wrong use of one; not a RuntimeError, so nothing swallows it."""


class CudaTensor(torch.Tensor):
    """A tensor of the CPU that names CUDA as its device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)  # type: ignore[assignment]


class _Block(np.ndarray):
    """A block's memory while a tensor owns it; a class of its own, for weak references."""


class Stream:
    """Stands in for torch.cuda.Stream; `workspaces` is how often cuBLAS has freed what it keeps
    for the stream, which newer versions of torch let it do as soon as a graph captured there dies.
    """

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.priority = priority
        self.workspaces = 0

    def wait_stream(self, stream: object) -> None:
        """Everything here runs in order."""

    def wait_event(self, event: object) -> None:
        """Accepted; operations run in the order of their calls here."""

    def free_workspace(self) -> None:
        """A graph that was captured here has died."""
        self.workspaces += 1


class Pool:
    """A capture's private memory: best fit, split, given back when the tensor that owned it dies.

    Captures into it from several streams are a Fault: the allocator would not share its memory.
    `used` counts the bytes of its tensors."""

    def __init__(self) -> None:
        self.segments: list[np.ndarray] = []
        self.free: list[tuple[int, int, int]] = []  # segment, start, stop
        self.stream: Stream | None = None
        self.used = 0

    def new(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        span = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        needed = span * dtype.itemsize
        count = max(GRAIN, -(-needed // GRAIN) * GRAIN)
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
        self.used += needed
        block = self.segments[number][start : start + count].view(_Block)
        weakref.finalize(block, self._give_back, number, start, start + count, needed)
        return torch.from_numpy(block).view(dtype).as_strided(tuple(size), tuple(stride))

    def _give_back(self, number: int, start: int, stop: int, used: int) -> None:
        self.used -= used
        for each in [e for e in self.free if e[0] == number and (e[2] == start or e[1] == stop)]:
            self.free.remove(each)
            start, stop = min(start, each[1]), max(stop, each[2])
        self.free.append((number, start, stop))

    def shadow(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor that does not own its memory; None if the memory is not this pool's."""
        for segment in self.segments:
            offset = tensor.data_ptr() - segment.ctypes.data
            if tensor.numel() and 0 <= offset < len(segment):
                size = tensor.dtype.itemsize
                count = (len(segment) - offset % size) // size * size
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
        """Execute the recorded operations. Raises Fault if memory that they use was freed."""
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
        with torch._C.DisableTorchFunction():
            for function, args, kwargs, results in self.records:
                made = function(*args, **kwargs)
                if results:
                    for target, value in zip(results, _tensors(made), strict=True):
                        target.copy_(value)


@dataclasses.dataclass
class Sizes:
    """Sizes of a capture's tensors: elements of the largest by type, and bytes at once.
    `drafting_wide` are the most elements of float32 or wider while drafting."""

    largest: Counter[torch.dtype] = dataclasses.field(default_factory=Counter)
    peak_bytes: int = 0
    drafting_wide: int = 0


class StepSizes(NamedTuple):
    """The sizes of a captured step; each beam counts as a row."""

    rows: int
    shape: Any
    num_beams: int
    sizes: Sizes


class Recorder(TorchDispatchMode):
    """Records one capture; computes nothing."""

    # What an operation makes of shapes and types alone, over all captures: meta kernels are slow.
    shapes: ClassVar[dict[Any, Any]] = {}

    def __init__(self, graph: EmulatedGraph, memory: Pool, owner: Emulator) -> None:
        super().__init__()
        self.graph, self.memory, self.owner = graph, memory, owner
        self.sizes, self.used = Sizes(), memory.used

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to keep torch.compile out takes time at each operation."""
        return False

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
        if name in PRODUCTS:
            self.owner.check_product(name, _tensors((args, kwargs)))
        if operation.is_view:
            return function(*args, **kwargs)  # no work on the device
        recorded = map_tensors(self._shadow, args), map_tensors(self._shadow, kwargs)
        if operation.writes:
            self.graph.records.append((function, *recorded, []))
            return args[0] if len(function._schema.returns) == 1 else None
        made = map_tensors(self._new, self._shapes_of(function, args, kwargs))
        results = [self._shadow(each) for each in _tensors(made)]
        self.graph.records.append((function, *recorded, results))
        return made

    def _new(self, like: torch.Tensor) -> torch.Tensor:
        made, sizes = self.memory.new(like.size(), like.stride(), like.dtype), self.sizes
        sizes.largest[made.dtype] = max(sizes.largest[made.dtype], made.numel())
        sizes.peak_bytes = max(sizes.peak_bytes, self.memory.used - self.used)
        if self.owner.drafting and made.dtype in (torch.float32, torch.float64):
            sizes.drafting_wide = max(sizes.drafting_wide, made.numel())
        return made

    def _shapes_of(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return the operation's results as meta tensors."""
        key = (function, _signature(args), _signature(kwargs))
        if key not in self.shapes:
            named = map_tensors(_to_meta, kwargs)
            if "device" in named:
                named.update(device="meta", pin_memory=None)
            self.shapes[key] = function(*map_tensors(_to_meta, args), **named)
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

    __torch_function__ = torch._C._disabled_torch_function_impl
    emulator: Any = None

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy now, or with `non_blocking` when an event that is recorded later was awaited."""
        with torch._C.DisableTorchFunction():
            plain = self.as_subclass(torch.Tensor)
            if non_blocking:
                poison(plain.numpy().view(np.uint8).reshape(-1))
                self.emulator.copies.append((plain, source.clone()))
            else:
                plain.copy_(source)
        return self


class Emulator(TorchFunctionMode):
    """Captures and replays so far, failures of captures, and pending copies to the host. `fails`
    gives the error of capture number n, counted from 1, or None. It is raised at the end of the
    capture, as by cudaGraphInstantiate, or with `at_begin` before anything is recorded."""

    eager_seconds, capture_seconds, replay_seconds = 10.0, 50.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[int], Exception | None] = lambda _: None
        self.at_begin = False
        self.captures = self.replays = self.eager = 0
        self.clock = 0.0  # seconds that steps would have taken
        self.held: Counter[int] = Counter()  # tensors of ours over each outside storage
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.ran: set[object] = set()  # steps and products that ran eagerly
        self.recorder: Recorder | None = None
        self.dtype: torch.dtype | None = None  # of captured products
        self.drafting = False
        self.steps: list[StepSizes] = []  # that were captured
        self.uploads = 0  # blocking copies from the host
        self.waits = 0  # of the host for an event, or for a value or copy from the device
        self.stream: Stream | None = None  # the current one, None the device's own
        self.used_streams: set[Stream | None] = set()  # on which something was computed

    @property
    def capturing(self) -> bool:
        return self.recorder is not None

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, function.__name__
        if name in INSPECTING:
            made = function(*args, **kwargs)
            of_ours = isinstance(args[0], CudaTensor) and isinstance(made, torch.Tensor)
            return _on_device(made) if of_ours else made
        tensors = _tensors((args, kwargs)) if kwargs else _tensors(args)
        own = [each for each in tensors if isinstance(each, CudaTensor)]
        if own:
            self.used_streams.add(self.stream)
            self._check(name, args, tensors, bool(kwargs.get("non_blocking")))
        if name in ("to", "cpu"):
            return self._move(args[0], args[1:], kwargs, CUDA if name == "to" else "cpu")
        device = kwargs.get("device")
        if device is not None:
            own = own if torch.device(device).type == "cuda" else []
            if torch.device(device).type == "cuda":
                kwargs = {**kwargs, "device": "cpu"}
                own = [torch.empty(0)]
                if name in ("tensor", "as_tensor"):
                    self._upload(blocking=True)
        pinned = kwargs.pop("pin_memory", False)
        made = function(*args, **kwargs)
        if pinned:
            made = made.as_subclass(Pinned)
            made.emulator = self
            return made
        return map_tensors(_on_device, made) if own and name != "as_subclass" else made

    def _check(self, name: str, args: Any, tensors: list[torch.Tensor], non_blocking: bool) -> None:
        """Raise Fault for a call with tensors of the device that a GPU would refuse."""
        elsewhere = [each for each in tensors if each.device.type == "cpu" and each.dim()]
        if name in READING:
            if self.capturing:
                raise Fault("a value is read while capturing")
            self.waits += 1
        if name in ("numpy", "__array__"):
            raise Fault("numpy reads memory of the device")
        if name in ("__getitem__", "__setitem__") and any(
            each is not args[0] for each in _tensors(args[1]) if each.device.type == "cpu"
        ):
            raise Fault("a CUDA tensor is indexed by a tensor of the CPU")
        if name in ("copy_", "__setitem__") and elsewhere:
            to_host = isinstance(args[-1], CudaTensor)
            self._read() if to_host else self._upload(not non_blocking)
        elif elsewhere and name not in ("to", "__set__"):
            raise Fault(f"{name} of tensors on different devices")
        if name in MULTIPLYING:
            signature = (name, *((each.shape, each.dtype) for each in tensors))
            if not self.capturing:
                self.ran.add(signature)
            elif signature not in self.ran:
                raise Fault(f"{name} runs first inside a capture: {signature[1:]}")

    def _move(
        self, source: torch.Tensor, args: Any, kwargs: dict[str, Any], target: Any
    ) -> torch.Tensor:
        """Stand in for Tensor.to and Tensor.cpu."""
        named = [*args, *kwargs.values()]
        dtype = next((each for each in named if isinstance(each, torch.dtype)), source.dtype)
        if target is CUDA:
            found = [each for each in named if isinstance(each, torch.device | str | torch.Tensor)]
            target = getattr(found[0], "device", found[0]) if found else source.device
        target = torch.device(target)
        moves = target.type != source.device.type
        if moves and target.type == "cuda":
            self._upload(not kwargs.get("non_blocking"))
        elif moves:
            self._read()
        made = source.to(dtype, copy=moves or bool(kwargs.get("copy")))
        if moves:
            made = made.as_subclass(torch.Tensor)
        return _on_device(made) if target.type == "cuda" else made

    def check_product(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Raise Fault for a product that a GPU would refuse, or compute slowly."""
        # A mask of attention may be of booleans, beside operands of another type.
        kinds = {each.dtype for each in tensors} - {torch.bool}
        self.dtype = self.dtype or tensors[0].dtype
        if kinds != {self.dtype}:
            raise Fault(f"{name} in {sorted(map(str, kinds))} in a model of {self.dtype}")
        if name in ("bmm", "baddbmm") and any(
            each.dim() == 3 and each.shape[0] > 1 and each.stride(0) == 0 for each in tensors
        ):
            raise Fault(f"{name} reads the same weights once a row: its input is strided")
        positions = tensors[3].shape[-1] if name == ATTENTION and len(tensors) > 3 else 0
        if positions % MASK_ALIGNMENT:
            raise Fault(f"attention pads its mask of {positions} positions in every layer")
        if name in ("mm", "addmm") and tensors[-1].shape[1] % ALIGNED:
            raise Fault(f"{name} makes rows that do not begin at multiples of 16 bytes")

    def _read(self) -> None:
        if self.capturing:
            raise Fault("a copy from the device while capturing")
        self.waits += 1

    def _upload(self, blocking: bool) -> None:
        if self.capturing:
            raise Fault("a copy from the host while capturing")
        self.uploads += blocking

    # What stands in for torch's and the engine's functions

    @contextlib.contextmanager
    def graph(
        self, graph: EmulatedGraph, pool: Pool, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.captures += 1
        self.clock += self.capture_seconds
        if pool.stream is None:
            pool.stream = stream
        if pool.stream is not stream:
            raise Fault("a pool's graphs are captured on several streams")
        # No name keeps the error: by its traceback it would hold on to this frame, and the graph.
        failing = [each for each in (self.fails(self.captures),) if each is not None]
        if failing and self.at_begin:
            raise failing.pop()
        graph.pool, graph.owner = pool, self
        graph.stream, graph.workspace = stream, stream.workspaces
        weakref.finalize(graph, stream.free_workspace)
        self.recorder = Recorder(graph, pool, self)
        try:
            with self.recorder:
                yield
        finally:
            self.recorder = None
        if failing:
            raise failing.pop()
        self.held.update(graph.outside)
        weakref.finalize(graph, self.held.subtract, graph.outside)

    @contextlib.contextmanager
    def on_stream(self, stream: Stream | None) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def event(self) -> Any:
        emulator = self

        class Event:
            def record(self) -> None:
                self.arrives = list(emulator.copies)

            def synchronize(self) -> None:
                emulator.waits += 1
                with torch._C.DisableTorchFunction():
                    for target, value in self.arrives:
                        target.copy_(value)
                emulator.copies = [
                    each for each in emulator.copies if not any(each is own for own in self.arrives)
                ]

        return Event()

    def watched(self, step: Callable[..., None]) -> Callable[..., None]:
        """Count the decode step if it runs eagerly, measure it if it is captured."""

        def watch(state: Any, filters: Any, shape: Any) -> None:
            key = (state.rows.tokens.data_ptr(), state.capacity, shape)
            if self.recorder is None:
                self.ran.add(key)
                self.eager += 1
                self.clock += self.eager_seconds
                step(state, filters, shape)
                return
            if key not in self.ran:
                raise Fault("a step is captured before it ran eagerly")
            step(state, filters, shape)
            beams, sizes = state.cache.num_beams, self.recorder.sizes
            self.steps.append(StepSizes(state.capacity, shape, beams, sizes))

        return watch

    def watched_draft(self, draft: Callable[..., None]) -> Callable[..., None]:
        """Drafting, during which nothing wide is made."""

        def watch(*args: Any) -> None:
            self.drafting = True
            try:
                draft(*args)
            finally:
                self.drafting = False

        return watch


@contextlib.contextmanager
def emulated_cuda(patch: pytest.MonkeyPatch, **sizes: tuple[int, ...]) -> Iterator[Emulator]:
    """Emulate a device with 64 GiB; `on_cuda` moves models there. Few shapes are captured at load,
    those of `sizes` in place of some."""
    emulator = Emulator()
    for name, stand_in in {
        "CUDAGraph": EmulatedGraph,
        "graph": emulator.graph,
        "graph_pool_handle": Pool,
        "Event": emulator.event,
        "Stream": Stream,
        "stream": emulator.on_stream,
        "current_stream": lambda *_: emulator.stream,
        "mem_get_info": lambda *_: (64 << 30, 64 << 30),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "empty_cache": lambda: None,
    }.items():
        patch.setattr(torch.cuda, name, stand_in)
    patch.setattr(cuda_attention, "was_measured", lambda *_: False)
    patch.setattr(cuda_graphs, "_idle_streams", [])
    patch.setattr(cuda_graphs, "decode_step", emulator.watched(cuda_graphs.decode_step))
    patch.setattr(speculative, "draft", emulator.watched_draft(speculative.draft))
    # Five rows, and few sizes of everything.
    patch.setattr(memory, "CUDA_ROWS", ((0, 5),))
    few = {"rows": (1, 5), "positions": (64, 512), "prompt": (8, 64), "guess": (0, 64)}
    patch.setattr(CudaGraphRunner, "sizes", PaddedSizes(**few | sizes))
    patch.setattr(cuda_graphs, "PASS_SIZES", (2, 1))
    patch.setattr(CudaGraphRunner, "draft_lengths", (2, 4))
    patch.setattr(CudaGraphRunner, "timed_drafts", (0, 2, 4))
    patch.setattr(drafting, "TIMED_ROWS", (1,))
    with emulator:
        yield emulator


def on_cuda(models: WhisperModels) -> WhisperModels:
    """Return the models with their weights on the emulated device, which share their memory."""
    moved: dict[str, Any] = {"model": _moved(models.model)}
    if models.assistant is not None:
        model = _moved(models.assistant.model)
        moved["assistant"] = dataclasses.replace(models.assistant, model=model)
    if models.medusa is not None:
        heads = models.medusa
        parts = ("heads", "base", "block", "shortlist")
        on_device = {name: _map_parts(getattr(heads, name)) for name in parts}
        moved["medusa"] = dataclasses.replace(heads, **on_device)
    if models.conditioning is not None:
        read = models.conditioning
        parts = {name: _map_parts(getattr(read, name)) for name in ("weights", "blocks")}
        moved["conditioning"] = dataclasses.replace(read, **parts)
    return dataclasses.replace(models, **moved)


def _moved(model: WhisperModel) -> Whisper:
    weights = {name: _on_device(weight.detach()) for name, weight in model.named_parameters()}
    return Whisper(model.config, model.generation_config, weights)


def _map_parts(value: Any) -> Any:
    """Heads with their tensors on the device; their blocks are named tuples."""
    if isinstance(value, tuple):
        parts = [_map_parts(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return map_tensors(_on_device, value)


def named_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose device is the CPU, for functions of torch that compare devices."""
    with torch._C._DisableTorchDispatch():
        return tensor.as_subclass(torch.Tensor)


def module_on_cuda(module: torch.nn.Module) -> None:
    """Put the weights and buffers of a module of torch on the emulated device."""
    for each in module.modules():
        for name, weight in each._parameters.items():
            if weight is not None:
                moved = _on_device(weight.detach())
                each._parameters[name] = torch.nn.Parameter(moved, requires_grad=False)
        for name, buffer in each._buffers.items():
            each._buffers[name] = None if buffer is None else _on_device(buffer)


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, CudaTensor):
        return tensor
    with torch._C._DisableTorchDispatch():  # no operation of a capture
        return tensor.as_subclass(CudaTensor)


def held(runner: CudaGraphRunner, kind: str) -> list[tuple[Any, ...]]:
    """Return the keys of the graphs of one kind, rows or windows first."""
    keys: Any = [key for each in runner._sets.values() for key in each.graphs]
    return [key[1:] for key in keys if key[0] == kind]


def poison(memory: np.ndarray) -> None:
    """Fill bytes with what no computation may read."""
    whole = len(memory) // 4 * 4
    memory[:whole].view(np.uint32)[:] = POISON


class Operation(NamedTuple):
    """Cached facts about an aten operation; most operations are recorded thousands of times."""

    name: str
    composite: bool  # made of others, which are recorded in its place
    writes: bool
    is_view: bool
    waits: bool  # for a value of the device
    draws: bool

    @classmethod
    @functools.cache
    def of(cls, function: Any) -> Operation:
        schema, key = function._schema, "CompositeImplicitAutograd"
        name = schema.name.removeprefix("aten::")
        composite = bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))
        infos = [each.alias_info for each in schema.arguments]
        writes = any(each is not None and each.is_write for each in infos)
        aliases = any(each.alias_info is not None for each in schema.returns)
        return cls(
            name,
            composite and name != ATTENTION,
            writes,
            not writes and (aliases or name == "_unsafe_view"),
            name == "_local_scalar_dense"
            or (name not in INDEXED and any(tag in function.tags for tag in WAITS)),
            RANDOM in function.tags and name != ATTENTION,
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


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Arguments or results with every tensor changed; torch's trees take several times as long."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([map_tensors(change, each) for each in value])
    if isinstance(value, dict):
        return {key: map_tensors(change, each) for key, each in value.items()}
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
    if isinstance(made, dict):
        made = made.values()
    elif not isinstance(made, list | tuple):
        return []
    found = []
    for each in made:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple | dict):
            found += _tensors(each)
    return found
