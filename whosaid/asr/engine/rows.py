"""The state of a batch's rows, without the models' caches, and the shapes of a pass over them.

All of it is tensors that are allocated once. A step updates them in place, so it copies nothing to
the host and a CUDA graph can replay it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from whosaid.asr.model.kv_cache import RowTensors
from whosaid.asr.model.logit_filters import History


class StepShape(NamedTuple):
    """Everything that a step's CUDA graph depends on, besides the number of rows."""

    drafts: int  # k; 0 is plain greedy decoding
    assistant_lag: int  # newest tokens the assistant may not have read, at least 1
    kv_len: int  # above every position read or written
    sampled: bool = False  # whether any row samples
    timestamps: bool = True  # whether any row follows the timestamp grammar
    followed: bool = False  # whether the drafter takes its state from the main model's pass
    drafts_given: bool = False  # whether the drafts are written behind the rows' lengths already


class PaddedSizes(NamedTuple):
    """The sizes that passes are padded to; without any, a pass has the size that it needs."""

    rows: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()  # of caches
    prompt: tuple[int, ...] = ()  # positions that a prefill reads
    guess: tuple[int, ...] = ()  # guessed tokens


def padded(needed: int, sizes: tuple[int, ...], most: int) -> int:
    """Return the next of `sizes`, or `needed` itself beyond the largest; at most `most`."""
    return min(most, next((each for each in sizes if each >= needed), needed))


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
    accepted: Tensor  # (rows,) drafted tokens that were right, in the last step with drafts
    drafted: Tensor  # (rows,) drafted tokens up to the first wrong one, in that step

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
