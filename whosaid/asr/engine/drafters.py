"""The drafters of a batch: an assistant, or Medusa heads on the main model's own state.

An assistant is a small model with its own caches, which runs once per draft. Heads read the hidden
state of the main model that chose a row's newest token, which every step must write. Drafts never
decide a token, so a drafter changes only speed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.rows import SequenceState, StepShape
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.draft_heads import MedusaModel
from whosaid.asr.model.encoder import EncoderOutput
from whosaid.asr.model.kv_cache import KVCache, RowTensors

MAX_DRAFTS = 10  # in a step
NEWEST = 2  # tokens that an assistant may not have read after a step with drafts

DraftModel = Decoder | MedusaModel
Scored = tuple[Tensor, Tensor]  # places (rows, 1), scores (rows, 1, vocabulary)


@dataclass(frozen=True)
class AssistantDrafter(RowTensors):
    """A smaller decoder and its cache."""

    decoder: Decoder
    cache: KVCache

    def listen(self, encoded: EncoderOutput) -> None:
        """Project the audio of these rows into the cache."""
        assert encoded.assistant is not None
        self.decoder.fill_cross_kv(encoded.assistant, self.cache)

    def read_prompt(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, chosen_at: Tensor
    ) -> None:
        """Read prompts, `tokens` at `positions` (rows, longest).

        `hidden` (rows, longest, d_model) are the main model's states. The state at `chosen_at`
        (rows,) chose the row's newest token; later states are undefined.
        """
        self.decoder.forward(tokens, positions, self.cache, tokens.shape[1])

    def scores(self, rows: SequenceState, bias: Tensor, shape: StepShape) -> Iterator[Scored]:
        """Yield the place (rows, 1) and the scores with `bias` of each of `shape.drafts` tokens.

        The caller writes its choice into `rows` before it requests the next token. Each takes a
        pass; the first also reads the tokens that became final since the last step.
        """
        for step in range(shape.drafts):
            ends = rows.length[:, None] + step
            # Rows shorter than the lag read their first token several times, without effect.
            back = torch.arange(-shape.assistant_lag if step == 0 else -1, 0, device=ends.device)
            positions = (ends + back).clamp(min=0)
            tokens = rows.tokens.gather(1, positions)
            hidden = self.decoder.forward(tokens, positions, self.cache, shape.kv_len)
            # Contiguous, or the product would read the vocabulary's weights once for every row.
            yield ends, self.decoder.logits(hidden[:, -1:].contiguous(), bias)


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
        """Score all drafts at once; the allowed tokens still depend on earlier drafts."""
        every = self.model.scores(self.newest, shape.drafts, bias)
        for step, scores in enumerate(torch.split(every, 1, dim=1)):
            yield rows.length[:, None] + step, scores

    def follow(self, hidden: Tensor, positions: Tensor, gained: Tensor, kv_len: int) -> None:
        """Read a verifying pass: the main model's states at `positions` (rows, drafts + 1).

        Keep the state that chose the newest token. `gained` (rows,) counts the tokens that the pass
        made final; rows that gained none keep their state.
        """
        states = self.model.states(hidden, positions, self.cache, kv_len)
        newest = _at(states, (gained - 1).clamp(min=0))
        self.newest.copy_(torch.where(gained[:, None] > 0, newest, self.newest))


Drafter = AssistantDrafter | MedusaDrafter


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
