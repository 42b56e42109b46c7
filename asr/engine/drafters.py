"""The drafters of a batch: an assistant, or Medusa heads on the main model's own state.

An assistant reads tokens: a small model with its own caches runs once per draft. Heads read the
hidden state of the main model that chose a row's newest token. So they keep only that vector per
row, but every step must write it.

A step uses both through the `Drafter` interface. Drafts never decide a token, so a drafter changes
only speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from asr.checkpoint.loading import WhisperModels
from asr.model.decoder import Decoder
from asr.model.draft_heads import MedusaModel
from asr.model.encoder import EncoderOutput
from asr.model.kv_cache import KVCache, RowTensors

if TYPE_CHECKING:
    from asr.engine.state import SequenceState, StepShape

MAX_DRAFTS = 10  # in a step

DraftModel = Decoder | MedusaModel
Scored = tuple[Tensor, Tensor]  # places (rows, 1), scores (rows, 1, vocabulary)


class Drafter(Protocol):
    """A draft model and its state of some rows: tensors that are updated in place."""

    @property
    def cache(self) -> KVCache | None:
        """Return the drafter's own keys and values, if it has any."""

    def listen(self, encoded: EncoderOutput) -> None:
        """Project the audio of these rows into the cache."""

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        """Read prompts, `tokens` at `positions` (rows, longest).

        `hidden` (rows, longest, d_model) are the main model's states. The state at `chosen_at`
        (rows,) chose the row's newest token; later states are undefined.
        """

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """Yield the place (rows, 1) and the scores with `bias` of each of `shape.drafts` tokens.

        The caller writes its choice into `rows` before it requests the next token.
        """

    def follow(self, hidden: Tensor, positions: Tensor, gained: Tensor, kv_len: int) -> None:
        """Read a verifying pass: the main model's states at `positions` (rows, drafts + 1).

        `gained` (rows,) counts the tokens that the pass made final. Called if `shape.followed`.
        """

    def view(self, start: int, stop: int) -> Self:
        """Return rows `start` to `stop`, sharing memory."""

    def take(self, rows: Tensor) -> Self:
        """Return rows number `rows` (n,): caches are shared, all else is copied until `put`."""

    def put(self, rows: Tensor, taken: Self) -> None:
        """Overwrite rows number `rows` (n,) with the copies in `taken`."""


@dataclass(frozen=True)
class AssistantDrafter(RowTensors):
    """A smaller decoder and its cache."""

    decoder: Decoder
    cache: KVCache

    def listen(self, encoded: EncoderOutput) -> None:
        assert encoded.assistant is not None
        self.decoder.fill_cross_kv(encoded.assistant, self.cache)

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        self.decoder.forward(tokens, positions, self.cache, tokens.shape[1])

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """Run one pass per draft; the first also reads tokens that became final since the last."""
        for step in range(shape.drafts):
            ends = rows.length[:, None] + step
            # Rows shorter than the lag read their first token several times, which changes nothing.
            back = torch.arange(-shape.assistant_lag if step == 0 else -1, 0, device=ends.device)
            positions = (ends + back).clamp(min=0)
            tokens = rows.tokens.gather(1, positions)
            hidden = self.decoder.forward(tokens, positions, self.cache, shape.kv_len)
            # Contiguous, or the product would read the vocabulary's weights once for every row.
            yield ends, self.decoder.logits(hidden[:, -1:].contiguous(), bias)

    def follow(self, hidden: Tensor, positions: Tensor, gained: Tensor, kv_len: int) -> None:
        pass


@dataclass(frozen=True)
class MedusaDrafter(RowTensors):
    """Heads, and the state that chose each row's newest token, `newest` (rows, d_model).

    `cache` belongs to the additional layer of a Medusa-Block checkpoint.
    """

    model: MedusaModel
    newest: Tensor
    cache: KVCache | None

    def listen(self, encoded: EncoderOutput) -> None:
        if self.model.block is not None and self.cache is not None:
            self.model.block.fill_cross_kv(encoded.main, self.cache)

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        states = self.model.states(hidden, positions, self.cache, tokens.shape[1])
        self.newest.copy_(_at(states, chosen_at))

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """Score all drafts at once; what the filters allow still depends on the drafts before."""
        every = self.model.scores(self.newest, shape.drafts, bias)
        for step, scores in enumerate(torch.split(every, 1, dim=1)):
            yield rows.length[:, None] + step, scores

    def follow(self, hidden: Tensor, positions: Tensor, gained: Tensor, kv_len: int) -> None:
        """Keep the state that chose the newest token; rows that gained none keep their state."""
        states = self.model.states(hidden, positions, self.cache, kv_len)
        newest = _at(states, (gained - 1).clamp(min=0))
        self.newest.copy_(torch.where(gained[:, None] > 0, newest, self.newest))


def _at(states: Tensor, index: Tensor) -> Tensor:
    """(rows, n, d_model) at `index` (rows,) -> (rows, d_model)."""
    return states[torch.arange(states.shape[0], device=states.device), index]


def draft_model(models: WhisperModels, main: Decoder) -> DraftModel | None:
    if models.assistant is not None:
        return Decoder(models.assistant.model, dtype=models.product_dtype)
    if models.medusa is not None:
        return MedusaModel(main, models.medusa, models.product_dtype)
    return None


def allocate_drafter(model: DraftModel, rows: int, max_len: int) -> Drafter:
    if isinstance(model, Decoder):
        return AssistantDrafter(model, model.allocate(rows, max_len))
    cache = None if model.block is None else model.block.allocate(rows, max_len)
    return MedusaDrafter(model, model.like.new_zeros(rows, model.like.shape[1]), cache)


def drafter_bytes_per_row(model: DraftModel, max_len: int) -> int:
    if isinstance(model, Decoder):
        return model.cache_bytes_per_row(max_len)
    vector = model.like.shape[1] * model.like.element_size()
    return vector + (0 if model.block is None else model.block.cache_bytes_per_row(max_len))
