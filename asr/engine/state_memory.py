"""The decode state's memory: allocated on demand, grown under running rows, never beyond what fits.

Caches are by far the largest thing besides the weights: 342 MB a row for large-v3 in float16. How
many rows fit is asked of the device before memory is taken.
"""

from __future__ import annotations

import torch

from asr.engine.decode_state import DecodeState
from asr.engine.draft_length import MAX_DRAFTS
from asr.engine.drafters import DraftModel
from asr.engine.recovery import RowLimit
from asr.engine.runner import StepRunner
from asr.model.decoder import Decoder
from runtime.device_errors import is_out_of_memory

# Left free for encoders, diarization and CUDA graphs: a share of the device, and at least 1 GiB.
HEADROOM_SHARE, HEADROOM_BYTES = 0.1, 1 << 30


class StateMemory:
    """One decode state of the models, whose rows have `num_beams` each; `limit` is how many rows
    may be tried.
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
        self.limit = RowLimit()
        self.state: DecodeState | None = None

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
        wanted = min(rows, self.limit.rows)
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

    def lacks(self, rows: int, live: int) -> bool:
        """Whether `rows` rows, of which the first are `live`, need memory that others hold."""
        wanted = min(rows, self.limit.rows)
        if self.capacity >= wanted or self.device.type != "cuda":
            return False
        return self._free_rows() + (0 if live else self.capacity) < wanted

    def release(self) -> None:
        """Give the memory back, and with it every graph captured over it."""
        if self.state is not None:
            self.runner.release(self.state)
        self.state = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _allocate(self, rows: int) -> DecodeState:
        return DecodeState.allocate(
            self.main, self.draft_model, max(1, rows), MAX_DRAFTS, self.num_beams
        )

    def _grow(self, wanted: int, live: int) -> None:
        """Move the live rows to a larger state; where old and new do not fit together, stay.

        Half as large again at least, so that a row more at a time is not a copy at a time.
        """
        rows = min(max(wanted, self.capacity + self.capacity // 2), self.limit.rows)
        try:
            larger = self._allocate(min(self.runner.rows(rows), self._fitting(rows)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.limit.hold(self.capacity)
            return
        assert self.state is not None
        larger.copy_rows(self.state, live)
        self.release()
        self.state = larger

    def _fitting(self, wanted: int) -> int:
        """How many rows the device has memory for now; unknown on a CPU, where it is `wanted`."""
        return wanted if self.device.type != "cuda" else max(1, self._free_rows())

    def _free_rows(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        headroom = max(HEADROOM_BYTES, int(total * HEADROOM_SHARE))
        per_row = DecodeState.bytes_per_row(self.main, self.draft_model, MAX_DRAFTS, self.num_beams)
        return max(0, free + cached - headroom) // per_row
