"""Passes on CUDA: each shape is captured once as a graph and replayed.

A step of Whisper's decoder is hundreds of small kernels, and so are its prefill and the encoder;
launched one by one from Python they leave the device idle most of the time. None of them asks the
device for a value (see `asr.engine.speculative`), so each can be captured whole.

Shapes are rounded up to few sizes, so that few graphs exist. Padding rows of a step are computed,
and their results masked out; windows that enter are encoded and prefilled in passes of few sizes,
so that none of them is padding. Every result is copied out before the next pass begins, so that all
graphs over a state can share memory (see `asr.engine.captures`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.captures import Captures
from asr.engine.decode_state import DecodeState
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import PrefillBatch, PrefillShape, prefill
from asr.engine.row_state import StepShape, upload
from asr.engine.runner import PendingResult, StepResult, StepRunner, collect
from asr.engine.speculative import decode_step
from asr.model.encoder import AudioEncoder

ROW_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
KV_LENGTHS = (64, 128, 256, 512)  # the last exceeds what a row of any Whisper holds
SHARED_LEN_STEP = 64  # positions
WARMUP_ROWS, WARMUP_KV_LEN = 24, 256
DRAFTED_WARMUP_ROWS = (1, 24)
# Windows that are encoded, and rows that are prefilled, by one graph. More take several passes; the
# encoder's intermediate values of the largest stay in the graphs' memory (see docs/gpu.md).
PASS_SIZES = (4, 2, 1)
# Positions of prompts: without earlier text, with a few hotwords, with as much as one may hold.
PROMPT_LENGTHS = (8, 64, 256)
# Guessed tokens that are verified behind them: none, those of a few seconds, of a whole buffer.
VERIFIED_LENGTHS = (0, 32, 64, 128)
ENCODERS = "encoders"  # the owner of their graphs, which read no state
CAPTURED_LAG = 2  # shapes with a longer lag are rare: they follow a pause in drafting


class StepKey(NamedTuple):
    """What a step's graph was captured for, besides the memory of the state."""

    rows: int
    shape: StepShape

    def __str__(self) -> str:
        return f"{self.rows} rows"


class PrefillKey(NamedTuple):
    """What a prefill's graph was captured for, besides the memory of the state."""

    rows: int
    shape: PrefillShape

    def __str__(self) -> str:
        return f"a prefill of {self.rows} rows"


class EncoderKey(NamedTuple):
    """What an encoder's graph was captured for."""

    windows: int
    encoder: AudioEncoder

    def __str__(self) -> str:
        return f"an encoder of {self.windows} windows"


class CudaGraphRunner(StepRunner):
    """Passes through `Captures`: eager at a shape's first use, captured at its second.

    A state's memory must outlive its graphs: see `release`. With `enabled` False nothing is
    captured, in the same shapes.
    """

    pipelined = True
    draft_lengths = (2, 4, 8)
    timed_drafts = (0, 2, 8)

    def __init__(self, enabled: bool = True) -> None:
        self.captures = Captures(enabled)
        # Where graphs read what differs between replays, by their owners, places and shapes.
        self._inputs: dict[Hashable, dict[Hashable, Tensor]] = {}

    @property
    def enabled(self) -> bool:
        """Whether graphs are captured and replayed."""
        return self.captures.enabled

    @property
    def graph_count(self) -> int:
        """How many graphs are held."""
        return self.captures.graph_count

    def rows(self, live: int) -> int:
        """The next of a few sizes."""
        return round_up(live, ROW_COUNTS)

    def kv_len(self, needed: int) -> int:
        """The next of a few sizes."""
        return round_up(needed, KV_LENGTHS)

    def shared_len(self, known: int) -> int:
        """Rounded down to one of few sizes."""
        return known - known % SHARED_LEN_STEP

    def warmup_shapes(self, assisted: bool) -> list[tuple[int, StepShape]]:
        """Greedy steps up to the default batch size, drafted ones at both its ends.

        Of texts that are not unusually long.
        """
        lengths = [length for length in KV_LENGTHS if length <= WARMUP_KV_LEN]
        shapes = []
        for rows in reversed([count for count in ROW_COUNTS if count <= WARMUP_ROWS]):
            drafts = self.draft_lengths if assisted and rows in DRAFTED_WARMUP_ROWS else ()
            for length in lengths:
                shapes += [(rows, StepShape(k, CAPTURED_LAG, length)) for k in drafts]
                shapes.append((rows, StepShape(0, 1, length)))
        return shapes

    def prompt_len(self, needed: int) -> int:
        """The next of a few sizes."""
        return round_up(needed, PROMPT_LENGTHS)

    def verified_len(self, needed: int) -> int:
        """The next of a few sizes."""
        return round_up(needed, VERIFIED_LENGTHS)

    def encode(self, encoder: AudioEncoder, features: Tensor) -> Tensor:
        """A few windows a graph; see `AudioEncoder.forward`."""
        return torch.cat(
            [
                self._run(ENCODERS, EncoderKey(len(part), encoder), encoder.forward, (part,))
                for part in torch.split(features, pass_sizes(len(features)))
            ]
        )

    def prefill(
        self,
        state: DecodeState,
        places: Sequence[int],
        batch: PrefillBatch,
        filters: LogitFilter,
        special_tokens: SpecialTokens,
    ) -> Tensor:
        """A few rows a graph, which serves any: it reads their places where it is replayed.

        What is rare, rows that sample, the longest prompts and guesses, runs eagerly, all rows at
        once.
        """
        if not is_usual(batch.shape):
            return super().prefill(state, places, batch, filters, special_tokens)
        shape = batch.shape._replace(forgotten=state.main.cache.max_len)
        at = torch.tensor(places, dtype=batch.numbers.dtype)[:, None]
        numbers = upload(torch.cat((at, batch.numbers), dim=1), state.rows.tokens.device)
        batch = batch._replace(numbers=numbers, shape=shape)

        def begin(numbers: Tensor, *encoded: Tensor) -> Tensor:
            rows, numbers = numbers[:, 0].long(), numbers[:, 1:]
            taken = state.take(rows)
            said = prefill(taken, batch.with_inputs(numbers, *encoded), filters, special_tokens)
            state.put(rows, taken)
            return said

        parts = [torch.split(each, pass_sizes(len(places))) for each in batch.inputs]
        owner, starts = _memory_of(state), []
        for part in zip(*parts, strict=True):
            starts.append(self._run(owner, PrefillKey(len(part[0]), shape), begin, part))
        return torch.cat(starts)

    def launch(self, state: DecodeState, filters: LogitFilter, shape: StepShape) -> PendingResult:
        """Replay the step, or run it; what is returned waits for its result."""
        key = StepKey(state.capacity, shape)

        def step() -> Tensor:
            decode_step(state, filters, shape)
            return collect(state.rows)

        worth_it = shape.assistant_lag <= CAPTURED_LAG
        return _copy_out(self.captures.run(_memory_of(state), key, step, worth_it))

    def release(self, state: DecodeState) -> None:
        """Drop the graphs over a state's memory, before it is freed."""
        self.captures.release(_memory_of(state))
        self._inputs.pop(_memory_of(state), None)

    def _run(
        self,
        owner: Hashable,
        key: Hashable,
        work: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
    ) -> Tensor:
        """A copy of what `work` makes of `inputs`, tensors from anywhere."""
        if not self.enabled:
            return work(*inputs)
        held = self._inputs.setdefault(owner, {})
        given = []
        for place, source in enumerate(inputs):
            kind = place, source.shape, source.dtype
            if kind not in held:  # no two graphs of an owner run at once
                held[kind] = torch.empty_like(source)
            given.append(held[kind].copy_(source))
        return self.captures.run(owner, key, lambda: work(*given)).clone()

    def paused(self) -> AbstractContextManager[None]:
        """Run eagerly for a while, in the same shapes; graphs are kept."""
        return self.captures.paused()

    def disable(self, reason: str) -> None:
        """Run eagerly from now on, and say so."""
        self.captures.disable(reason)


def is_usual(shape: PrefillShape) -> bool:
    """Whether prefills of this shape are captured."""
    few = shape.prompt_len in PROMPT_LENGTHS and shape.verified in VERIFIED_LENGTHS
    return few and not shape.sampled


def round_up(needed: int, sizes: tuple[int, ...]) -> int:
    """The smallest size that is enough, `needed` itself beyond the largest."""
    return next((size for size in sizes if size >= needed), needed)


def pass_sizes(count: int) -> list[int]:
    """Numbers of rows that graphs are captured for and that sum up to `count`, largest first."""
    sizes: list[int] = []
    for size in PASS_SIZES:
        sizes += [size] * (count // size)
        count %= size
    return sizes


def _memory_of(state: DecodeState) -> int:
    """What tells the memory of a state, and of views of its first rows, from that of others."""
    return state.rows.tokens.data_ptr()


def _copy_out(result: Tensor) -> PendingResult:
    """Start the copy to the host now, so that the next step does not overwrite the result first."""
    pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    pinned.copy_(result, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> StepResult:
        arrived.synchronize()
        return StepResult(*pinned.tolist())

    return read
