"""Which token may come next: Whisper's suppressed tokens and the grammar of its timestamps.

The one decision: what the grammar allows after a history is three numbers (where text begins, where
timestamps begin and end), computed for all rows and positions at once. Greedy choice, drafting,
verification and sampling then share one reading of them, so a draft is judged by exactly the rules
that made it, and no row is visited in Python. The order is that of transformers: suppressed tokens,
then the grammar, then "a timestamp if all timestamps together are likelier than any text token"
(Radford et al. 2022, section 2.3; transformers' WhisperTimeStampLogitsProcessor).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens

NEVER = float("-inf")


class Allowed(NamedTuple):
    """Token ids in [text_from, first timestamp) or [time_from, time_to) may come next; each (rows,
    positions).
    """

    text_from: Tensor
    time_from: Tensor
    time_to: Tensor


class Choice(NamedTuple):
    """Tokens and their natural-log probability among what the rules allow; both (rows,
    positions).
    """

    tokens: Tensor
    log_probability: Tensor


class Draw(NamedTuple):
    """Chance of a row: its temperature (rows,) and a number in [0, 1) for each choice (rows,
    positions).
    """

    temperature: Tensor
    chance: Tensor


class MaskedLogits(NamedTuple):
    """What the grammar makes of logits; each but `timestamps` (rows, positions)."""

    text: Tensor
    text_token: Tensor
    timestamps: Tensor  # (rows, positions, timestamp ids), forbidden ones at minus infinity
    time: Tensor  # log-sum of the above
    is_time: Tensor


@dataclass(frozen=True)
class LogitFilter:
    """The rules of one checkpoint on one device. `bias` and `first_bias` (vocabulary,) are 0 or
    minus infinity.
    """

    eos: int
    timestamp_begin: int
    timestamps: bool
    max_initial_timestamp: int | None
    bias: Tensor
    first_bias: Tensor

    @classmethod
    def of(cls, vocabulary: SpecialTokens, timestamps: bool, like: Tensor) -> LogitFilter:
        """The rules a checkpoint asks for; `like` (vocabulary, ...) gives device and type."""
        suppressed = [*vocabulary.suppress, *([vocabulary.no_timestamps] if timestamps else ())]
        return cls(
            eos=vocabulary.end_of_text,
            timestamp_begin=vocabulary.timestamp_begin,
            timestamps=timestamps,
            max_initial_timestamp=vocabulary.max_initial_timestamp_index,
            bias=_forbid(suppressed, like),
            first_bias=_forbid([*suppressed, *vocabulary.begin_suppress], like),
        )

    def allowed(self, tokens: Tensor, begin: Tensor, ends: Tensor) -> Allowed:
        """What the grammar allows as the token number `ends`, after `tokens[begin:ends]` of each
        row.

        `tokens` (rows, width), `begin` (rows,) where the prompt ends, `ends` (rows, positions).
        """
        start = begin[:, None]
        is_time = tokens >= self.timestamp_begin
        one_back, two_back = ends - 1, ends - 2
        after_time = is_time.gather(1, one_back) & (one_back >= start)
        in_pair = after_time & (is_time.gather(1, two_back.clamp(min=0)) | (two_back < start))
        opens = after_time & ~in_pair
        first = ends == start
        # Times never run backwards; after a text token the last one may not be said again.
        floor = self._last_timestamp(tokens, is_time, start, one_back)
        floor = floor + (~opens & (floor >= 0)).long()
        vocabulary = self.bias.shape[0]
        initial = vocabulary if self.max_initial_timestamp is None else self.max_initial_timestamp
        return Allowed(
            text_from=opens.long() * self.eos + first.long() * self.timestamp_begin,
            time_from=torch.where(in_pair, vocabulary, floor.clamp(min=self.timestamp_begin)),
            time_to=torch.where(first, self.timestamp_begin + initial + 1, vocabulary),
        )

    def _last_timestamp(
        self, tokens: Tensor, is_time: Tensor, start: Tensor, one_back: Tensor
    ) -> Tensor:
        """The newest timestamp token up to position `one_back`, or -1; (rows, positions)."""
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        newest = (
            torch.where(is_time & (columns >= start), columns, -1)
            .cummax(dim=1)
            .values.gather(1, one_back)
        )
        return torch.where(newest >= 0, tokens.gather(1, newest.clamp(min=0)), -1)

    def choose(
        self, logits: Tensor, tokens: Tensor, begin: Tensor, ends: Tensor, scored: bool = True
    ) -> Choice:
        """The likeliest allowed token. `logits` (rows, positions, vocabulary) already carry a bias;
        see `allowed`.

        Without `scored` the log-probabilities are zeros: the sum over a large vocabulary is then
        saved.
        """
        if not self.timestamps:
            best, token = logits.max(dim=-1)
            return Choice(token, best - _log_sum(logits) if scored else torch.zeros_like(best))
        allowed = self.allowed(tokens, begin, ends)
        weighed = self._weigh(logits, allowed)
        best_time, time_token = weighed.timestamps.max(dim=-1)
        token = torch.where(weighed.is_time, time_token + self.timestamp_begin, weighed.text_token)
        if not scored:
            return Choice(token, torch.zeros_like(best_time))
        best = torch.where(weighed.is_time, best_time, weighed.text)
        return Choice(token, best - self._log_total(logits, allowed, weighed))

    def sample(
        self, logits: Tensor, tokens: Tensor, begin: Tensor, ends: Tensor, draw: Draw
    ) -> Choice:
        """One token by chance among those allowed; its log-probability is that at temperature 1, as
        OpenAI's.
        """
        masked = widened(logits)
        if self.timestamps:
            allowed = self.allowed(tokens, begin, ends)
            text_from = torch.where(
                self._weigh(logits, allowed).is_time, self.timestamp_begin, allowed.text_from
            )
            masked = masked.masked_fill(
                ~self._members(allowed._replace(text_from=text_from)), NEVER
            )
        heat = draw.temperature.clamp(min=1e-3)[:, None, None]
        reached = (masked / heat).softmax(dim=-1).double().cumsum(dim=-1)
        goal = draw.chance[..., None] * reached[..., -1:]
        token = torch.searchsorted(reached, goal, right=True).clamp(max=logits.shape[-1] - 1)
        log_probability = masked.gather(-1, token).squeeze(-1) - _log_sum(masked)
        return Choice(token.squeeze(-1), log_probability)

    def _members(self, allowed: Allowed) -> Tensor:
        """The allowed set spelled out, (rows, positions, vocabulary)."""
        ids = torch.arange(self.bias.shape[0], device=self.bias.device)
        text_from, time_from, time_to = (bound[..., None] for bound in allowed)
        return ((ids >= text_from) & (ids < self.timestamp_begin)) | (
            (ids >= time_from) & (ids < time_to)
        )

    def _weigh(self, logits: Tensor, allowed: Allowed) -> MaskedLogits:
        words, specials, times = self._parts(logits)
        word, word_token = words.max(dim=-1)
        special, special_token = specials.max(dim=-1)
        word = word.masked_fill(allowed.text_from > 0, NEVER)
        special = special.masked_fill(allowed.text_from > self.eos, NEVER)
        text_token = torch.where(word >= special, word_token, special_token + self.eos)
        ids = torch.arange(self.timestamp_begin, logits.shape[-1], device=logits.device)
        barred = (ids < allowed.time_from[..., None]) | (ids >= allowed.time_to[..., None])
        timestamps = times.masked_fill(barred, NEVER)
        text, time = torch.maximum(word, special), _log_sum(timestamps)
        return MaskedLogits(text, text_token, timestamps, time, time > text)

    def _parts(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Words, special tokens and timestamps, (rows, positions, ..) each."""
        end, times = self.eos, self.timestamp_begin
        return logits[..., :end], logits[..., end:times], logits[..., times:]

    def _log_total(self, logits: Tensor, allowed: Allowed, weighed: MaskedLogits) -> Tensor:
        """Log of the exponentials' sum over what is allowed; (rows, positions)."""
        words, specials, _ = self._parts(logits)
        word = _log_sum(words).masked_fill(allowed.text_from > 0, NEVER)
        special = _log_sum(specials).masked_fill(allowed.text_from > self.eos, NEVER)
        both = torch.logaddexp(torch.logaddexp(word, special), weighed.time)
        return torch.where(weighed.is_time, weighed.time, both)


def _forbid(ids: Iterable[int], like: Tensor) -> Tensor:
    bias = torch.zeros(like.shape[0], device=like.device, dtype=like.dtype)
    bias[torch.tensor(sorted(set(ids)), dtype=torch.long, device=like.device)] = NEVER
    return bias


def widened(values: Tensor) -> Tensor:
    """At least float32: a sum over 50,000 exponentials in half precision would be worthless."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _log_sum(values: Tensor) -> Tensor:
    return widened(values).logsumexp(dim=-1)
