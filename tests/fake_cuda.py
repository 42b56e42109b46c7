"""A CUDA device that is not there: shapes, types and devices are computed, numbers are not.

Torch's FakeTensorMode runs the engine's own code with `device="cuda"` on any machine. `FakeCuda`
watches every operation under it and raises CudaFault for what a GPU would refuse, for what would
make it wait, and for tensors larger than a step needs. A fault is raised where it happens, so that
the traceback names the line. Graphs, streams and events are stood in for by `fake_cuda`, which
undoes everything at its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from oracle import random_heads
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.support.tiny_whispers import Published, loaded, model_of
from tests.support.transformers_models import decoder_alone
from whosaid.asr.checkpoint.loading import Assistant, WhisperModels
from whosaid.asr.checkpoint.medusa import LINEAR, Heads, MedusaHeads, ResidualBlocks
from whosaid.asr.engine import cuda_graphs, results, speculative
from whosaid.asr.engine.runner import StepResult
from whosaid.asr.engine.speculative import decode_step
from whosaid.asr.model.decoder import ALIGNED

# Whisper large-v3's vocabulary, so that sizes of intermediates mean something; few layers.
FAKE_LARGE = Published(languages=100, mel_bins=128, encoder_layers=1, decoder_layers=1)
GIB = 1 << 30
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv", "convolution")
ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_cudnn_attention")
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
SYNCHRONISING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
UNKNOWN = (*SYNCHRONISING, torch.Tag.inplace_view)  # shapes that arguments' do not tell, or change
MASK_ALIGNMENT = 8  # positions; SDPA copies other masks into padded ones, in every layer


class CudaFault(AssertionError):
    """What would fail or be slow on a GPU."""


@dataclasses.dataclass
class StepSizes:
    """Sizes of what a step creates, per row and position: elements by type, and bytes at once."""

    rows: int
    shape: tuple[Any, ...]
    largest: dict[torch.dtype, float]
    peak_bytes: float
    drafting_wide: float  # elements of float32 or wider per row while drafting
    num_beams: int = 1  # each counts as a row in the sizes


class FakeGraph:
    """Stands in for torch.cuda.CUDAGraph."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1


class FakeCuda(TorchDispatchMode):
    """Watches every operation; also the counters of the graphs and the answers of the device."""

    # Of operations over such shapes: size, strides, type and device of each that they make.
    made: ClassVar[dict[Any, list[tuple[Any, ...]]]] = {}

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode
        self.capturing = False
        self.pools: list[object] = []  # of every capture, in order
        self.handles: list[object] = []  # every pool that was made
        self.run_eagerly: set[object] = set()  # products, by operation, shapes and types
        self.steps: list[StepSizes] = []
        self.launched: set[tuple[int, Any]] = set()
        self.synchronisations = 0
        self.uploads = 0  # blocking copies from the host
        self.script = Script()
        self.stream: FakeStream | None = None  # the current one, None the device's own
        self.used_streams: set[FakeStream | None] = set()  # on which something was computed
        self._step: _Step | None = None
        self._drafting = False
        self._num_beams = 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to keep torch.compile out takes time at each operation."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return _device(args[0])
        kwargs = kwargs or {}
        name, is_composite, waits = _operation(func)
        if is_composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        tensors = list(_tensors((*args, *kwargs.values())))
        if any(_device(each).type == "cuda" for each in tensors):
            self.used_streams.add(self.stream)
        self._check_devices(name, args, kwargs, tensors)
        self._check_products(name, tensors)
        if name == "_local_scalar_dense" and isinstance(tensors[0], FakeTensor):
            return self._read_value(tensors[0])
        if self._watched and waits:
            raise CudaFault(f"{name} makes the host wait inside a step")
        result = self._compute(func, args, kwargs, tensors)
        if self._step:
            self._step.count(result, tensors, self._drafting)
        return result

    def _compute(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]
    ) -> Any:
        """What torch's fake mode makes of it. That takes most of the time, so operations on one
        device are run on "meta" in its place, and what becomes of the same shapes is asked once.
        """
        kind, mode = _kind(func), self.mode
        if kind is None or not all(
            isinstance(each, FakeTensor) and each.constant is None for each in tensors
        ):
            return func(*args, **kwargs)
        if kind == "view":
            return self._on_meta(func, args, kwargs, tensors[0].fake_device)
        key = func, _shapes((args, kwargs)), torch.is_inference_mode_enabled()
        if key not in self.made:
            (device, *others) = {each.fake_device for each in tensors} or (None,)
            if device is None or others or kwargs.get("device"):
                result = func(*args, **kwargs)
            else:
                result = self._on_meta(func, args, kwargs, device)
            made = result if isinstance(result, tuple) else (result,)
            if any(not isinstance(each, FakeTensor) or each.constant is not None for each in made):
                return result
            self.made[key] = [
                (each.size(), each.stride(), each.dtype, each.fake_device) for each in made
            ]
            return args[0] if kind == "written" else result
        if kind == "written":
            return args[0]
        with torch._C._DisableTorchDispatch():
            made = tuple(
                FakeTensor(
                    mode, torch.empty_strided(size, stride, dtype=dtype, device="meta"), device
                )
                for size, stride, dtype, device in self.made[key]
            )
        return made if len(made) > 1 else made[0]

    def _on_meta(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> Any:
        """What the operation makes, on `device`."""
        with in_kernel_invocation_manager(self.mode):
            made = func(*args, **kwargs)
        if isinstance(made, FakeTensor):  # written in place
            return made
        if isinstance(made, torch.Tensor):
            return FakeTensor(self.mode, made, device)
        return type(made)(
            FakeTensor(self.mode, each, device) if isinstance(each, torch.Tensor) else each
            for each in made
        )

    @property
    def _watched(self) -> bool:
        """Whether what runs is a step, or anything else that is captured."""
        return self._step is not None or self.capturing

    def _read_value(self, tensor: torch.Tensor) -> float:
        if _device(tensor).type == "cuda":
            self.synchronisations += 1
            if self._watched:
                raise CudaFault("a value is read from the device inside a step")
        return self.script.value(tensor)

    def values(self, tensor: torch.Tensor) -> Any:
        """Stand in for FakeTensor.tolist, which asks for every number by itself."""
        return np.full(tuple(tensor.shape), self._read_value(tensor)).tolist()

    def _check_devices(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]
    ) -> None:
        devices = [_device(each).type for each in tensors]
        if name == "copy_":
            target, source = args[0], args[1]
            # torch fills with a single number of the host: no copy.
            self._check_copy(source, _device(target), source.dim() > 0, _non_blocking(args, kwargs))
        elif name == "_to_copy":
            target = torch.device(kwargs.get("device") or _device(args[0]))
            self._check_copy(args[0], target, True, bool(kwargs.get("non_blocking")))
        elif name in INDEXED:
            indices = [each for each in args[1] if each is not None]
            if devices[0] == "cuda" and any(_device(each).type != "cuda" for each in indices):
                raise CudaFault("a CUDA tensor is indexed by a tensor of the CPU")
            if self._watched and any(each.dtype in (torch.bool, torch.uint8) for each in indices):
                raise CudaFault("a boolean index makes the host wait inside a step")
        elif len(set(devices)) > 1 and len({_device(t).type for t in tensors if t.dim()}) > 1:
            raise CudaFault(f"{name} of tensors on different devices")

    def _check_copy(
        self, source: torch.Tensor, target: torch.device, counts: bool, non_blocking: bool
    ) -> None:
        if _device(source).type == target.type or not counts:
            return
        if self._watched:
            raise CudaFault(f"a copy from {_device(source).type} to {target.type} inside a step")
        if target.type == "cuda" and not non_blocking:
            self.uploads += 1

    def _check_products(self, name: str, tensors: list[torch.Tensor]) -> None:
        if name not in PRODUCTS and name not in ATTENTION:
            return
        # A mask of attention may be of booleans, beside operands of another type.
        kinds = {each.dtype for each in tensors} - {torch.bool}
        if len(kinds) > 1:
            raise CudaFault(f"{name} of different types: {sorted(map(str, kinds))}")
        if not self._watched:
            if _device(tensors[0]).type == "cuda":
                self.run_eagerly.add(_signature(name, tensors))
            return
        if kinds != {torch.float16}:
            raise CudaFault(f"{name} in {kinds.pop()} inside a step of float16")
        if name in ("bmm", "baddbmm") and any(
            each.dim() == 3 and each.shape[0] > 1 and each.stride(0) == 0 for each in tensors
        ):
            raise CudaFault(f"{name} reads the same weights once a row: its input is strided")
        positions = tensors[3].shape[-1] if name in ATTENTION and len(tensors) > 3 else 0
        if positions % MASK_ALIGNMENT:
            raise CudaFault(f"attention pads its mask of {positions} positions in every layer")
        signature = _signature(name, tensors)
        if not self.capturing:
            self.run_eagerly.add(signature)
        elif signature not in self.run_eagerly:
            raise CudaFault(f"{name} runs first inside a capture: {signature}")
        if name in ("mm", "addmm") and tensors[-1].shape[1] % ALIGNED:
            raise CudaFault(f"{name} makes rows that do not begin at multiples of 16 bytes")

    # What stands in for the engine's and torch's functions

    @contextlib.contextmanager
    def graph(self, _graph: FakeGraph, pool: object, *_: object) -> Iterator[None]:
        """Stand in for torch.cuda.graph."""
        if pool not in self.handles:
            raise CudaFault("a capture outside the shared pool")
        self.pools.append(pool)
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    @contextlib.contextmanager
    def on_stream(self, stream: FakeStream | None) -> Iterator[None]:
        """Stand in for torch.cuda.stream."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def new_pool(self) -> object:
        """Stand in for torch.cuda.graph_pool_handle."""
        self.handles.append(object())
        return self.handles[-1]

    def decode_step(self, state: Any, filters: Any, shape: Any) -> None:
        """The step itself, watched."""
        self.launched.add((state.capacity, shape))
        self._step = _Step()
        try:
            decode_step(state, filters, shape)
        finally:
            step, self._step = self._step, None
        beams = state.main.cache.num_beams
        places = state.capacity * beams * (shape.drafts + 1)
        largest = {dtype: count / places for dtype, count in step.largest.items()}
        drafting = step.drafting_wide / state.capacity
        self.steps.append(
            StepSizes(state.capacity, shape, largest, step.peak / places, drafting, beams)
        )

    def draft(self, *args: Any) -> None:
        """Drafting itself, watched."""
        self._drafting = True
        try:
            DRAFT(*args)
        finally:
            self._drafting = False

    def launch(self, runner: Any, state: Any, *step: Any) -> Any:
        """The runner's own launch; what it copies out belongs to the batch of `state`."""
        self._num_beams = state.main.cache.num_beams
        return LAUNCH(runner, state, *step)

    def copy_out(self, result: torch.Tensor) -> Any:
        """The transfer itself; what arrives is made up."""
        COPY_OUT(result)
        return self.script.result(result.shape[1], self._num_beams)


class Script:
    """The numbers that a device would give: every row grows, every other row ends now and then.

    In each batch, one for every number of beams, on its own.
    """

    stride, period = 30, 4  # tokens a step; steps, of which the last two end rows

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def value(self, tensor: torch.Tensor) -> float:
        """A single number: a common token, a length, a probability."""
        if tensor.dtype == torch.bool:
            return False
        return 0.5 if tensor.is_floating_point() else 4

    def result(self, rows: int, num_beams: int) -> Any:
        """What became of the rows of the next step."""
        self.counts[num_beams] += 1
        place = self.counts[num_beams] % self.period
        ends = place >= self.period - 2
        length = min(440, 8 + self.stride * (place + 1))
        finished = [int(ends and row % 2 == 0) for row in range(rows)]
        return lambda: StepResult([length] * rows, finished, [1] * rows, [2] * rows)


class _Step:
    """Sizes of the tensors that one step creates."""

    def __init__(self) -> None:
        self.largest: dict[torch.dtype, int] = {}
        self.live: dict[int, int] = {}
        self.bytes = self.peak = self.drafting_wide = 0

    def count(self, result: Any, inputs: list[torch.Tensor], drafting: bool) -> None:
        known = {each.untyped_storage()._cdata for each in inputs}
        for each in _tensors((result,)):
            storage = each.untyped_storage()
            if storage._cdata in known or storage._cdata in self.live:
                continue
            self.largest[each.dtype] = max(self.largest.get(each.dtype, 0), each.numel())
            if drafting and each.dtype in (torch.float32, torch.float64):
                self.drafting_wide = max(self.drafting_wide, each.numel())
            self.live[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self._free, storage._cdata)
            self.bytes += storage.nbytes()
            self.peak = max(self.peak, self.bytes)

    def _free(self, storage: int) -> None:
        self.bytes -= self.live.pop(storage)


class HostArray:
    """Stands in for a fake tensor on its way to numpy, which fake tensors do not know."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def cpu(self) -> HostArray:
        return HostArray(self.tensor.cpu())

    def numpy(self) -> Any:
        return np.zeros(tuple(self.tensor.shape), np.float32)


DRAFT, COPY_OUT = speculative.draft, cuda_graphs._copy_out
LAUNCH = cuda_graphs.CudaGraphRunner.launch
NORMALIZE = results.normalize_attention


@contextlib.contextmanager
def fake_cuda(patch: Any, memory: int = 80 * GIB) -> Iterator[FakeCuda]:
    """A CUDA device with `memory` bytes; `patch` is pytest's monkeypatch."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    device = FakeCuda(mode)
    for name, stand_in in {
        "CUDAGraph": FakeGraph,
        "graph": device.graph,
        "graph_pool_handle": device.new_pool,
        "Event": FakeEvent,
        "Stream": FakeStream,
        "stream": device.on_stream,
        "current_stream": lambda *_: device.stream,
        "mem_get_info": lambda *_: (memory, memory),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "empty_cache": lambda: None,
        "get_device_capability": lambda *_: (9, 0),
    }.items():
        patch.setattr(torch.cuda, name, stand_in)
    # Fake tensors have no addresses; their storages tell them apart.
    patch.setattr(FakeTensor, "data_ptr", lambda each: each.untyped_storage()._cdata, raising=False)
    patch.setattr(FakeTensor, "tolist", lambda each: device.values(each))
    for name in [each for each in vars(FakeTensor) if each.endswith("_memo")]:
        # Of sizes that are not known; they are set in every tensor, and slowly.
        patch.setattr(FakeTensor, name, None, raising=False)
    patch.setattr(cuda_graphs, "agree", lambda *_: True)  # there are no numbers
    patch.setattr(cuda_graphs, "decode_step", device.decode_step)
    patch.setattr(cuda_graphs, "_copy_out", device.copy_out)
    patch.setattr(speculative, "draft", device.draft)
    patch.setattr(
        cuda_graphs.CudaGraphRunner, "launch", lambda runner, *step: device.launch(runner, *step)
    )
    patch.setattr(results, "normalize_attention", lambda heads: HostArray(NORMALIZE(heads)))
    with mode, device:
        yield device


class FakeStream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        self.priority = priority

    def wait_stream(self, stream: object) -> None:
        """Nothing runs, so nothing is waited for."""


class FakeEvent:
    """Stands in for torch.cuda.Event."""

    def record(self) -> None:
        """Nothing runs, so nothing is waited for."""


def fake_models(
    shape: Published = FAKE_LARGE, assistant: str | None = None, heads: str | None = None
) -> WhisperModels:
    """Models in float16 on the fake device; `assistant` is None, "shared" or "own" (encoder).

    `heads` is the kind of Medusa heads, of which there are five; those of Medusa-Linear draft from
    a shortlist.
    """
    with _disable_current_modes():
        models, drafter = loaded(shape, dtype=torch.float16), None
        if heads is not None:
            models = random_heads(models, 5, heads)
        if assistant is not None:
            drafter = model_of(shape, dtype=torch.float16)
            drafter = decoder_alone(drafter) if assistant == "shared" else drafter
    to_fake_cuda(models.model)
    if models.medusa is not None:
        models = dataclasses.replace(models, medusa=_fake_heads(models.medusa, heads))
    if drafter is None:
        return models
    to_fake_cuda(drafter)
    shares = assistant == "shared"
    return dataclasses.replace(models, assistant=Assistant("fake", drafter, shares, None))


def _fake_heads(medusa: MedusaHeads, kind: str | None) -> MedusaHeads:
    """The heads on the fake device."""

    def like(weight: torch.Tensor) -> torch.Tensor:
        return torch.empty(weight.shape, dtype=weight.dtype, device="cuda")

    def empty(heads: Heads) -> Heads:
        return tuple(ResidualBlocks(*map(like, of)) for of in heads)

    block = {name: like(weight) for name, weight in (medusa.block or {}).items()} or None
    listed = torch.empty(4_000, dtype=torch.long, device="cuda") if kind == LINEAR else None
    base = None if medusa.base is None else empty(medusa.base)
    return MedusaHeads("fake", empty(medusa.heads), base, block, listed)


def to_fake_cuda(model: torch.nn.Module) -> None:
    """Put fake tensors in place of all weights and buffers: modules of fake tensors cannot be
    moved.
    """
    made: dict[torch.Tensor, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight not in made:
                empty = torch.empty(weight.shape, dtype=weight.dtype, device="cuda")
                made[weight] = torch.nn.Parameter(empty, requires_grad=False)
            module._parameters[name] = None if weight is None else made[weight]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                empty = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
                module._buffers[name] = empty


def _device(tensor: torch.Tensor) -> torch.device:
    """Its device; asking a fake tensor the usual way is an operation of its own."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


@functools.cache
def _operation(func: Any) -> tuple[str, bool, bool]:
    """Its name, whether it is made of others, which are to be watched in its place, and whether the
    host waits for it.
    """
    whole = func._schema.name
    name, key = whole.removeprefix("aten::"), "CompositeImplicitAutograd"
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    is_composite = bool(composite) and name not in ATTENTION and name != whole
    waits = name not in INDEXED and any(tag in func.tags for tag in SYNCHRONISING)
    return name, is_composite, waits


@functools.cache
def _kind(func: Any) -> str | None:
    """Whether it makes a "view" or something "new", or returns its first argument "written"."""
    returns = [each.alias_info for each in func._schema.returns]
    if func.name().startswith("aten::lift_fresh") or any(each in func.tags for each in UNKNOWN):
        return None
    if any(each is not None and each.is_write for each in returns):
        return "written" if func._schema.name.endswith("_") and len(returns) == 1 else None
    return "new" if all(each is None for each in returns) else "view"


def _shapes(value: Any) -> Any:
    """Arguments as far as what is made depends on them, hashable."""
    if isinstance(value, FakeTensor):
        return tuple(value.size()), value.stride(), value.dtype, value.fake_device
    if isinstance(value, list | tuple):
        return tuple(_shapes(each) for each in value)
    if isinstance(value, dict):
        return tuple((key, _shapes(each)) for key, each in value.items())
    return type(value), value


def _signature(name: str, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    return (name, *((tuple(each.shape), each.dtype) for each in tensors))


def _non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))
