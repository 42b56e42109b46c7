"""What drafts for the rows of a batch: an assistant, or Medusa heads on the main model's own state.

An assistant reads tokens: it runs a small model over caches of its own, once for every draft. Heads
read what the main model has computed already, the hidden state that chose a row's newest token, so
all they keep of a row is that vector; in exchange it must be written in every step.

Both have one small interface, and a step knows no more of them. Drafts never decide a token, so
whatever stands behind the interface changes speed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from asr.checkpoint.loading import WhisperModels
from asr.engine.draft_length import MAX_DRAFTS
from asr.model.decoder import Decoder
from asr.model.draft_heads import MedusaModel
from asr.model.encoder import EncoderOutput
from asr.model.kv_cache import KVCache, RowTensors

if TYPE_CHECKING:
    from asr.engine.state import SequenceState, StepShape

DraftModel = Decoder | MedusaModel
Scored = tuple[Tensor, Tensor]  # places (rows, 1), scores (rows, 1, vocabulary)


class Drafter(Protocol):
    """What drafts for some rows, with what it keeps of each; all tensors, updated in place."""

    @property
    def cache(self) -> KVCache | None:
        """Keys and values of its own, if it has any."""

    def listen(self, encoded: EncoderOutput) -> None:
        """Take in the audio of these rows."""

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        """Take in prompts, `tokens` at `positions` (rows, longest), and what became of them.

        `hidden` (rows, longest, d_model) are the main model's states; that at `chosen_at` (rows,)
        chose the row's newest token. What stands behind it may be anything.
        """

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """Where each of `shape.drafts` tokens goes, (rows, 1), and scores with `bias` added.

        The caller writes the token it chooses into `rows` before it asks for the next.
        """

    def follow(self, hidden: Tensor, positions: Tensor, gained: Tensor, kv_len: int) -> None:
        """Take in a verifying pass: the main model's states at `positions` (rows, drafts + 1).

        `gained` (rows,) says how many tokens were final after it. Only where `shape.followed`.
        """

    def view(self, start: int, stop: int) -> Self:
        """Rows `start` to `stop`, sharing memory."""

    def take(self, rows: Tensor) -> Self:
        """The rows with the numbers (n,): caches shared, all else copied until `put`."""

    def put(self, rows: Tensor, taken: Self) -> None:
        """Overwrite the rows with the numbers (n,) with what `taken` has copied."""


@dataclass(frozen=True)
class AssistantDrafter(RowTensors):
    """A smaller decoder, and the cache it writes."""

    decoder: Decoder
    cache: KVCache

    def listen(self, encoded: EncoderOutput) -> None:
        """Project the audio to keys and values, of its own encoder's output or the main one's."""
        assert encoded.assistant is not None
        self.decoder.fill_cross_kv(encoded.assistant, self.cache)

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        """Read the prompts as the main model did."""
        self.decoder.forward(tokens, positions, self.cache, tokens.shape[1])

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """One pass a draft; the first also reads what has become final since the last."""
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
        """Nothing: it reads the tokens when it drafts."""


@dataclass(frozen=True)
class MedusaDrafter(RowTensors):
    """Heads, and for each row the state that chose its newest token, `newest` (rows, d_model).

    `cache` is that of the further layer of a Medusa-Block checkpoint.
    """

    model: MedusaModel
    newest: Tensor
    cache: KVCache | None

    @classmethod
    def allocate(cls, model: MedusaModel, rows: int, max_len: int) -> MedusaDrafter:
        """Zeros."""
        cache = None if model.block is None else model.block.allocate(rows, max_len)
        return cls(model, model.like.new_zeros(rows, model.like.shape[1]), cache)

    def listen(self, encoded: EncoderOutput) -> None:
        """Project the audio for the further layer, if there is one."""
        if self.model.block is not None and self.cache is not None:
            self.model.block.fill_cross_kv(encoded.main, self.cache)

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        """Keep the state that chose each row's newest token."""
        states = self.model.states(hidden, positions, self.cache, tokens.shape[1])
        self.newest.copy_(_at(states, chosen_at))

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """All at once; what the rules allow still follows from the drafts before."""
        every = self.model.scores(self.newest, shape.drafts, bias)
        for step, scores in enumerate(torch.split(every, 1, dim=1)):
            yield rows.length[:, None] + step, scores

    def follow(self, hidden: Tensor, positions: Tensor, gained: Tensor, kv_len: int) -> None:
        """Keep the state that chose the newest token; rows that gained none keep what they have."""
        states = self.model.states(hidden, positions, self.cache, kv_len)
        newest = _at(states, (gained - 1).clamp(min=0))
        self.newest.copy_(torch.where(gained[:, None] > 0, newest, self.newest))


def draft_model(models: WhisperModels, main: Decoder) -> DraftModel | None:
    """What drafts for `main`, if the models have anything that does."""
    if models.assistant is not None:
        return Decoder(models.assistant.model, dtype=models.product_dtype)
    if models.medusa is not None:
        return MedusaModel(main, models.medusa, models.product_dtype)
    return None


def allocate_drafter(model: DraftModel, rows: int, max_len: int) -> Drafter:
    """A drafter for `rows` rows of up to `max_len` positions."""
    if isinstance(model, MedusaModel):
        return MedusaDrafter.allocate(model, rows, max_len)
    return AssistantDrafter(model, model.allocate(rows, max_len))


def drafter_bytes_per_row(model: DraftModel, max_len: int) -> int:
    """What such a drafter keeps of one row, in bytes."""
    if not isinstance(model, MedusaModel):
        return model.cache_bytes_per_row(max_len)
    vector = model.like.shape[1] * model.like.element_size()
    return vector + (0 if model.block is None else model.block.cache_bytes_per_row(max_len))


def most_drafts(model: DraftModel) -> int:
    """How many tokens it can draft in a step."""
    return min(MAX_DRAFTS, model.count) if isinstance(model, MedusaModel) else MAX_DRAFTS


def follows(model: DraftModel | None) -> bool:
    """Whether it takes its state from the main model's passes, rather than reading tokens."""
    return isinstance(model, MedusaModel)


def _at(states: Tensor, index: Tensor) -> Tensor:
    """(rows, n, d_model) at `index` (rows,) -> (rows, d_model)."""
    return states[torch.arange(states.shape[0], device=states.device), index]
