"""The decode state's memory: allocated on demand, grown under running rows, never beyond what fits.

Caches are by far the largest thing besides the weights: 342 MB a row for large-v3 in float16. How
many rows fit is asked of the device before memory is taken, of CUDA or of the host, whose kernel
would not refuse it but end the process later (`runtime.host_memory`). It is asked only where rows
are made. What states hold counts as taken there: they begin as zeros, which torch writes on a CPU
too, so that no page of theirs is yet to come, and what is given back leaves the allocator.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from asr.engine.decode_state import DecodeState
from asr.engine.draft_length import MAX_DRAFTS
from asr.engine.drafters import DraftModel, allocate_drafter, drafter_bytes_per_row
from asr.engine.runner import StepRunner
from asr.engine.scheduler import MAX_ROWS
from asr.model.decoder import Decoder
from runtime.device_errors import is_out_of_memory
from runtime.host_memory import host_memory, return_freed

# Left free for encoders, diarization and CUDA graphs: a share of the device, and at least 1 GiB.
HEADROOM_SHARE, HEADROOM_BYTES = 0.1, 1 << 30
# On a CPU, where there are no graphs, at least this. Beside its state a batch of 24 windows of
# Whisper base took up to 200 MB in float32, of 1 or 5 beams, and one window 80 MB: so a single row,
# which is tried beyond the headroom, leaves half of it, for who takes the last is ended.
HOST_HEADROOM_BYTES = 1 << 29
HOST_LAST_BYTES = HOST_HEADROOM_BYTES // 2


class StateMemory:
    """One decode state of the models, whose rows have `num_beams` each.

    Rows have a drafter from the first window on that is prepared for drafts; under CUDA graphs,
    which replay over fixed addresses, always.
    """

    def __init__(
        self,
        main: Decoder,
        draft_model: DraftModel | None,
        runner: StepRunner,
        num_beams: int = 1,
    ) -> None:
        self.main, self.draft_model, self.runner = main, draft_model, runner
        self.num_beams = num_beams
        self.device = main.token_embeddings.device
        self.drafts = self._always_drafts = draft_model is not None and runner.pipelined
        self.state: DecodeState | None = None

    @property
    def capacity(self) -> int:
        """How many rows there are now."""
        return 0 if self.state is None else self.state.capacity

    @torch.inference_mode()
    def ensure_capacity(self, rows: int, live: int = 0) -> DecodeState:
        """The state, with `rows` rows where they fit, else with as many as do, at least one.

        The first `live` rows keep what they hold; beside them it grows by half or to `rows`, or
        not. Raises the device's out-of-memory error where nothing is live and not even the rows
        that should fit do.
        """
        wanted = rows
        if self.state is not None and self.capacity >= wanted:
            return self.state
        if not live:
            if self.state is not None:
                self.release()
            self.state = self._allocate(min(self.runner.rows(wanted), self._fitting()))
        elif self._fitting() >= min(wanted, self._half_more):
            self._grow(wanted, live)
        assert self.state is not None
        return self.state

    @torch.inference_mode()
    def ensure_drafter(self) -> bool:
        """Give the state's rows a drafter. Return False if there is no memory for one."""
        state = self.state
        assert state is not None
        assert self.draft_model is not None
        if state.drafter is not None:
            return True
        max_len, device = state.main.cache.max_len, self.device
        host = host_memory() if device.type != "cuda" else None
        needed = state.capacity * drafter_bytes_per_row(self.draft_model, max_len)
        if host is not None and host.free < needed + HOST_LAST_BYTES:
            return False
        drafter = allocate_drafter(self.draft_model, state.capacity, max_len)
        self.state, self.drafts = replace(state, drafter=drafter), True
        return True

    def rows_beside(self, wanted: int) -> int:
        """How many of `wanted` rows fit beside what everybody holds now; 0 where none does."""
        if self.capacity >= wanted:
            return wanted
        return max(self.capacity, min(wanted, self._free_rows()))

    @property
    def held(self) -> int:
        """The bytes that its rows take."""
        return self.capacity * self._bytes_per_row

    def lacks(self, rows: int) -> bool:
        """Whether `rows` rows need memory that idle batches may hold."""
        if self.capacity >= rows:
            return False
        return self._free_rows() < (min(rows, self._half_more) if self.capacity else rows)

    def release(self) -> None:
        """Give the memory back, and with it every graph captured over it."""
        if self.state is not None:
            self.runner.release(self.state)
        self.state, self.drafts = None, self._always_drafts
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            return_freed()

    @property
    def _half_more(self) -> int:
        """Half as many rows again: a row more at a time would be a copy at a time."""
        return self.capacity + max(1, self.capacity // 2)

    def _allocate(self, rows: int) -> DecodeState:
        rows = max(1, rows)
        if self.device.type != "cuda":
            host = host_memory()
            if host is not None and host.free < rows * self._bytes_per_row + HOST_LAST_BYTES:
                raise MemoryError(f"the host has {host.free} bytes left")
        return DecodeState.allocate(self.main, self._drafter, rows, MAX_DRAFTS, self.num_beams)

    def _grow(self, wanted: int, live: int) -> None:
        """Move the live rows to a larger state; where old and new do not fit together, stay."""
        rows = min(max(wanted, self._half_more), MAX_ROWS)
        try:
            larger = self._allocate(min(self.runner.rows(rows), self._fitting()))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return
        assert self.state is not None
        larger.copy_rows(self.state, live)
        drafts = self.drafts
        self.release()
        self.state, self.drafts = larger, drafts

    def _fitting(self) -> int:
        """How many rows to try now: those that fit, and one in any case."""
        return max(1, self._free_rows())

    def _free_rows(self, idle: int = 0) -> int:
        """How many rows there is memory for beside the headroom, were `idle` bytes more free;
        MAX_ROWS where nobody knows.
        """
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            reserved = torch.cuda.memory_reserved(self.device)
            free += reserved - torch.cuda.memory_allocated(self.device)
            least = HEADROOM_BYTES
        else:
            host = host_memory()
            if host is None:
                return MAX_ROWS
            (free, total), least = host, HOST_HEADROOM_BYTES
        headroom = max(least, int(total * HEADROOM_SHARE))
        return max(0, free + idle - headroom) // self._bytes_per_row

    @property
    def _drafter(self) -> DraftModel | None:
        """The model of which rows hold a state."""
        return self.draft_model if self.drafts else None

    @property
    def _bytes_per_row(self) -> int:
        return DecodeState.bytes_per_row(self.main, self._drafter, MAX_DRAFTS, self.num_beams)
