"""Speculative decoding of many rows at once: draft, verify, accept, each row at its own pace.

A drafter, which is a small assistant or heads on the main model (`asr.engine.drafters`), writes k
tokens. The main model reads all of them in one pass, which yields its own choice at every position.
The longest prefix of the draft that equals those choices is accepted, and the main model's next
choice: exactly the tokens of greedy decoding (Leviathan, Kalman and Matias 2023, "Fast inference
from transformers via speculative decoding").

Rows of a batch accept different numbers of tokens, so every row has a length of its own: caches
hold more than is final, the next pass overwrites rejected tokens, and nothing is shifted, padded or
copied. After full acceptance the assistant lacks the last drafted token, so each step begins by
giving it the two newest tokens of every row. Rows that sample or have no assistant accept nothing.

A step is a function of tensors on the device alone, so the host never waits inside a step, and CUDA
can replay it as a graph.
"""

import torch
from torch import Tensor

from whosaid.asr.engine.beam_search import beam_step
from whosaid.asr.engine.drafters import Drafter, MedusaDrafter
from whosaid.asr.engine.rows import SequenceState, StepShape
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.logit_filters import Choice, LogitFilter


def decode_step(state: DecodeState, filters: LogitFilter, shape: StepShape) -> None:
    """Advance every unfinished row by 1 to `shape.drafts` + 1 tokens, or each of its beams by 1."""
    if state.beams is not None:
        beam_step(state, state.beams, filters, shape)
        return
    rows, drafter = state.rows, state.drafter
    if drafter is not None and shape.drafts and not shape.drafts_given:
        draft(drafter, rows, filters, shape)
    ends = rows.length[:, None] + torch.arange(shape.drafts + 1, device=rows.length.device)
    choice, hidden = verify(state, ends, filters, shape)
    gained = accept(rows, choice, ends, count_accepted(rows, choice, ends), filters.eos)
    if shape.followed and isinstance(drafter, MedusaDrafter):
        drafter.follow(hidden, ends - 1, gained, shape.kv_len)


def draft(drafter: Drafter, rows: SequenceState, filters: LogitFilter, shape: StepShape) -> None:
    for ends, scores in drafter.scores(rows, filters.bias, shape):
        choice = filters.choose(scores, rows.before(ends), shape.timestamps, scored=False)
        rows.tokens.scatter_(1, ends, choice.tokens)


def verify(
    state: DecodeState, ends: Tensor, filters: LogitFilter, shape: StepShape
) -> tuple[Choice, Tensor]:
    """Return the main model's choice of tokens number `ends` (rows, drafts + 1), after the newest
    final token and each draft, and its hidden states there, (rows, drafts + 1, d_model).
    """
    rows, decoder, positions = state.rows, state.decoder, ends - 1
    tokens = rows.tokens.gather(1, positions)
    hidden = decoder.forward(tokens, positions, state.cache, shape.kv_len)
    logits = decoder.logits(hidden, filters.bias)
    choice = filters.choose(logits, rows.before(ends), shape.timestamps)
    if shape.sampled:
        choice = sample_first(choice, logits, rows, filters, shape.timestamps)
    return choice, hidden


def sample_first(
    choice: Choice, logits: Tensor, rows: SequenceState, filters: LogitFilter, grammar: bool
) -> Choice:
    """Return `choice` with the first position sampled in rows whose temperature is above 0."""
    first = rows.length[:, None]
    uniform = rows.uniform.gather(1, first)
    sample = filters.sample(logits[:, :1], rows.before(first), rows.temperature, uniform, grammar)
    sampled = rows.temperature[:, None] > 0
    return Choice(
        *(
            torch.cat([torch.where(sampled, drawn, greedy[:, :1]), greedy[:, 1:]], dim=1)
            for greedy, drawn in zip(choice, sample, strict=True)
        )
    )


def count_accepted(rows: SequenceState, choice: Choice, ends: Tensor) -> Tensor:
    """Return how many drafted tokens of each row equal the main model's choices, (rows,), and write
    the rows' counts of accepted and drafted tokens.
    """
    drafts = choice.tokens.shape[1] - 1
    if not drafts:
        return torch.zeros_like(rows.length)
    accepted = count_agreed(rows, choice, ends, rows.draftable[:, None])
    counted = rows.draftable & ~rows.finished
    rows.accepted.copy_(accepted * counted)
    rows.drafted.copy_((accepted + 1).clamp(max=drafts) * counted)
    return accepted


def count_agreed(rows: SequenceState, choice: Choice, ends: Tensor, drafted: Tensor) -> Tensor:
    """Return how many tokens behind each row's length equal the main model's choices, (rows,).

    Count up to the first token that differs. `choice` is of tokens number `ends` (rows, drafts +
    1); `drafted` (rows, drafts), or (rows, 1), says which tokens are drafts.
    """
    drafts = choice.tokens.shape[1] - 1
    agreed = choice.tokens[:, :drafts] == rows.tokens.gather(1, ends[:, :drafts])
    return (agreed & drafted).cumprod(dim=1).sum(dim=1)


def accept(rows: SequenceState, choice: Choice, ends: Tensor, accepted: Tensor, eos: int) -> Tensor:
    """Make the first `accepted` + 1 choices of each row final, up to its end of text or limit.

    `choice` is of tokens number `ends`, from each row's length on, both (rows, positions). Return
    how many tokens each row gained, (rows,).
    """
    is_end, count = choice.tokens == eos, choice.tokens.shape[1]
    kept = (ends < rows.max_length[:, None]) & ~rows.finished[:, None]
    if count > 1:
        kept &= torch.arange(count, device=ends.device) <= accepted[:, None]
        kept &= is_end.cumsum(dim=1) == is_end  # none before
    rows.tokens.scatter_(1, ends, choice.tokens)
    rows.log_probs.scatter_(1, ends, choice.log_probs.double())
    gained = kept.sum(dim=1)
    rows.length.add_(gained)
    rows.finished.logical_or_((kept & is_end).any(dim=1) | (rows.length >= rows.max_length))
    return gained
