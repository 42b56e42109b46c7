"""The decode state's memory: allocated on demand, grown under running rows, never beyond what fits.

Caches are by far the largest thing besides the weights: 342 MB a row for large-v3 in float16.
The one decision: how many rows fit is asked of the device before memory is taken, and what failed
is remembered for a while, so that a batch too large does not run out of memory in every request
anew. Who took the memory may give it back: after some steps more rows are tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from asr.engine.decode_state import DecodeState
from asr.engine.draft_length import MAX_DRAFTS
from asr.engine.drafters import DraftModel
from asr.engine.runner import StepRunner
from asr.model.decoder import Decoder
from runtime.device_errors import is_out_of_memory

logger = logging.getLogger("endpoint")

MAX_ROWS = 128
# Left free for encoders, diarization and CUDA graphs: a share of the device, and at least 1 GiB.
HEADROOM_SHARE, HEADROOM_BYTES = 0.1, 1 << 30
# Steps without a failure after which more rows are tried; twice as many after each failure.
SHORTEST_PATIENCE, LONGEST_PATIENCE = 64, 4096


class StateMemory:
    """One decode state of the models. `limit` is the largest number of rows that may be tried.

    With `num_beams` each row has so many beams. `make_room` gives back what others hold and do not
    use; it is called before fewer rows than were asked for are allocated.
    """

    def __init__(
        self,
        main: Decoder,
        draft_model: DraftModel | None,
        runner: StepRunner,
        num_beams: int | None = None,
        make_room: Callable[[], object] = lambda: None,
    ) -> None:
        self.main, self.draft_model, self.runner = main, draft_model, runner
        self.num_beams, self.make_room = num_beams, make_room
        self.device = main.token_embeddings.device
        self.limit = MAX_ROWS
        self.state: DecodeState | None = None
        self._steps, self._patience = 0, SHORTEST_PATIENCE
        self._retried = 0  # rows that failed, and were tried again without fewer

    @property
    def capacity(self) -> int:
        """How many rows there are now."""
        return 0 if self.state is None else self.state.capacity

    @torch.inference_mode()
    def ensure_capacity(self, rows: int, live: int = 0) -> DecodeState:
        """The state, with `rows` rows where they fit, else with as many as do, at least one.

        The first `live` rows keep what they hold. Raises the device's out-of-memory error where
        nothing is live and not even the rows that should fit do.
        """
        wanted = min(rows, self.limit)
        if self.state is not None and self.capacity >= wanted:
            return self.state
        if not live:
            if self.state is not None:
                self.release()
            self.state = self._allocate(min(self.runner.rows(wanted), self._fitting(wanted)))
        elif self._fitting(wanted) >= wanted:
            self._grow(wanted, live)
        assert self.state is not None
        return self.state

    def rows_beside(self, wanted: int) -> int:
        """How many of `wanted` rows fit beside what everybody holds now; 0 where none does."""
        if self.capacity >= wanted or self.device.type != "cuda":
            return wanted
        return max(self.capacity, min(wanted, self._free_rows()))

    def release(self) -> None:
        """Give the memory back, and with it every graph captured over it."""
        if self.state is not None:
            self.runner.release(self.state)
        self.state = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def lower_limit(self, failed: int) -> None:
        """Remember that `failed` rows were too many: at most half of them are tried for now."""
        self._lower(max(1, failed // 2))
        logger.warning("%d windows at once do not fit into memory: at most %d", failed, self.limit)

    def may_retry(self, failed: int) -> bool:
        """Whether `failed` rows may be tried once more; not again before so many have succeeded.

        What was preempted may take again, on its way through another lane, what that gave back.
        """
        retried, self._retried = self._retried, failed
        return failed != retried

    def count_step(self) -> None:
        """A step has succeeded; after enough of them half as many rows again may be tried."""
        if self.capacity >= self._retried:
            self._retried = 0
        if self.limit == MAX_ROWS:
            return
        self._steps += 1
        if self._steps >= self._patience:
            self._steps, self.limit = 0, min(MAX_ROWS, self.limit + (self.limit + 1) // 2)

    def _lower(self, limit: int) -> None:
        """Try no more rows than `limit`, for longer than the last time."""
        if self.limit < MAX_ROWS:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)
        self.limit, self._steps = limit, 0

    def _allocate(self, rows: int) -> DecodeState:
        return DecodeState.allocate(
            self.main, self.draft_model, max(1, rows), MAX_DRAFTS, self.num_beams
        )

    def _grow(self, wanted: int, live: int) -> None:
        """Move the live rows to a larger state; where old and new do not fit together, stay.

        Half as large again at least, so that a row more at a time is not a copy at a time.
        """
        rows = min(max(wanted, self.capacity + self.capacity // 2), self.limit)
        try:
            larger = self._allocate(min(self.runner.rows(rows), self._fitting(rows)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._lower(self.capacity)
            return
        assert self.state is not None
        larger.copy_rows(self.state, live)
        self.release()
        self.state = larger

    def _fitting(self, wanted: int) -> int:
        """How many rows the device has memory for now; unknown on a CPU, where it is `wanted`."""
        if self.device.type != "cuda":
            return wanted
        if self._free_rows() < wanted:
            self.make_room()
        return max(1, self._free_rows())

    def _free_rows(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        headroom = max(HEADROOM_BYTES, int(total * HEADROOM_SHARE))
        per_row = DecodeState.bytes_per_row(self.main, self.draft_model, MAX_DRAFTS, self.num_beams)
        return max(0, free + cached - headroom) // per_row
