"""Speculative decoding of many rows at once: draft, verify, accept, each row at its own pace.

A small assistant drafts k tokens one after the other; the main model reads all of them in one pass
and thereby says, for every position, which token it would have chosen itself. The longest prefix of
the draft that equals those choices stands, and so does the main model's next choice: between 1 and
k + 1 tokens a pass, and exactly the tokens that greedy decoding gives (Leviathan, Kalman and Matias
2023, "Fast inference from transformers via speculative decoding"; for greedy choice their
acceptance test is equality).

What batching changes: rows accept different numbers of tokens, so after one round they stand at
different places. Advancing all by the smallest number would lose almost everything (all of B rows
accept a token with chance a to the power B). Here a row is its length: caches hold more than is
final, the next pass writes over what was rejected (see `asr.model.decoder`), and nothing is
shifted, padded or copied. After full acceptance the assistant lacks the last drafted token; rather
than treat such rows apart, each round begins by showing the assistant the two newest tokens of
every row, of which it may know the first. Rows that sample or have no assistant ride along and
accept nothing.

The one decision: a round is a function of tensors on the device alone. Nothing in it asks the
device for a value, so the host never waits inside a round and CUDA can replay it as a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from asr.engine.logit_filters import Choice, Draw, LogitFilter
from asr.model.decoder import Cache, Decoder


class Reader(NamedTuple):
    """A decoder and the cache it reads into."""

    decoder: Decoder
    cache: Cache

    def view(self, start: int, stop: int) -> Reader:
        """Rows `start` to `stop` of the cache, sharing memory."""
        return Reader(self.decoder, self.cache.view(start, stop))


class Round(NamedTuple):
    """The shape of a round, known to the host: with the number of rows, all that a CUDA graph
    depends on.
    """

    drafts: int  # k; 0 is plain greedy decoding
    unread: int  # newest tokens the assistant may not have read, at least 1
    span: int  # above every position read or written
    sampled: bool = False  # whether any row samples


@dataclass(frozen=True)
class Rows:
    """What is known of each row of a batch. Tokens from `length` on are drafts or rubbish."""

    tokens: Tensor  # (rows, width): the prompt, then what was decoded
    begin: Tensor  # (rows,) length of the prompt
    length: Tensor  # (rows,) tokens that are final
    limit: Tensor  # (rows,) most tokens it may have
    finished: Tensor  # (rows,) whether it met its end or limit
    draftable: Tensor  # (rows,) whether drafts may be accepted
    temperature: Tensor  # (rows,) 0 for greedy
    chance: Tensor  # (rows, width) in [0, 1): what sampling draws at each position
    log_probability: Tensor  # (rows, width) natural logs, of the tokens that were decoded
    accepted: Tensor  # (rows,) drafted tokens that stood
    judged: Tensor  # (rows,) drafted tokens up to the first that did not

    @classmethod
    def allocate(cls, rows: int, width: int, device: torch.device) -> Rows:
        """Rows that are all finished."""

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            tokens=zeros(rows, width),
            begin=zeros(rows) + 1,
            length=zeros(rows) + 1,
            limit=zeros(rows) + 1,
            finished=zeros(rows, dtype=torch.bool) | True,
            draftable=zeros(rows, dtype=torch.bool),
            temperature=zeros(rows, dtype=torch.float32),
            chance=zeros(rows, width, dtype=torch.float32),
            log_probability=zeros(rows, width, dtype=torch.float64),
            accepted=zeros(rows),
            judged=zeros(rows),
        )

    def view(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop`, sharing memory."""
        return Rows(*(getattr(self, field.name)[start:stop] for field in fields(self)))

    def move(self, source: int, target: int) -> None:
        """Overwrites row `target` with row `source`."""
        for field in fields(self):
            each = getattr(self, field.name)
            each[target].copy_(each[source])


@dataclass(frozen=True)
class Batch:
    """Rows and what both models remember of them."""

    main: Reader
    assistant: Reader | None
    rows: Rows

    @classmethod
    def allocate(cls, main: Decoder, assistant: Decoder | None, rows: int, drafts: int) -> Batch:
        """Room for `rows` rows of the model's longest text and up to `drafts` drafted tokens behind
        it.
        """
        width = main.length + drafts + 1
        helper = None if assistant is None else Reader(assistant, assistant.allocate(rows, width))
        return cls(
            Reader(main, main.allocate(rows, width)),
            helper,
            Rows.allocate(rows, width, main.token_embeddings.device),
        )

    @property
    def capacity(self) -> int:
        """How many rows there are."""
        return self.rows.length.shape[0]

    def view(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop`, sharing memory."""
        assistant = None if self.assistant is None else self.assistant.view(start, stop)
        return Batch(self.main.view(start, stop), assistant, self.rows.view(start, stop))

    def move(self, source: int, target: int) -> None:
        """Overwrites row `target` with row `source`."""
        self.main.cache.move(source, target)
        if self.assistant is not None:
            self.assistant.cache.move(source, target)
        self.rows.move(source, target)


def advance(batch: Batch, rules: LogitFilter, shape: Round) -> None:
    """One round: every unfinished row grows by 1 to `shape.drafts` + 1 tokens."""
    if batch.assistant is not None and shape.drafts:
        draft(batch.assistant, batch.rows, rules, shape)
    choice = verify(batch.main, batch.rows, rules, shape)
    accept(batch.rows, choice, agreement(batch.rows, choice), rules.eos)


def draft(assistant: Reader, rows: Rows, rules: LogitFilter, shape: Round) -> None:
    """Writes the assistant's next `shape.drafts` tokens behind each row's length."""
    for step in range(shape.drafts):
        ends = rows.length[:, None] + step
        # Rows shorter than `unread` read their first token several times over, which changes
        # nothing.
        back = torch.arange(-shape.unread if step == 0 else -1, 0, device=ends.device)
        hidden = _read(assistant, rows, (ends + back).clamp(min=0), shape.span)
        logits = assistant.decoder.logits(hidden[:, -1:], rules.bias)
        rows.tokens.scatter_(
            1, ends, rules.choose(logits, rows.tokens, rows.begin, ends, scored=False).tokens
        )


def verify(main: Reader, rows: Rows, rules: LogitFilter, shape: Round) -> Choice:
    """The main model's own choice after the newest final token and after each draft, (rows, drafts
    + 1).
    """
    ends = rows.length[:, None] + torch.arange(shape.drafts + 1, device=rows.length.device)
    logits = main.decoder.logits(_read(main, rows, ends - 1, shape.span), rules.bias)
    choice = rules.choose(logits, rows.tokens, rows.begin, ends)
    return warmed(choice, logits, rows, rules, ends) if shape.sampled else choice


def warmed(choice: Choice, logits: Tensor, rows: Rows, rules: LogitFilter, ends: Tensor) -> Choice:
    """`choice` with the first position sampled in rows whose temperature asks for it."""
    first = ends[:, :1]
    draw = Draw(rows.temperature, rows.chance.gather(1, first))
    sample = rules.sample(logits[:, :1], rows.tokens, rows.begin, first, draw)
    hot = rows.temperature[:, None] > 0
    pairs = zip(choice, sample, strict=True)
    return Choice(
        *(torch.cat([torch.where(hot, new, old[:, :1]), old[:, 1:]], dim=1) for old, new in pairs)
    )


def agreement(rows: Rows, choice: Choice) -> Tensor:
    """How many drafted tokens of each row the main model would have chosen itself, (rows,). Counts
    them too.
    """
    drafts = choice.tokens.shape[1] - 1
    places = rows.length[:, None] + torch.arange(drafts, device=rows.length.device)
    agreed = (choice.tokens[:, :drafts] == rows.tokens.gather(1, places)) & rows.draftable[:, None]
    accepted = agreed.long().cumprod(dim=1).sum(dim=1)
    counted = rows.draftable & ~rows.finished
    rows.accepted.add_(accepted * counted)
    rows.judged.add_((accepted + 1).clamp(max=drafts) * counted)
    return accepted


def accept(rows: Rows, choice: Choice, accepted: Tensor, eos: int) -> None:
    """Makes the first `accepted` + 1 choices of each row final, up to its end of text or limit."""
    steps = torch.arange(choice.tokens.shape[1], device=rows.length.device)
    places = rows.length[:, None] + steps
    is_end = choice.tokens == eos
    before = is_end.long().cumsum(dim=1) - is_end.long()
    kept = (
        (steps <= accepted[:, None])
        & (before == 0)
        & (places < rows.limit[:, None])
        & ~rows.finished[:, None]
    )
    rows.tokens.scatter_(1, places, choice.tokens)
    rows.log_probability.scatter_(1, places, choice.log_probability.double())
    rows.length.add_(kept.long().sum(dim=1))
    rows.finished.logical_or_((kept & is_end).any(dim=1) | (rows.length >= rows.limit))


def _read(reader: Reader, rows: Rows, positions: Tensor, span: int) -> Tensor:
    return reader.decoder.read(rows.tokens.gather(1, positions), positions, reader.cache, span)
