"""Passes on CUDA, captured as graphs when a state's rows are allocated, and replayed.

A step of Whisper's decoder is hundreds of small kernels, and so are its prefill and the encoder.
Launched one by one from Python, they leave the device idle most of the time.

Shapes are rounded up to few sizes, and a fixed list of shapes is captured; every other shape runs
eagerly. Each pass of the list runs eagerly first, because libraries must not create handles or
compile kernels inside a capture (pytorch#99397), and then as a graph over the same noise. If the
results differ, or a capture fails, graphs are turned off: at load all, for rows that are allocated
later those over these rows. If memory runs out, no further shape is captured.

All graphs over a state share a memory pool, because each result is copied out before the next pass,
and a capture stream of their own: cuBLAS keeps a workspace for each stream, and newer versions of
torch free it with the first graph that is dropped (pytorch#193402). So all graphs over a state are
dropped together, before the memory of the state is freed.
"""

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whosaid.asr.engine.drafters import NEWEST, Drafter, MedusaDrafter
from whosaid.asr.engine.graph_check import (
    Outcome,
    agree,
    end_texts,
    fill_audio,
    run_encoder,
    run_prefill,
    run_steps,
)
from whosaid.asr.engine.prefill import PrefillBatch, prefill
from whosaid.asr.engine.rows import PaddedSizes, StepShape
from whosaid.asr.engine.runner import PendingResult, StepResult, StepRunner, collect
from whosaid.asr.engine.speculative import decode_step
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.cuda_attention import CUDNN
from whosaid.asr.model.encoder import AudioEncoder, Encoder
from whosaid.asr.model.kv_cache import upload
from whosaid.asr.model.logit_filters import LogitFilter
from whosaid.runtime.errors import is_device_lost, is_out_of_memory

logger = logging.getLogger("endpoint")

_idle_streams: list[torch.cuda.Stream] = []  # that engines have left
Pass = Callable[[int], Outcome]  # takes the seed of its noise

# Windows that one graph encodes, and rows that one graph prefills; more take several passes. The
# largest encoder pass keeps its intermediate values in the graphs' memory (see docs/gpu.md).
PASS_SIZES = (4, 2, 1)
TRIES = 2  # a near tie, also in a draft, does not recur with other noise
ENCODERS = "encoders"  # owner of the encoders' graphs, which read no state
HIGH_PRIORITY = -1  # of a stream; newer versions of torch replay kernels with their own priority
SPARE_BYTES = 768 << 20  # of device memory kept free for requests


class CaptureFailed(Exception):
    """A capture failed; the device is usable."""


class Captured(NamedTuple):
    """A captured graph, its input buffers and its output buffer."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Tensor


@dataclass
class GraphSet:
    """The graphs over one state by key, with the stream, pool and input buffers that they share."""

    stream: torch.cuda.Stream
    pool: Any
    graphs: dict[Hashable, Captured] = field(default_factory=dict)
    # By number, shape and type; shared, because no two graphs run at once.
    inputs: dict[Hashable, Tensor] = field(default_factory=dict)


class CudaGraphRunner(StepRunner):
    """Replays the graph of a pass if there is one, else runs the pass eagerly in the same shape."""

    on_cuda = True
    sizes = PaddedSizes(
        rows=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128),
        positions=(128, 256, 512),  # no row of any Whisper reaches the last
        prompt=(8, 64, 256),  # without earlier text, with a few hotwords, with as much as fits
        guess=(0, 64, 256),  # none, a live buffer's text, more
    )
    draft_lengths = (2, 4, 8)
    drafted_rows = 24  # drafts were measured to pay up to there
    timed_drafts = (0, 2, 8)
    _before_step: torch.cuda.Event  # of the newest step

    def __init__(self, filters: LogitFilter, enabled: bool = True) -> None:
        super().__init__(filters)
        self.enabled = enabled
        CUDNN.permit(enabled)
        self.planned = self.replayed = self.eager = 0  # graphs to capture; passes by kind
        self._sets: dict[Hashable, GraphSet] = {}
        self._capturing = False
        self._reading: torch.cuda.Stream | None = None
        self._encoding: torch.cuda.Stream | None = None
        self._streams: list[torch.cuda.Stream] = []  # this engine's, and those that are not in use
        self._spare: list[torch.cuda.Stream] = []
        weakref.finalize(self, _idle_streams.extend, self._streams).atexit = False

    @property
    def graph_count(self) -> int:
        return sum(len(each.graphs) for each in self._sets.values())

    def encode(self, encoder: AudioEncoder, features: Tensor) -> Tensor:
        return torch.cat(
            [
                self._run(ENCODERS, ("encoder", len(part), encoder), encoder.forward, (part,))
                for part in torch.split(features, pass_sizes(len(features)))
            ]
        )

    def prefill(self, state: DecodeState, places: Sequence[int], batch: PrefillBatch) -> Tensor:
        """Prefill a few rows per graph; sampled rows and sizes outside `sizes` run eagerly."""
        usual = batch.prompt_len in self.sizes.prompt and batch.verified in self.sizes.guess
        if batch.sampled or not usual:
            return super().prefill(state, places, batch)
        at = torch.tensor(places, dtype=batch.numbers.dtype)[:, None]
        numbers = upload(torch.cat((at, batch.numbers), dim=1), state.rows.tokens.device)
        batch = batch._replace(numbers=numbers, forgotten=state.cache.max_len)

        def begin(numbers: Tensor, *encoded: Tensor) -> Tensor:
            rows, numbers = numbers[:, 0].long(), numbers[:, 1:]
            taken = state.take(rows)
            start = prefill(taken, batch.with_inputs(numbers, *encoded), self.filters)
            state.put(rows, taken)
            return start

        starts = []
        parts = [torch.split(each, pass_sizes(len(places))) for each in batch.inputs]
        for part in zip(*parts, strict=True):
            key = ("prefill", len(part[0]), batch.prompt_len, batch.verified, batch.drafted)
            starts.append(self._run(_memory_of(state), key, begin, part))
        return torch.cat(starts)

    def launch(self, state: DecodeState, shape: StepShape) -> PendingResult:
        """Start a step. Calling the returned function waits for the result. All rows compute the
        timestamp grammar, which some ignore, so they share graphs.
        """
        shape = shape._replace(timestamps=True)

        def step() -> Tensor:
            decode_step(state, self.filters, shape)
            return collect(state.rows)

        self._before_step = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._before_step.record()
        return _copy_out(self._run(_memory_of(state), ("step", state.capacity, shape), step))

    def beside_step(self) -> AbstractContextManager[object]:
        if self._reading is None:
            self._reading = self.stream()
        self._reading.wait_event(self._before_step)
        return torch.cuda.stream(self._reading)

    @contextmanager
    def encoding(self, ahead: bool = False) -> Iterator[None]:
        current = torch.cuda.current_stream()
        if self._encoding is None:
            self._encoding = self.stream()
            self._encoding.wait_stream(current)  # for the weights
        with torch.cuda.stream(self._encoding):
            yield
        if not ahead:
            current.wait_stream(self._encoding)

    def release(self, state: DecodeState) -> None:
        if (dropped := self._sets.pop(_memory_of(state), None)) is not None:
            self._spare.append(dropped.stream)

    def stream(self) -> torch.cuda.Stream:
        """Return a stream for this engine's life, one that an earlier engine has left if there is
        one: cuBLAS keeps a workspace for each.
        """
        if not _idle_streams:
            _idle_streams.append(torch.cuda.Stream(priority=HIGH_PRIORITY))  # type: ignore[no-untyped-call]
        self._streams.append(_idle_streams.pop())
        return self._streams[-1]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run eagerly inside the block, in the same shapes; graphs are kept."""
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled

    def prepare(self, state: DecodeState, encoder: Encoder) -> None:
        kinds, before = self.usual_passes(state, encoder), set(self._sets)
        if ENCODERS in before:
            del kinds["encoder"]
        passes = [run for kind in kinds.values() for run in (kind if self.enabled else kind[:1])]
        self.planned += len(passes) * self.enabled
        fill_audio(state)
        try:
            done = self._compare(passes, state.rows.tokens.device)
        except CaptureFailed as failed:
            self._give_up(before, str(failed))
            return
        finally:
            end_texts(state)
        if done < len(passes) and self.enabled:
            left = len(passes) - done
            logger.warning("memory is short: %d of %d CUDA graphs are left out", left, len(passes))

    def _give_up(self, kept: set[Hashable], reason: str) -> None:
        """Drop all graphs but those of `kept`, and log why; if none are kept, capture no more."""
        for owner in set(self._sets) - kept:
            self._streams.remove(self._sets.pop(owner).stream)  # which a failed capture has used
        self.enabled = bool(kept)
        lanes = " of one kind of rows" if kept else ""
        logger.error("CUDA graphs%s are off, so decoding is slower: %s", lanes, reason)

    def usual_passes(self, state: DecodeState, encoder: Encoder) -> dict[str, list[Pass]]:
        return {
            "step": self._steps(state),
            "prefill": self._prefills(state, encoder),
            "encoder": self._encoders(encoder),
        }

    def _steps(self, state: DecodeState) -> list[Pass]:
        """Return steps of all usual shapes, most rows first: smaller graphs reuse their memory."""
        most, longest = state.capacity, state.cache.max_len
        return [
            partial(run_steps, self, state.view(0, rows), shape)
            for rows in sorted({min(each, most) for each in self.sizes.rows}, reverse=True)
            for kv_len in sorted({min(each, longest) for each in self.sizes.positions})
            for shape in self._usual_shapes(state.drafter, rows, kv_len)
        ]

    def _usual_shapes(self, drafter: Drafter | None, rows: int, kv_len: int) -> list[StepShape]:
        """Return the step shapes to capture for one cache length, with drafts and without."""
        plain, lengths = StepShape(0, 1, kv_len), self.draft_lengths
        if drafter is None or rows > self.drafted_rows:
            return [plain]
        if not isinstance(drafter, MedusaDrafter):
            return [*(StepShape(each, NEWEST, kv_len) for each in lengths), plain]
        most = drafter.model.count
        counts = [*([each for each in lengths if each <= most] or [most]), 0]
        return [*(StepShape(each, 1, kv_len, followed=True) for each in counts), plain]

    def _prefills(self, state: DecodeState, encoder: Encoder) -> list[Pass]:
        many = [each for each in PASS_SIZES if each <= state.capacity]
        guesses = self.sizes.guess if state.beams is None else (0,)
        run = partial(run_prefill, self, state, encoder)
        return [
            partial(run, (rows, prompt_len, verified, drafted))
            for drafted in sorted({False, state.drafter is not None})
            for prompt_len in reversed(self.sizes.prompt)
            for verified in guesses
            if verified <= prompt_len
            for rows in ([1] if verified else many)
        ]

    def _encoders(self, encoder: Encoder) -> list[Pass]:
        own = [each for each in (encoder.main, encoder.assistant) if each is not None]
        return [
            partial(run_encoder, self, encoder, each, count)
            for each in dict.fromkeys(own)
            for count in PASS_SIZES
        ]

    def _compare(self, passes: list[Pass], device: torch.device) -> int:
        """Capture passes and compare each with its eager run, until memory is short. Return the
        number of passes that memory sufficed for. Raises CaptureFailed.
        """
        for number, run in enumerate(passes):
            if self.enabled and torch.cuda.mem_get_info(device)[0] < SPARE_BYTES:
                return number
            try:
                agrees = any(self._agrees(run, seed) for seed in range(TRIES))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return number
            if not agrees:
                raise CaptureFailed("a graph gave other results than the same pass run eagerly")
        return len(passes)

    def _agrees(self, run: Pass, seed: int) -> bool:
        with self.paused():
            expected = run(seed)
        if not self.enabled:
            return True
        self._capturing = True
        try:
            return agree(run(seed), expected)
        finally:
            self._capturing = False

    def _run(
        self,
        owner: Hashable,
        key: Hashable,
        work: Callable[..., Tensor],
        inputs: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return `work(*inputs)`; without inputs, the result is valid until the owner's next pass.

        `work` must read no value from the device and use no tensor of the host. Its tensors must
        live until `release`, and `key` must hold everything else that it depends on.
        """
        graphs = self._sets.get(owner) if self.enabled else None
        captured = None if graphs is None else graphs.graphs.get(key)
        if captured is None and self._capturing and self.enabled:
            captured = self._capture(owner, key, work, inputs)
        if captured is None:
            self.eager += 1
            return work(*inputs)
        for target, source in zip(captured.inputs, inputs, strict=True):
            target.copy_(source)
        captured.graph.replay()
        self.replayed += 1
        return captured.result.clone() if inputs else captured.result

    def _capture(
        self, owner: Hashable, key: Hashable, work: Callable[..., Tensor], inputs: Sequence[Tensor]
    ) -> Captured:
        """Capture `work`. Raises CaptureFailed and errors of memory or a lost device."""
        if owner not in self._sets:
            stream = self._spare.pop() if self._spare else self.stream()
            self._sets[owner] = GraphSet(stream, torch.cuda.graph_pool_handle())
        graphs, graph = self._sets[owner], torch.cuda.CUDAGraph()
        held = [
            graphs.inputs.setdefault((place, each.shape, each.dtype), torch.empty_like(each))
            for place, each in enumerate(inputs)
        ]
        # A failed capture leaves this thread on the capture's stream; the outer context restores
        # the stream. "thread_local", because the diarization thread may allocate meanwhile.
        with torch.cuda.stream(torch.cuda.current_stream()):
            try:
                with torch.cuda.graph(graph, graphs.pool, graphs.stream, "thread_local"):
                    result = work(*held)
            except RuntimeError as error:
                refused = any(each in str(error).lower() for each in ("captur", "cublas", "graph"))
                if is_out_of_memory(error) or (is_device_lost(error) and not refused):
                    raise
                reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
                raise CaptureFailed(f"a capture failed: {reason}") from None
        captured = graphs.graphs[key] = Captured(graph, held, result)
        return captured


def pass_sizes(count: int) -> list[int]:
    sizes: list[int] = []
    for size in PASS_SIZES:
        sizes += [size] * (count // size)
        count %= size
    return sizes


def _memory_of(state: DecodeState) -> int:
    """Return an address that identifies a state's memory, also for views of its first rows."""
    return state.rows.tokens.data_ptr()


def _copy_out(result: Tensor) -> PendingResult:
    """Start copying a result to the host, before the next step overwrites it."""
    pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    pinned.copy_(result, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> StepResult:
        arrived.synchronize()
        return StepResult(*pinned.tolist())

    return read
