"""The device's memory of a batch: caches of the models, states of the rows, how many rows fit.

All of it is tensors that are allocated once. A step updates them in place, so it copies nothing to
the host and a CUDA graph can replay it. Caches are by far the largest memory besides the weights:
342 MB a row for large-v3 in float16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from whosaid.asr.engine.drafters import (
    MAX_DRAFTS,
    Drafter,
    DraftModel,
    allocate_drafter,
    drafter_bytes_per_row,
)
from whosaid.asr.engine.logit_filters import History
from whosaid.asr.engine.request import MAX_ROWS
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.kv_cache import KVCache, RowTensors
from whosaid.runtime.errors import is_out_of_memory
from whosaid.runtime.host_memory import HostMemory, host_memory, return_freed

if TYPE_CHECKING:
    from whosaid.asr.engine.runner import StepRunner

logger = logging.getLogger("endpoint")

# Positions are a multiple of this: scaled_dot_product_attention pads other masks, in every layer.
ALIGNMENT = 16

# Left free for encoders, diarization and CUDA graphs: a share of the device, and at least 1 GiB.
HEADROOM_SHARE, HEADROOM_BYTES = 0.1, 1 << 30
# At least this on a CPU, which has no graphs. Besides its state a batch of 24 windows of Whisper
# base took up to 200 MB in float32, with 1 or 5 beams, and one window 80 MB. So a single row may
# use half of the headroom, and no more: the kernel ends a process that takes the last memory.
HOST_HEADROOM_BYTES = 1 << 29
HOST_LAST_BYTES = HOST_HEADROOM_BYTES // 2
# Most rows of greedy recordings on CUDA by the device's bytes; they are allocated at load. 24 is
# the default batch size. Beside 16 rows of large-v3 a device of 16 GB has room for diarization and
# graphs. Of large-v3's size a step of 96 rows costs 54% as much a row as one of 24 (docs/gpu.md).
CUDA_ROWS = ((64 << 30, 96), (40 << 30, 48), (20 << 30, 24), (0, 16))
OTHER_LANES_SHARE = 1 / 3  # of those rows' bytes, for each other lane


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Return `values` on `device`; the host does not wait for CUDA."""
    if values.device == device or device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values).to(device, non_blocking=True)


class StepShape(NamedTuple):
    """Everything that a step's CUDA graph depends on, besides the number of rows."""

    drafts: int  # k; 0 is plain greedy decoding
    assistant_lag: int  # newest tokens the assistant may not have read, at least 1
    kv_len: int  # above every position read or written
    sampled: bool = False  # whether any row samples
    timestamps: bool = True  # whether any row follows the timestamp grammar
    followed: bool = False  # whether the drafter takes its state from the main model's pass
    drafts_given: bool = False  # whether the drafts are written behind the rows' lengths already


@dataclass(frozen=True)
class ModelWithCache(RowTensors):
    """A decoder and its cache."""

    decoder: Decoder
    cache: KVCache


@dataclass(frozen=True)
class SequenceState(RowTensors):
    """The state of each row. Tokens from `length` on are drafts or leftovers."""

    tokens: Tensor  # (rows, max_len): the prompt, then what was decoded
    prompt_len: Tensor  # (rows,)
    length: Tensor  # (rows,) tokens that are final
    max_length: Tensor  # (rows,) most tokens of the row
    finished: Tensor  # (rows,) whether the row met its end or limit
    draftable: Tensor  # (rows,) whether drafts may be accepted
    timestamps: Tensor  # (rows,) whether the row follows the timestamp grammar
    grammar_start: Tensor  # (rows,) where the grammar begins; without it, beyond every position
    temperature: Tensor  # (rows,) 0 for greedy
    uniform: Tensor  # (rows, max_len) random numbers in [0, 1) for sampling at each position
    log_probs: Tensor  # (rows, max_len) natural logs, of the tokens that were decoded
    accepted: Tensor  # (rows,) drafted tokens that were right, since the last result
    drafted: Tensor  # (rows,) drafted tokens up to the first wrong one, since the last result

    @classmethod
    def allocate(cls, rows: int, max_len: int, device: torch.device) -> SequenceState:
        """Return finished rows."""
        zeros = partial(torch.zeros, dtype=torch.long, device=device)
        return cls(
            tokens=zeros(rows, max_len),
            prompt_len=zeros(rows) + 1,
            length=zeros(rows) + 1,
            max_length=zeros(rows) + 1,
            finished=zeros(rows, dtype=torch.bool) | True,
            draftable=zeros(rows, dtype=torch.bool),
            timestamps=zeros(rows, dtype=torch.bool),
            grammar_start=zeros(rows),
            temperature=zeros(rows, dtype=torch.float32),
            uniform=zeros(rows, max_len, dtype=torch.float32),
            log_probs=zeros(rows, max_len, dtype=torch.float64),
            accepted=zeros(rows),
            drafted=zeros(rows),
        )

    def before(self, ends: Tensor) -> History:
        """Return the filters' history for choosing tokens number `ends` (rows, positions)."""
        return History(self.tokens, ends, self.timestamps, self.grammar_start)


@dataclass(frozen=True)
class BeamState(RowTensors):
    """The beams of each row, and the hypotheses that have ended.

    A beam's first continuation keeps its place; others take the places of dead beams. `written`,
    `parents` and `log_probs` are never reordered: they hold what was written at a place, and the
    place of the beam that it continued.
    """

    tokens: Tensor  # (rows, beams, max_len): the texts of the live beams, with the prompt
    sums: Tensor  # (rows, beams) of log-probabilities
    written: Tensor  # (rows, beams, max_len) tokens
    parents: Tensor  # (rows, beams, max_len)
    log_probs: Tensor  # (rows, beams, max_len) natural logs
    ended: Tensor  # (rows,) number of hypotheses that met the end of text
    # (rows, beams + 1), in the order in which hypotheses ended; the last column is not kept
    end_beam: Tensor  # the beam that chose the end of text
    end_length: Tensor  # tokens before it, with the prompt
    end_sum: Tensor
    end_log_prob: Tensor

    @classmethod
    def allocate(cls, rows: int, num_beams: int, max_len: int, device: torch.device) -> BeamState:
        zeros = partial(torch.zeros, dtype=torch.long, device=device)
        every, ends = (rows, num_beams, max_len), (rows, num_beams + 1)
        return cls(
            tokens=zeros(every),
            sums=zeros(rows, num_beams, dtype=torch.float64),
            written=zeros(every),
            parents=zeros(every),
            log_probs=zeros(every, dtype=torch.float64),
            ended=zeros(rows),
            end_beam=zeros(ends),
            end_length=zeros(ends),
            end_sum=zeros(ends, dtype=torch.float64),
            end_log_prob=zeros(ends, dtype=torch.float64),
        )

    @property
    def num_beams(self) -> int:
        return self.sums.shape[1]


@dataclass(frozen=True)
class DecodeState(RowTensors):
    """Rows and the models' caches of them; `beams` if each row has several."""

    main: ModelWithCache
    drafter: Drafter | None
    rows: SequenceState
    beams: BeamState | None = None

    @classmethod
    def allocate(
        cls,
        main: Decoder,
        draft_model: DraftModel | None,
        rows: int,
        max_drafts: int,
        num_beams: int = 1,
    ) -> DecodeState:
        """Return rows for the longest text and its drafts; several beams mean beam search."""
        max_len, device = _max_len(main, max_drafts), main.token_embeddings.device
        many = num_beams > 1
        return cls(
            ModelWithCache(main, main.allocate(rows, max_len, num_beams)),
            None if draft_model is None else allocate_drafter(draft_model, rows, max_len),
            SequenceState.allocate(rows, max_len, device),
            BeamState.allocate(rows, num_beams, max_len, device) if many else None,
        )

    @property
    def capacity(self) -> int:
        return self.rows.length.shape[0]

    @property
    def caches(self) -> list[KVCache]:
        own = None if self.drafter is None else self.drafter.cache
        return [self.main.cache] if own is None else [self.main.cache, own]

    @staticmethod
    def bytes_per_row(
        main: Decoder,
        draft_model: DraftModel | None,
        max_drafts: int,
        num_beams: int = 1,
    ) -> int:
        max_len = _max_len(main, max_drafts)
        drafter = 0 if draft_model is None else drafter_bytes_per_row(draft_model, max_len)
        return main.cache_bytes_per_row(max_len, num_beams) + drafter

    def forget(self, length: int) -> None:
        """Zero the first `length` positions of all rows. Masked positions are multiplied by zero,
        so a NaN that an earlier text left there would reach the next text.
        """
        for cache in self.caches:
            cache.clear(length)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Overwrite the rows `targets` with the rows `sources`; no row is both. Caches are copied
        row by row, because gathering them would take their memory again.
        """
        for cache in self.caches:
            for source, target in zip(sources, targets, strict=True):
                cache.move(source, target)
        rows = upload(torch.tensor((sources, targets)), self.rows.length.device)
        self.put(rows[1], self.take(rows[0]))


class StateMemory:
    """The decode state of one lane, whose rows have `num_beams` beams each.

    On CUDA all rows are allocated at once, as many as fit, at most `most`; `prepare` may then
    capture their graphs. On a CPU rows have addresses from the start, and take memory on first
    use, if the host has it: the kernel would not refuse memory but end the process later
    (`runtime.host_memory`).

    Rows have a drafter once a window is prepared for drafts. With CUDA graphs, which replay over
    fixed addresses, they always have one.
    """

    def __init__(
        self,
        main: Decoder,
        draft_model: DraftModel | None,
        runner: StepRunner,
        num_beams: int = 1,
        most: int = MAX_ROWS,
        prepare: Callable[[DecodeState], None] | None = None,
    ) -> None:
        self.main, self.draft_model, self.runner = main, draft_model, runner
        self.num_beams, self.most, self.prepare = num_beams, most, prepare
        self.device = main.token_embeddings.device
        self.drafts = self._always_drafts = draft_model is not None and runner.pipelined
        self.state: DecodeState | None = None  # the rows that have memory
        self._all: DecodeState | None = None  # the rows that have addresses

    @property
    def capacity(self) -> int:
        return 0 if self.state is None else self.state.capacity

    @torch.inference_mode()
    def ensure_capacity(self, rows: int) -> DecodeState:
        """Return a state of at least `rows` rows, or of as many as fit; running rows keep their
        places. Raises an out-of-memory error if not one row fits.
        """
        if self._all is None:
            self._all = self._allocate()
            if self.runner.pipelined:
                self.state = self._all
                if self.prepare is not None:
                    self.prepare(self._all)
                self._log_memory()
        if not self.runner.pipelined:
            self._use(min(rows, self._all.capacity))
        assert self.state is not None
        return self.state

    @torch.inference_mode()
    def ensure_drafter(self) -> bool:
        """Give the state's rows a drafter. Return False if there is no memory for one."""
        assert self.state is not None
        assert self._all is not None
        assert self.draft_model is not None
        if self.state.drafter is not None:
            return True
        max_len, rows = self.state.main.cache.max_len, self.capacity
        needed = rows * drafter_bytes_per_row(self.draft_model, max_len)
        host = host_memory() if self.device.type != "cuda" else None
        if host is not None and host.free < needed + HOST_LAST_BYTES:
            return False
        drafter = allocate_drafter(self.draft_model, self._all.capacity, max_len)
        self._all, self.drafts = replace(self._all, drafter=drafter), True
        self.state = self._all.view(0, rows)
        _take_pages(self.state.caches[1:])
        return True

    def lacks(self, rows: int) -> bool:
        """Return whether `rows` rows do not fit beside the memory that all lanes hold. A lane on
        CUDA has a fixed number of rows, so it lacks memory only if it has none and not one fits.
        """
        if self.runner.pipelined:
            return self.state is None and self._free_rows() < 1
        return self.capacity < rows and self.capacity + self._free_rows() < rows

    def release(self) -> None:
        """Release the memory, and every graph captured over it."""
        if self.state is not None:
            self.runner.release(self.state)
        self.state = self._all = None
        self.drafts = self._always_drafts
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            return_freed()

    def _log_memory(self) -> None:
        rows, memory = self.capacity, self._memory()
        if memory is not None:
            held, free, total = (
                each / 1e9 for each in (rows * self._bytes_per_row, memory.free, memory.total)
            )
            message = "%d rows with %d beams hold %.1f GB; %.1f of %.1f GB are free"
            logger.info(message, rows, self.num_beams, held, free, total)

    def _allocate(self) -> DecodeState:
        """Allocate the most rows that may ever be used; halve their number while that fails."""
        if self.runner.pipelined:
            rows = min(self.most, self._free_rows())
        else:
            host = self._memory()
            rows = self.most if host is None else self._rows_within(host.total, host.total)
        rows = max(1, min(self.most, rows))
        while True:
            try:
                return DecodeState.allocate(
                    self.main, self._drafter, rows, MAX_DRAFTS, self.num_beams
                )
            except (RuntimeError, MemoryError) as error:
                if rows == 1 or not is_out_of_memory(error):
                    raise
            rows //= 2  # outside the except block: the exception held on to the memory

    def _use(self, wanted: int) -> None:
        """Take memory for up to `wanted` rows. Raises MemoryError if not one row fits."""
        assert self._all is not None
        before = self.capacity
        rows = min(wanted, before + self._free_rows())
        if rows < 1:
            rows, host = 1, self._memory()
            if host is not None and host.free < self._bytes_per_row + HOST_LAST_BYTES:
                raise MemoryError(f"the host has {host.free} bytes left")
        if rows <= before:
            return
        _take_pages(self._all.view(before, rows).caches)
        self.state = self._all.view(0, rows)

    def _free_rows(self) -> int:
        """Return how many rows fit into memory beside the headroom, or `most` if unknown."""
        memory = self._memory()
        return self.most if memory is None else self._rows_within(*memory)

    def _rows_within(self, free: int, total: int) -> int:
        least = HEADROOM_BYTES if self.device.type == "cuda" else HOST_HEADROOM_BYTES
        headroom = max(least, int(total * HEADROOM_SHARE))
        return max(0, free - headroom) // self._bytes_per_row

    def _memory(self) -> HostMemory | None:
        """Return free and total memory; None if unknown."""
        if self.device.type != "cuda":
            return host_memory()
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        return HostMemory(free + reserved - torch.cuda.memory_allocated(self.device), total)

    @property
    def _drafter(self) -> DraftModel | None:
        return self.draft_model if self.drafts else None

    @property
    def _bytes_per_row(self) -> int:
        return DecodeState.bytes_per_row(self.main, self._drafter, MAX_DRAFTS, self.num_beams)


def cuda_rows(main: Decoder, num_beams: int, is_main_lane: bool) -> int:
    total = torch.cuda.mem_get_info(main.token_embeddings.device)[1]
    most = next(rows for least, rows in CUDA_ROWS if total >= least)
    if is_main_lane:
        return most
    one, own = (DecodeState.bytes_per_row(main, None, MAX_DRAFTS, n) for n in (1, num_beams))
    return max(1, int(most * OTHER_LANES_SHARE * one / own))


def _take_pages(caches: Sequence[KVCache]) -> None:
    """Write zeros, so that the host commits the memory now and promises it to no other row."""
    for cache in caches:
        for each in cache.tensors:
            each.zero_()


def _max_len(main: Decoder, max_drafts: int) -> int:
    """Return the positions of the longest text and the drafts after it, rounded up."""
    return -(-(main.max_positions + max_drafts + 1) // ALIGNMENT) * ALIGNMENT
