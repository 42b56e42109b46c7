"""What the device knows of each row, and what the host knows of a step over rows.

The state of a row is one entry in each of a few tensors, rows first, so that a step updates all
rows in place and a view of some rows is a slice of each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

from asr.engine.logit_filters import History
from asr.model.decoder import Decoder
from asr.model.kv_cache import KVCache


def upload(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`; the host does not wait for CUDA."""
    if values.device == device or device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values).to(device, non_blocking=True)


class ModelWithCache(NamedTuple):
    """A decoder and the cache it writes."""

    decoder: Decoder
    cache: KVCache

    def view(self, start: int, stop: int) -> ModelWithCache:
        """Rows `start` to `stop` of the cache, sharing memory."""
        return ModelWithCache(self.decoder, self.cache.view(start, stop))

    def select(self, rows: Tensor) -> ModelWithCache:
        """The rows with the numbers (n,), sharing memory; see `KVCache.select`."""
        return ModelWithCache(self.decoder, self.cache.select(rows))


class StepShape(NamedTuple):
    """All that a CUDA graph of a step depends on besides the number of rows; known to the host."""

    drafts: int  # k; 0 is plain greedy decoding
    assistant_lag: int  # newest tokens the assistant may not have read, at least 1
    kv_len: int  # above every position read or written
    sampled: bool = False  # whether any row samples
    timestamps: bool = True  # whether any row follows the timestamp grammar
    shared_len: int = 0  # positions that are alike in all beams of every row
    followed: bool = False  # whether the drafter takes its state from the main model's pass
    told: bool = False  # whether the drafts stand behind the rows' lengths already


class RowTensors:
    """A dataclass of tensors whose first dimension is the rows."""

    def view(self, start: int, stop: int) -> Self:
        """Rows `start` to `stop`, sharing memory."""
        return type(self)(*(each[start:stop] for each in self._tensors()))

    def take(self, rows: Tensor) -> Self:
        """A copy of the rows with the numbers (n,)."""
        return type(self)(*(each.index_select(0, rows) for each in self._tensors()))

    def put(self, rows: Tensor, taken: Self) -> None:
        """Overwrite the rows with the numbers (n,) with those of `taken`."""
        for target, source in zip(self._tensors(), taken._tensors(), strict=True):
            target.index_copy_(0, rows, source)

    def copy_rows(self, other: Self, rows: int) -> None:
        """Overwrite the first `rows` rows with those of `other`."""
        for target, source in zip(self._tensors(), other._tensors(), strict=True):
            target[:rows].copy_(source[:rows])

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class SequenceState(RowTensors):
    """The state of each row. Tokens from `length` on are drafts or leftovers."""

    tokens: Tensor  # (rows, max_len): the prompt, then what was decoded
    prompt_len: Tensor  # (rows,)
    length: Tensor  # (rows,) tokens that are final
    max_length: Tensor  # (rows,) most tokens it may have
    finished: Tensor  # (rows,) whether it met its end or limit
    draftable: Tensor  # (rows,) whether drafts may be accepted
    timestamps: Tensor  # (rows,) whether it follows the timestamp grammar
    grammar_start: Tensor  # (rows,) where it begins; beyond every position in other rows
    temperature: Tensor  # (rows,) 0 for greedy
    uniform: Tensor  # (rows, max_len) random numbers in [0, 1) for sampling at each position
    log_probs: Tensor  # (rows, max_len) natural logs, of the tokens that were decoded
    accepted: Tensor  # (rows,) drafted tokens that were right, since the last result
    drafted: Tensor  # (rows,) drafted tokens up to the first wrong one, since the last result

    @classmethod
    def allocate(cls, rows: int, max_len: int, device: torch.device) -> SequenceState:
        """Rows that are all finished."""

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

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
        """What the logit filters look at to choose tokens number `ends` (rows, positions)."""
        return History(self.tokens, ends, self.timestamps, self.grammar_start)


@dataclass(frozen=True)
class BeamState(RowTensors):
    """The beams of each row, and the hypotheses that have ended.

    A beam that goes on stays where it is, the others take the places of beams that died. `written`,
    `parents` and `log_probs` are never reordered: they say what was put at a place, and which
    place's beam it continued (see `asr.engine.beam_search`).
    """

    tokens: Tensor  # (rows, beams, max_len): the texts of the live beams, with the prompt
    sums: Tensor  # (rows, beams) of log-probabilities
    written: Tensor  # (rows, beams, max_len) tokens
    parents: Tensor  # (rows, beams, max_len)
    log_probs: Tensor  # (rows, beams, max_len) natural logs
    ended: Tensor  # (rows,) hypotheses that met the end of text
    # (rows, beams + 1), of each in the order they ended; the last column takes what is not kept
    end_beam: Tensor  # the beam that chose the end of text
    end_length: Tensor  # tokens before it, with the prompt
    end_sum: Tensor
    end_log_prob: Tensor

    @classmethod
    def allocate(cls, rows: int, num_beams: int, max_len: int, device: torch.device) -> BeamState:
        """Beams of zeros."""

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        every, ends = (num_beams, max_len), num_beams + 1
        return cls(
            tokens=zeros(*every),
            sums=zeros(num_beams, dtype=torch.float64),
            written=zeros(*every),
            parents=zeros(*every),
            log_probs=zeros(*every, dtype=torch.float64),
            ended=zeros(),
            end_beam=zeros(ends),
            end_length=zeros(ends),
            end_sum=zeros(ends, dtype=torch.float64),
            end_log_prob=zeros(ends, dtype=torch.float64),
        )

    @property
    def num_beams(self) -> int:
        """How many beams a row has."""
        return self.sums.shape[1]
