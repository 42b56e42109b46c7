"""How sequences enter the batch: their audio is projected, prompts read, first tokens chosen.

What else is asked of a window comes from this pass. The logits at the start of transcript hold the
probability of no speech, and those at the prompt's end the first token, so neither costs a pass of
its own. Nor does what is guessed of a text: it is read behind the prompt and verified like the
drafts of a step (`asr.engine.speculative`), so that a right guess of n tokens costs no step, and a
text that must begin with given tokens does.

Prompts of different lengths share the pass, each padded at its end with tokens whose keys are
overwritten before anything attends to them. Like a step it asks the device for nothing, so that
CUDA can replay it as a graph.
"""

from __future__ import annotations

import zlib
from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.beam_search import begin_beams
from asr.engine.decode_state import DecodeState
from asr.engine.logit_filters import Choice, LogitFilter, upcast
from asr.engine.request import Sequence
from asr.engine.row_state import BeamState, SequenceState, upload
from asr.engine.speculative import accept, count_agreed, sample_first
from asr.model.decoder import Decoder
from asr.model.encoder import EncoderOutput

# Positions whose scores over the vocabulary are held at once.
VERIFIED_AT_ONCE = 32


@dataclass(frozen=True)
class PrefillInput:
    """What a row starts from. Of the tokens that are guessed, the first `forced` are given."""

    prompt: tuple[int, ...]
    max_length: int  # most tokens, prompt included
    draftable: bool
    timestamps: bool = True
    temperature: float = 0.0
    uniform: Tensor | None = None  # (max_length,) for sampling
    guess: tuple[int, ...] = ()
    forced: int = 0

    @classmethod
    def of(cls, sequence: Sequence, max_positions: int) -> PrefillInput:
        """For a sequence in a model of texts of `max_positions` tokens.

        A guess is cut where its text would be.
        """
        request, max_length = sequence.request, max_positions
        if request.max_tokens is not None:
            max_length = min(max_length, len(sequence.prompt) + request.max_tokens)
        temperature = sequence.options.temperature
        guess = sequence.guess[: max(0, max_length - len(sequence.prompt))]
        return cls(
            sequence.prompt,
            max_length,
            sequence.draftable,
            sequence.timestamps,
            temperature,
            uniform(request.samples, max_length) if temperature else None,
            guess,
            min(len(request.prefix), len(guess)),
        )

    @property
    def read(self) -> tuple[int, ...]:
        """All tokens that the first pass reads."""
        return self.prompt + self.guess


def uniform(samples: NDArray[np.float32], count: int) -> Tensor:
    """`count` random numbers in [0, 1), float32, seeded by the window's samples.

    So a window's text does not depend on its neighbours, and the same request has the same answer.
    """
    seed = zlib.crc32(np.ascontiguousarray(samples).tobytes())
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


class PrefillShape(NamedTuple):
    """All that a CUDA graph of a prefill depends on besides the number of rows."""

    prompt_len: int  # positions that are read: as many as the longest prompt and guess, or more
    forgotten: int  # positions that earlier texts may have written, which are zeroed
    drafted: bool = False  # whether the drafter reads the prompts, and the audio, too
    sampled: bool = False  # whether any row samples
    verified: int = 0  # guessed tokens: as many as the longest guess, or more


class PrefillBatch(NamedTuple):
    """What rows start from, their audio among it.

    `numbers` (rows, prompt_len + 8), float64, on the device or the host: what is read of each row,
    padded, and what else tells it from others in the order of `init_rows`. `uniform` as in
    PrefillInput.
    """

    numbers: Tensor
    shape: PrefillShape
    encoded: EncoderOutput
    uniform: abc.Sequence[Tensor | None] = ()

    @classmethod
    def of(
        cls,
        inputs: abc.Sequence[PrefillInput],
        shape: PrefillShape,
        max_len: int,
        encoded: EncoderOutput,
    ) -> PrefillBatch:
        """Rows of at most `max_len` positions that start from `inputs`."""
        rows = [_numbers(each, shape.prompt_len, max_len) for each in inputs]
        numbers = torch.tensor(rows, dtype=torch.float64)  # exact for every id
        sampled = any(each.temperature for each in inputs)
        uniform = [each.uniform for each in inputs]
        return cls(numbers, shape._replace(sampled=sampled), encoded, uniform)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a CUDA graph reads: the numbers, and what encoders have made."""
        main, own = self.encoded
        return (self.numbers, main) if own is None or own is main else (self.numbers, main, own)

    def with_inputs(self, numbers: Tensor, *encoded: Tensor) -> PrefillBatch:
        """The same with other tensors of those shapes, or with some rows of them."""
        own = None if self.encoded.assistant is None else encoded[-1]
        return self._replace(numbers=numbers, encoded=EncoderOutput(encoded[0], own))

    def part(self, rows: slice) -> PrefillBatch:
        """Some of the rows alone."""
        some = self.with_inputs(*(each[rows] for each in self.inputs))
        return some._replace(uniform=self.uniform[rows])


class Guessed(NamedTuple):
    """How many tokens are guessed of each row, and how many of these are given; both (rows,)."""

    total: Tensor
    forced: Tensor


def init_rows(batch: PrefillBatch, rows: SequenceState) -> Guessed:
    """Write what each of `rows` starts from, forgetting what it held.

    All numbers of all rows go to the device in one transfer.
    """
    prompt_len, device = batch.shape.prompt_len, rows.tokens.device
    columns = upload(batch.numbers, device)
    rows.tokens[:, :prompt_len] = columns[:, :prompt_len]
    targets = (
        rows.prompt_len,
        rows.grammar_start,
        rows.max_length,
        rows.draftable,
        rows.timestamps,
        rows.temperature,
    )
    *of_rows, total, forced = columns[:, prompt_len:].unbind(1)
    for target, column in zip(targets, of_rows, strict=True):
        target.copy_(column)
    rows.length.copy_(rows.prompt_len)
    for row, uniform in enumerate(batch.uniform):
        if uniform is not None:
            rows.uniform[row, : len(uniform)] = upload(uniform, device)
    for counter in (rows.finished, rows.accepted, rows.drafted):
        counter.zero_()
    return Guessed(total, forced)


def _numbers(each: PrefillInput, prompt_len: int, max_len: int) -> list[float]:
    """What is read of a row, padded to `prompt_len`, and its parameters in the order of
    `init_rows`.
    """
    padding = [0] * (prompt_len - len(each.read))
    length = len(each.prompt)
    grammar_start = length if each.timestamps else max_len
    parameters = (grammar_start, each.max_length, each.draftable, each.timestamps)
    guessed = (len(each.guess), each.forced)
    return [*each.read, *padding, length, *parameters, each.temperature, *guessed]


def prefill(
    state: DecodeState, batch: PrefillBatch, filters: LogitFilter, special_tokens: SpecialTokens
) -> Tensor:
    """Let every row of `state` start: project its audio, read its prompt, make what is right of its
    guess and the next token final, or begin its beams.

    Returns (rows, 4). Three say what the start of transcript does: the probability of no speech,
    the id of the likeliest language and its probability among all; the latter two are 0 where the
    vocabulary has none. The last is the probability that a text without timestamps begins with an
    annotation, which the filters suppress; 0 where it has timestamps.
    """
    main, rows, shape = state.main, state.rows, batch.shape
    drafter = state.drafter if shape.drafted else None
    main.decoder.fill_cross_kv(batch.encoded.main, main.cache)
    if drafter is not None:
        drafter.listen(batch.encoded)
    state.forget(shape.forgotten)
    guessed = init_rows(batch, rows)
    tokens = rows.tokens[:, : shape.prompt_len]
    positions = torch.arange(shape.prompt_len, device=tokens.device).expand(tokens.shape)
    hidden = main.decoder.forward(tokens, positions, main.cache.first_beams(), shape.prompt_len)
    start = (tokens == special_tokens.start_of_transcript).int().argmax(dim=1)
    every = torch.arange(tokens.shape[0], device=tokens.device)
    # One product for both: it reads the vocabulary's weights, the largest of all, once.
    read = hidden[every, start], main.decoder.headed(hidden[every, rows.prompt_len - 1])
    at_start, unfiltered = main.decoder.scores(torch.stack(read, dim=1)).unbind(dim=1)
    if state.beams is not None:
        _begin_beams(state, state.beams, unfiltered, shape, filters)
    else:
        _begin_texts(state, (hidden, unfiltered), guessed, shape, filters)
    if drafter is not None:
        drafter.read_prompt(tokens, positions, hidden, (rows.length - 2).clamp(min=0))
    annotation = _annotation_prob(unfiltered, filters.annotations) * ~rows.timestamps
    return torch.cat((_read_start(at_start, special_tokens), annotation[:, None]), dim=1)


def _begin_beams(
    state: DecodeState,
    beams: BeamState,
    unfiltered: Tensor,
    shape: PrefillShape,
    filters: LogitFilter,
) -> None:
    """Begin each row's beams, by logits (rows, vocabulary)."""
    rows = state.rows
    logits = (unfiltered + filters.first_bias)[:, None]
    history = rows.before(rows.length[:, None])
    state.main.cache.copy_first_beams(shape.prompt_len)
    begin_beams(beams, rows, filters.best(logits, history, beams.num_beams + 1), filters.eos)


def _begin_texts(
    state: DecodeState,
    heard: tuple[Tensor, Tensor],
    guessed: Guessed,
    shape: PrefillShape,
    filters: LogitFilter,
) -> None:
    """Make final what is right of each row's guess, and the next token.

    `heard` are the hidden states of all that was read (rows, prompt_len, d_model) and the logits
    where the texts begin (rows, vocabulary). Behind a guess that is shorter than others, choices
    are made that nobody takes.
    """
    rows, (hidden, unfiltered) = state.rows, heard
    # No text reaches the last place, where what nobody takes may lie.
    ends = rows.length[:, None] + torch.arange(shape.verified + 1, device=rows.length.device)
    ends = ends.clamp(max=rows.tokens.shape[1] - 1)
    first = ends[:, :1]
    logits = (unfiltered + filters.first_bias)[:, None]
    choice = filters.choose(logits, rows.before(first))
    if shape.sampled:
        choice = sample_first(choice, logits, rows, filters, grammar=True)
    accepted = torch.zeros_like(rows.length)
    if shape.verified:
        forced = guessed.forced[:, None]
        choices = [_force(choice, forced, (logits, unfiltered[:, None]), rows, first, filters)]
        for part in torch.split(ends[:, 1:], VERIFIED_AT_ONCE, dim=1):
            unfiltered = state.main.decoder.logits(_read_at(hidden, part - 1))
            logits, history = unfiltered + filters.bias, rows.before(part)
            choice = filters.choose(logits, history)
            choices.append(_force(choice, forced, (logits, unfiltered), rows, part, filters))
        choice = Choice(*(torch.cat(each, dim=1) for each in zip(*choices, strict=True)))
        numbers = torch.arange(shape.verified, device=ends.device)
        accepted = count_agreed(rows, choice, ends, numbers < guessed.total[:, None])
    accept(rows, choice, ends, accepted, filters.eos)


def _force(
    choice: Choice,
    forced: Tensor,
    scored: tuple[Tensor, Tensor],
    rows: SequenceState,
    ends: Tensor,
    filters: LogitFilter,
) -> Choice:
    """The choice of tokens number `ends` (rows, n), of which the first `forced` (rows, 1) of each
    text are given. `scored` are logits with a bias and without, (rows, n, vocabulary).
    """
    given = rows.tokens.gather(1, ends)
    log_probs = filters.score(given, *scored, rows.before(ends)).to(choice.log_probs.dtype)
    is_given = ends - rows.prompt_len[:, None] < forced
    return Choice(
        torch.where(is_given, given, choice.tokens),
        torch.where(is_given, log_probs, choice.log_probs),
    )


def _read_at(hidden: Tensor, positions: Tensor) -> Tensor:
    """(rows, prompt_len, d_model) at `positions` (rows, n) -> (rows, n, d_model)."""
    every = torch.arange(hidden.shape[0], device=hidden.device)[:, None]
    return hidden[every, positions.clamp(max=hidden.shape[1] - 1)]


def _read_start(logits: Tensor, special_tokens: SpecialTokens) -> Tensor:
    """What `prefill` returns, from logits (rows, vocabulary); languages are consecutive ids."""
    no_speech = _probability(logits, special_tokens.no_speech).double()
    ids = special_tokens.languages.values()
    if not ids:
        return F.pad(no_speech[:, None], (0, 2))
    among = upcast(logits[:, min(ids) : max(ids) + 1]).softmax(dim=-1)
    probability, index = among.max(dim=-1)
    return torch.stack((no_speech, (index + min(ids)).double(), probability.double()), dim=1)


def _annotation_prob(logits: Tensor, annotations: Tensor) -> Tensor:
    """The sum over the tokens that begin an annotation, (rows,), from logits (rows, vocabulary)."""
    return upcast(logits).softmax(dim=-1).index_select(1, annotations).sum(dim=-1).double()


class LanguagePosterior(NamedTuple):
    """What the first position says before any transcript.

    `probabilities` holds each language's by its code, in the vocabulary's order; they sum to 1.
    `encoded` (1, frames, d_model) is the main encoder's output, so that decoding the same window
    next needs no second pass.
    """

    probabilities: dict[str, float]
    no_speech_prob: float
    encoded: Tensor | None = None

    @property
    def language(self) -> str:
        """The first of the likeliest languages."""
        return max(self.probabilities, key=lambda code: self.probabilities[code])

    @property
    def probability(self) -> float:
        """That of the likeliest language, among all."""
        return self.probabilities[self.language]


def language_posterior(
    decoder: Decoder, encoded: Tensor, special_tokens: SpecialTokens
) -> LanguagePosterior:
    """The languages of a window, `encoded` (1, frames, d_model) (openai/whisper,
    `detect_language`).
    """
    hidden = decoder.first(special_tokens.start_of_transcript, encoded)
    logits = decoder.scores(hidden)
    codes, ids = zip(*special_tokens.languages.items(), strict=True)
    probabilities = upcast(logits[0, list(ids)]).softmax(dim=-1)
    no_speech_prob = _probability(logits, special_tokens.no_speech)
    *shares, silent = torch.cat([probabilities, no_speech_prob]).tolist()
    return LanguagePosterior(dict(zip(codes, shares, strict=True)), silent, encoded)


def _probability(logits: Tensor, token: int) -> Tensor:
    return upcast(logits).softmax(dim=-1)[:, token]
