"""The device's memory of each lane: how many rows fit, when they are allocated and released."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from whosaid.asr.engine.drafters import DraftModel, allocate_drafter, drafter_bytes_per_row
from whosaid.asr.engine.request import MAX_ROWS
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.encoder import Encoder
from whosaid.asr.model.kv_cache import KVCache
from whosaid.runtime.errors import is_out_of_memory
from whosaid.runtime.host_memory import HostMemory, host_memory, return_freed

logger = logging.getLogger("endpoint")

# Left free for encoders, diarization and CUDA graphs: a share of the device, and at least 1 GiB.
HEADROOM_SHARE, HEADROOM_BYTES = 0.1, 1 << 30
# At least this on a CPU, which has no graphs. Besides its state a batch of 24 windows of Whisper
# base took up to 200 MB in float32, with 1 or 5 beams, and one window 80 MB. So a single row may
# use half of the headroom, and no more: the kernel ends a process that takes the last memory.
HOST_HEADROOM_BYTES = 1 << 29
HOST_LAST_BYTES = HOST_HEADROOM_BYTES // 2
# Most rows of greedy recordings on CUDA by the device's bytes; they are allocated at load. An A100
# of 40 GB has 39.5 GiB. Beside 12 rows of large-v3 a device of 16 GB has room for diarization and
# graphs. Of large-v3's size a step of 96 rows costs 54% as much a row as one of 24 (docs/gpu.md).
CUDA_ROWS = ((64 << 30, 96), (38 << 30, 48), (20 << 30, 24), (0, 12))
BEAM_LANES_SHARE = 1 / 3  # of those rows' bytes, for each number of beams


class StateMemory:
    """The decode state of one lane, whose rows have `num_beams` beams each.

    On CUDA all rows are allocated at once, as many as fit, at most `most`. With an `encoder` the
    graphs of their passes are then captured. On a CPU rows have addresses from the start, and take
    memory on first use, if the host has it: the kernel would not refuse memory but end the process
    later (`runtime.host_memory`).

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
        encoder: Encoder | None = None,
    ) -> None:
        self.main, self.draft_model, self.runner = main, draft_model, runner
        self.num_beams, self.most, self.encoder = num_beams, most, encoder
        self.device = main.token_embeddings.device
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
            if self.runner.on_cuda:
                self.state = self._all
                if self.encoder is not None:
                    self.runner.prepare(self._all, self.encoder)
                self._log_memory()
        if not self.runner.on_cuda:
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
        max_len, rows = self.state.cache.max_len, self.capacity
        needed = rows * drafter_bytes_per_row(self.draft_model, max_len)
        host = host_memory()
        if host is not None and host.free < needed + HOST_LAST_BYTES:
            return False
        drafter = allocate_drafter(self.draft_model, self._all.capacity, max_len)
        self._all = replace(self._all, drafter=drafter)
        self.state = self._all.view(0, rows)
        _take_pages(self.state.caches[1:])
        return True

    def lacks(self, rows: int) -> bool:
        """Return whether `rows` rows do not fit beside the memory that all lanes hold. A lane on
        CUDA has a fixed number of rows, so it lacks memory only if it has none and not one fits.
        """
        if self.runner.on_cuda:
            return self.state is None and self._free_rows() < 1
        return self.capacity < rows and self.capacity + self._free_rows() < rows

    def release(self) -> None:
        """Release the memory, and every graph captured over it."""
        if self.state is not None:
            self.runner.release(self.state)
        self.state = self._all = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            return_freed()

    def _log_memory(self) -> None:
        rows, memory = self.capacity, self._memory()
        if memory is not None:
            gigabytes = [each / 1e9 for each in (rows * self._bytes_per_row, *memory)]
            message = "%d rows with %d beams hold %.1f GB; %.1f of %.1f GB are free"
            logger.info(message, rows, self.num_beams, *gigabytes)

    def _allocate(self) -> DecodeState:
        """Allocate the most rows that may ever be used; halve their number while that fails."""
        memory, rows = self._memory(), self.most
        if memory is not None:
            free = memory.free if self.runner.on_cuda else memory.total
            rows = max(1, min(rows, self._rows_within(free, memory.total)))
        while True:
            try:
                return DecodeState.allocate(self.main, self._drafter, rows, self.num_beams)
            except (RuntimeError, MemoryError) as error:
                if rows == 1 or not is_out_of_memory(error):
                    raise
            rows //= 2  # outside the except block: the exception held on to the memory

    def _use(self, wanted: int) -> None:
        """Take memory for up to `wanted` rows. Raises MemoryError if not one row fits."""
        assert self._all is not None
        before = self.capacity
        if before >= wanted:
            return
        rows = min(wanted, before + self._free_rows())
        if rows < 1:
            rows, host = 1, self._memory()
            if host is not None and host.free < self._bytes_per_row + HOST_LAST_BYTES:
                raise MemoryError(f"the host has {host.free} bytes left")
        if rows == before:
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
        if self.device.type != "cuda":
            return host_memory()
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        return HostMemory(free + reserved - torch.cuda.memory_allocated(self.device), total)

    @property
    def _drafter(self) -> DraftModel | None:
        drafts = self._all is not None and self._all.drafter is not None
        return self.draft_model if drafts or self.runner.on_cuda else None

    @property
    def _bytes_per_row(self) -> int:
        return DecodeState.bytes_per_row(self.main, self._drafter, self.num_beams)


def cuda_rows(main: Decoder, num_beams: int, device_bytes: int) -> int:
    """Return the most rows of a lane on a device with so much memory in all."""
    most = next(rows for least, rows in CUDA_ROWS if device_bytes >= least)
    if num_beams == 1:
        return most
    one, own = (DecodeState.bytes_per_row(main, None, each) for each in (1, num_beams))
    return max(1, int(most * BEAM_LANES_SHARE * one / own))


def _take_pages(caches: Sequence[KVCache]) -> None:
    """Write zeros, so that the host commits the memory now and promises it to no other row."""
    for cache in caches:
        for each in cache.tensors:
            each.zero_()
