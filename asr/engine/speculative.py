"""Speculative decoding of many rows at once: draft, verify, accept, each row at its own pace.

A small assistant drafts k tokens one after the other; the main model reads all of them in one pass
and so yields, for every position, the token it would have chosen itself. The longest prefix of the
draft that equals those choices is accepted, and so is the main model's next choice: between 1 and
k + 1 tokens a pass, and exactly the tokens of greedy decoding (Leviathan, Kalman and Matias 2023,
"Fast inference from transformers via speculative decoding"; for greedy choice their acceptance
test is equality).

What batching changes: rows accept different numbers of tokens. Advancing all rows by the smallest
number would lose almost everything (all of B rows accept a token with probability a to the power
B). Here every row has a length of its own: caches hold more than is final, the next pass overwrites
what was rejected, and nothing is shifted, padded or copied. After full acceptance the assistant
lacks the last drafted token. Rather than treat such rows apart, each step begins by giving the
assistant the two newest tokens of every row, of which it may know the first. Rows that sample or
have no assistant take part and accept nothing.

The one decision: a step is a function of tensors on the device alone. Nothing in it asks the device
for a value, so the host never waits inside a step and CUDA can replay it as a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asr.engine.beam_search import beam_step
from asr.engine.decode_state import DecodeState, ModelWithCache, SequenceState, StepShape
from asr.engine.logit_filters import Choice, LogitFilter, SamplingParams


def decode_step(state: DecodeState, filters: LogitFilter, shape: StepShape) -> None:
    """Advance every unfinished row by 1 to `shape.drafts` + 1 tokens, or each of its beams by 1."""
    if state.beams is not None:
        return beam_step(state, state.beams, filters, shape)
    if state.assistant is not None and shape.drafts:
        draft(state.assistant, state.rows, filters, shape)
    choice = verify(state.main, state.rows, filters, shape)
    return accept(state.rows, choice, count_accepted(state.rows, choice), filters.eos)


def draft(
    assistant: ModelWithCache, rows: SequenceState, filters: LogitFilter, shape: StepShape
) -> None:
    """Write the assistant's next `shape.drafts` tokens behind each row's length."""
    for step in range(shape.drafts):
        ends = rows.length[:, None] + step
        # Rows shorter than the lag read their first token several times, which changes nothing.
        back = torch.arange(-shape.assistant_lag if step == 0 else -1, 0, device=ends.device)
        hidden = _forward(assistant, rows, (ends + back).clamp(min=0), shape.kv_len)
        # Contiguous, or the product would read the vocabulary's weights once for every row.
        logits = assistant.decoder.logits(hidden[:, -1:].contiguous(), filters.bias)
        choice = filters.choose(logits, rows.before(ends), shape.timestamps, scored=False)
        rows.tokens.scatter_(1, ends, choice.tokens)


def verify(
    main: ModelWithCache, rows: SequenceState, filters: LogitFilter, shape: StepShape
) -> Choice:
    """The main model's choice after the newest final token and each draft, (rows, drafts + 1)."""
    ends = rows.length[:, None] + torch.arange(shape.drafts + 1, device=rows.length.device)
    logits = main.decoder.logits(_forward(main, rows, ends - 1, shape.kv_len), filters.bias)
    choice = filters.choose(logits, rows.before(ends), shape.timestamps)
    if not shape.sampled:
        return choice
    return sample_first(choice, logits, rows, filters, shape.timestamps)


def sample_first(
    choice: Choice, logits: Tensor, rows: SequenceState, filters: LogitFilter, grammar: bool
) -> Choice:
    """`choice` with the first position sampled in rows whose temperature is above 0."""
    first = rows.length[:, None]
    params = SamplingParams(rows.temperature, rows.uniform.gather(1, first))
    sample = filters.sample(logits[:, :1], rows.before(first), params, grammar)
    sampled = rows.temperature[:, None] > 0
    columns = []
    for greedy, drawn in zip(choice, sample, strict=True):
        columns.append(
            torch.cat([torch.where(sampled, drawn, greedy[:, :1]), greedy[:, 1:]], dim=1)
        )
    return Choice(*columns)


def count_accepted(rows: SequenceState, choice: Choice) -> Tensor:
    """How many drafted tokens of each row equal the main model's choices, (rows,).

    Adds to the rows' counts of accepted and drafted tokens.
    """
    drafts = choice.tokens.shape[1] - 1
    places = rows.length[:, None] + torch.arange(drafts, device=rows.length.device)
    agreed = choice.tokens[:, :drafts] == rows.tokens.gather(1, places)
    agreed &= rows.draftable[:, None]
    accepted = agreed.long().cumprod(dim=1).sum(dim=1)
    counted = rows.draftable & ~rows.finished
    rows.accepted.add_(accepted * counted)
    rows.drafted.add_((accepted + 1).clamp(max=drafts) * counted)
    return accepted


def accept(rows: SequenceState, choice: Choice, accepted: Tensor, eos: int) -> None:
    """Make the first `accepted` + 1 choices of each row final, up to its end of text or limit."""
    steps = torch.arange(choice.tokens.shape[1], device=rows.length.device)
    places = rows.length[:, None] + steps
    is_end = choice.tokens == eos
    ended_before = is_end.long().cumsum(dim=1) - is_end.long()
    kept = (steps <= accepted[:, None]) & (ended_before == 0)
    kept &= (places < rows.max_length[:, None]) & ~rows.finished[:, None]
    rows.tokens.scatter_(1, places, choice.tokens)
    rows.log_probs.scatter_(1, places, choice.log_probs.double())
    rows.length.add_(kept.long().sum(dim=1))
    rows.finished.logical_or_((kept & is_end).any(dim=1) | (rows.length >= rows.max_length))


def _forward(model: ModelWithCache, rows: SequenceState, positions: Tensor, kv_len: int) -> Tensor:
    tokens = rows.tokens.gather(1, positions)
    return model.decoder.forward(tokens, positions, model.cache, kv_len)
