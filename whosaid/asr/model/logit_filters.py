"""Filters logits: Whisper's suppressed tokens and the grammar of its timestamps.

Three numbers describe what the grammar allows after a history: the first text token, the first and
the last timestamp. They are computed for all rows and positions at once, for greedy choice,
drafting, verification and sampling alike. Each row follows the grammar or does not, so requests
with and without timestamps share a batch.

The order is that of transformers: suppressed tokens, then the grammar, then "a timestamp if all
timestamps together are likelier than any text token" (Radford et al. 2022, section 2.3;
transformers' WhisperTimeStampLogitsProcessor).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.model.cpu_kernels import largest
from whosaid.asr.model.decoder import upcast

NEVER = float("-inf")


class History(NamedTuple):
    """The tokens before the positions to choose."""

    tokens: Tensor  # (rows, max_len)
    ends: Tensor  # (rows, positions): tokens[:ends] come before that position
    timestamps: Tensor  # (rows,) bool, whether the row follows the grammar of timestamps
    grammar_start: Tensor  # (rows,) the prompt's length; without grammar, beyond every position


class Allowed(NamedTuple):
    """Allowed ids: [text_from, first timestamp), [time_from, time_to); each (rows, positions)."""

    text_from: Tensor
    time_from: Tensor
    time_to: Tensor


class Choice(NamedTuple):
    """Tokens and their natural log-probabilities among allowed tokens; both (rows, positions)."""

    tokens: Tensor
    log_probs: Tensor


class MaskedLogits(NamedTuple):
    """Logits with forbidden ids at minus infinity, and their maxima; (rows, positions[, ids])."""

    words: Tensor  # ids below the end of text; only their maximum is masked, in `text`
    word: Choice  # the likeliest and its logit
    specials: Tensor  # from the end of text to the first timestamp; masked as the words are
    special: Choice  # the likeliest, by its place, and its logit
    text: Choice  # the likeliest of words and specials, and its logit
    time: Choice  # the likeliest timestamp and its logit
    time_log_sum: Tensor  # over all timestamps
    is_time: Tensor  # whether a timestamp is chosen


@dataclass(frozen=True)
class LogitFilter:
    """The rules of one checkpoint on one device.

    `bias` and `first_bias` (vocabulary,) are 0, or minus infinity for suppressed tokens: at any
    position, and at the first. `is_no_timestamps` marks the no-timestamps token among the special
    tokens, which go from the end of text to the first timestamp. `time_ids` are the ids of the
    timestamps, and `annotations` those of `SpecialTokens.annotations`.
    """

    eos: int
    timestamp_begin: int
    special_tokens: SpecialTokens
    bias: Tensor
    first_bias: Tensor
    is_no_timestamps: Tensor
    time_ids: Tensor
    annotations: Tensor

    @classmethod
    def of(cls, special_tokens: SpecialTokens, like: Tensor) -> LogitFilter:
        """Return a checkpoint's rules; `like` (vocabulary, ...) gives device and type."""
        begin = special_tokens.timestamp_begin
        specials = torch.arange(special_tokens.end_of_text, begin, device=like.device)
        return cls(
            eos=special_tokens.end_of_text,
            timestamp_begin=begin,
            special_tokens=special_tokens,
            bias=_forbid(special_tokens.suppress, like),
            first_bias=_forbid((*special_tokens.suppress, *special_tokens.begin_suppress), like),
            is_no_timestamps=specials == special_tokens.no_timestamps,
            time_ids=torch.arange(begin, like.shape[0], device=like.device),
            annotations=torch.tensor(
                special_tokens.annotations, dtype=torch.long, device=like.device
            ),
        )

    def choose(
        self, logits: Tensor, history: History, grammar: bool = True, scored: bool = True
    ) -> Choice:
        """Choose the likeliest allowed tokens by biased `logits` (rows, positions, vocabulary). If
        no row has timestamps, `grammar` False saves work. Without `scored` log-probabilities are
        zeros, which saves a sum over the vocabulary.
        """
        if not grammar:
            best, token = logits.max(dim=-1)
            return Choice(token, _log_prob(logits, token) if scored else torch.zeros_like(best))
        allowed = self._allowed(history)
        masked = self._mask(logits, allowed, history)
        token, best = (
            torch.where(masked.is_time, time, text)
            for time, text in zip(masked.time, masked.text, strict=True)
        )
        if not scored:
            return Choice(token, torch.zeros_like(best))
        times_alone = masked.is_time & history.timestamps[:, None]
        every = self._log_sum_of_all(masked, allowed)
        return Choice(token, best - torch.where(times_alone, masked.time_log_sum, every))

    def score(self, tokens: Tensor, logits: Tensor, unfiltered: Tensor, history: History) -> Tensor:
        """Return the log-probability of given `tokens` (rows, positions).

        The probability is among the allowed tokens and the given token itself, so it is always
        finite. Unlike in `choose`, text stays allowed if all timestamps together are likelier than
        any text token. `logits` (rows, positions, vocabulary) are `unfiltered` with a bias.
        """
        allowed, follows = self._allowed(history), history.timestamps[:, None]
        masked = self._mask(logits, allowed, history)
        own = upcast(unfiltered.gather(2, tokens[..., None])[..., 0])
        is_time = tokens >= self.timestamp_begin
        barred = follows & (tokens == self.timestamp_begin - 1)
        text = (tokens >= allowed.text_from) & ~is_time & ~barred
        time = (tokens >= allowed.time_from) & (tokens < allowed.time_to) & is_time
        biased = logits.gather(2, tokens[..., None])[..., 0]
        is_allowed = (text | time) & (biased > NEVER)
        every = self._log_sum_of_all(masked, allowed)
        total = torch.where(is_time & masked.is_time & follows, masked.time_log_sum, every)
        return own - torch.where(is_allowed, total, torch.logaddexp(total, own))

    def sample(
        self,
        logits: Tensor,
        history: History,
        temperature: Tensor,
        uniform: Tensor,
        grammar: bool = True,
    ) -> Choice:
        """Draw allowed tokens at temperatures (rows,), with a random number in [0, 1) for each
        choice (rows, positions); their log-probabilities are at temperature 1.
        """
        masked = upcast(logits)
        if grammar:
            allowed = self._allowed(history)
            forced = self._mask(logits, allowed, history).is_time & history.timestamps[:, None]
            text_from = torch.where(forced, self.timestamp_begin, allowed.text_from)
            masked = masked.masked_fill(
                ~self._members(allowed._replace(text_from=text_from), history, 0), NEVER
            )
        temperature = temperature.clamp(min=1e-3)[:, None, None]
        cumulative = (masked / temperature).softmax(dim=-1).double().cumsum(dim=-1)
        threshold = uniform[..., None] * cumulative[..., -1:]
        token = torch.searchsorted(cumulative, threshold, right=True)
        token = token.clamp(max=logits.shape[-1] - 1)
        token = token.squeeze(-1)
        return Choice(token, _log_prob(masked, token))

    def best(self, logits: Tensor, history: History, count: int, grammar: bool = True) -> Choice:
        """Return the `count` likeliest allowed tokens, best first, (rows, count), by biased
        `logits` (rows, 1, vocabulary). If fewer are allowed, the rest have a log-probability of
        minus infinity.
        """
        if not grammar:
            return _likeliest(_log_softmax(logits), count)
        allowed = self._allowed(history)
        words = _likeliest(_log_softmax(logits[..., : self.eos]), count)
        first = upcast(logits.gather(2, words.tokens[:, None, :1]))[..., 0]
        word_sum = first - words.log_probs[:, :1]
        rest = upcast(logits[..., self.eos :])
        rest = rest.masked_fill(~self._members(allowed, history, self.eos), NEVER)
        first_time = self.timestamp_begin - self.eos
        specials, times = rest[..., :first_time], rest[..., first_time:]
        no_words = allowed.text_from > 0
        text = torch.maximum(first.masked_fill(no_words, NEVER), specials.amax(dim=2))
        times_alone = history.timestamps[:, None] & (times.logsumexp(dim=2) > text)
        specials = specials.masked_fill(times_alone[..., None], NEVER)
        rest = torch.cat([specials, times], dim=2)
        word_sum = word_sum.masked_fill(no_words | times_alone, NEVER)
        total = torch.logaddexp(word_sum, rest.logsumexp(dim=2))
        others = _likeliest(rest - total[..., None], count)
        tokens = torch.cat([words.tokens, others.tokens + self.eos], dim=1)
        log_probs = torch.cat([words.log_probs + (word_sum - total), others.log_probs], dim=1)
        values, index = log_probs.topk(min(count, log_probs.shape[1]))
        return Choice(tokens.gather(1, index), values)

    def _allowed(self, history: History) -> Allowed:
        """Return the ids that the grammar allows; rows without the grammar allow all."""
        tokens, ends, start = history.tokens, history.ends, history.grammar_start[:, None]
        is_time = tokens >= self.timestamp_begin
        one_back, two_back = ends - 1, ends - 2
        after_time = is_time.gather(1, one_back) & (one_back >= start)
        in_pair = after_time & (is_time.gather(1, two_back.clamp(min=0)) | (two_back < start))
        opens = after_time & ~in_pair
        first = ends == start
        # Times never run backwards; after a text token the last time may not be repeated.
        floor = self._last_timestamp(tokens, is_time, start, one_back)
        floor = floor + (~opens & (floor >= 0))
        vocabulary = self.bias.shape[0]
        limit = self.special_tokens.max_initial_timestamp_index
        initial = vocabulary if limit is None else limit
        return Allowed(
            text_from=opens * self.eos + first * self.timestamp_begin,
            time_from=torch.where(in_pair, vocabulary, floor.clamp(min=self.timestamp_begin)),
            time_to=torch.where(first, self.timestamp_begin + initial + 1, vocabulary),
        )

    def _last_timestamp(
        self, tokens: Tensor, is_time: Tensor, start: Tensor, one_back: Tensor
    ) -> Tensor:
        """Return the newest timestamp token up to position `one_back`, or -1; (rows, positions)."""
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        decoded = torch.where(is_time & (columns >= start), columns, -1)
        newest = decoded.cummax(dim=1).values.gather(1, one_back)
        return torch.where(newest >= 0, tokens.gather(1, newest.clamp(min=0)), -1)

    def _mask(self, logits: Tensor, allowed: Allowed, history: History) -> MaskedLogits:
        words = logits[..., : self.eos]
        follows = history.timestamps[:, None]
        specials = logits[..., self.eos : self.timestamp_begin]
        specials = specials.masked_fill(follows[..., None] & self.is_no_timestamps, NEVER)
        best_word, best_special = _best(words), _best(specials)
        word = best_word.log_probs.masked_fill(allowed.text_from > 0, NEVER)
        special = best_special.log_probs.masked_fill(allowed.text_from > self.eos, NEVER)
        special_token = best_special.tokens + self.eos
        text_token = torch.where(word >= special, best_word.tokens, special_token)
        barred = self.time_ids < allowed.time_from[..., None]
        barred |= self.time_ids >= allowed.time_to[..., None]
        times = logits[..., self.timestamp_begin :].masked_fill(barred, NEVER)
        best_time = _best(times)
        time = Choice(best_time.tokens + self.timestamp_begin, best_time.log_probs)
        text, log_sum = torch.maximum(word, special), _log_sum(times, best_time)
        return MaskedLogits(
            words=words,
            word=best_word,
            specials=specials,
            special=best_special,
            text=Choice(text_token, text),
            time=time,
            time_log_sum=log_sum,
            is_time=torch.where(follows, log_sum, time.log_probs) > text,
        )

    def _members(self, allowed: Allowed, history: History, first: int) -> Tensor:
        ids = torch.arange(first, self.bias.shape[0], device=self.bias.device)
        text_from, time_from, time_to = (bound[..., None] for bound in allowed)
        text = (ids >= text_from) & (ids < self.timestamp_begin)
        text &= ~(history.timestamps[:, None, None] & (ids == self.timestamp_begin - 1))
        return text | ((ids >= time_from) & (ids < time_to))

    def _log_sum_of_all(self, masked: MaskedLogits, allowed: Allowed) -> Tensor:
        """Return the log of the sum of exponentials over the allowed ids, text included even if
        all timestamps together are likelier.
        """
        word = _log_sum(masked.words, masked.word)
        special = _log_sum(masked.specials, masked.special)
        word = word.masked_fill(allowed.text_from > 0, NEVER)
        special = special.masked_fill(allowed.text_from > self.eos, NEVER)
        return torch.logaddexp(torch.logaddexp(word, special), masked.time_log_sum)


def _forbid(ids: Iterable[int], like: Tensor) -> Tensor:
    bias = torch.zeros(like.shape[0], device=like.device, dtype=like.dtype)
    bias[torch.tensor(sorted(set(ids)), dtype=torch.long, device=like.device)] = NEVER
    return bias


def _likeliest(log_probs: Tensor, count: int) -> Choice:
    """Return the `count` largest of (rows, 1, ids) and their indices, best first."""
    return Choice(*reversed(largest(log_probs[:, 0], count)))


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _log_prob(logits: Tensor, token: Tensor) -> Tensor:
    """Return the log-probabilities of `token` (rows, positions)."""
    return _log_softmax(logits).gather(-1, token[..., None])[..., 0]


def _best(logits: Tensor) -> Choice:
    """Return the places and values of the largest (rows, positions, ids)."""
    return Choice(*reversed(logits.max(dim=-1)))


def _log_sum(values: Tensor, best: Choice) -> Tensor:
    """Return the log of the sum of exponentials of `values` (rows, positions, ids), whose largest
    are `best`. Softmax is one kernel on CUDA; logsumexp is nine.
    """
    total = best.log_probs - _log_prob(values, best.tokens)
    return total.masked_fill_(best.log_probs == NEVER, NEVER)
