"""Prefill: projects the audio of entering sequences, reads prompts and chooses first tokens.

The logits at the start of transcript hold the probability of no speech, and the logits at the
prompt's end the first token. A guess of the text is read after the prompt and verified like the
drafts of a step (`asr.engine.speculative`). A text that must begin with given tokens gets them in
the same way.

Each prompt is padded at its end with tokens whose keys are overwritten before anything attends to
them. The pass reads no value from the device, so CUDA can replay it as a graph.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.engine.beam_search import begin_beams
from whosaid.asr.engine.rows import PaddedSizes, SequenceState, padded
from whosaid.asr.engine.sequence import DecodeSequence
from whosaid.asr.engine.speculative import accept, count_agreed, sample_first
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder, upcast
from whosaid.asr.model.encoder import EncoderOutput
from whosaid.asr.model.kv_cache import upload
from whosaid.asr.model.logit_filters import Choice, LogitFilter

# Positions whose scores over the vocabulary are held at once.
VERIFIED_AT_ONCE = 32


class PrefillBatch(NamedTuple):
    """Inputs of a prefill: prompts, guesses, parameters and audio.

    `numbers` (rows, prompt_len + 8), float64, on the device or the host, hold each row's prompt and
    guess, padded, and then its parameters in the order of `init_rows`. `uniform` holds the random
    numbers of each row; None for rows that do not sample. A CUDA graph of a prefill depends on all
    fields but `numbers` and the outputs in `encoded`, whose shapes the number of rows fixes.
    """

    numbers: Tensor
    encoded: EncoderOutput
    prompt_len: int  # positions read: at least the longest prompt and guess
    verified: int = 0  # guessed tokens: at least the longest guess
    drafted: bool = False  # whether the drafter reads the prompts and the audio too
    forgotten: int = 0  # positions to zero, which earlier texts may have written
    uniform: Sequence[Tensor | None] = ()

    @classmethod
    def of(
        cls,
        sequences: Sequence[DecodeSequence],
        encoded: EncoderOutput,
        state: DecodeState,
        sizes: PaddedSizes,
    ) -> PrefillBatch:
        """Return the batch of entering sequences, padded to `sizes`."""
        max_len, longest = state.cache.max_len, state.decoder.max_positions
        limits = [most_tokens(each, longest) for each in sequences]
        guesses = [
            each.guess[: max(0, most - len(each.prompt))]
            for each, most in zip(sequences, limits, strict=True)
        ]
        read = [(*each.prompt, *guess) for each, guess in zip(sequences, guesses, strict=True)]
        prompt_len = padded(max(map(len, read)), sizes.prompt, max_len)
        numbers, random = [], []
        for each, most, guess, tokens in zip(sequences, limits, guesses, read, strict=True):
            length, temperature = len(each.prompt), each.options.temperature
            grammar_start = length if each.timestamps else max_len
            parameters = (length, grammar_start, most, each.draftable, each.timestamps, temperature)
            guessed = (len(guess), min(len(each.request.prefix), len(guess)))
            padding = [0] * (prompt_len - len(tokens))
            numbers.append([*tokens, *padding, *parameters, *guessed])
            random.append(uniform(each.request.samples, most) if temperature else None)
        return cls(
            torch.tensor(numbers, dtype=torch.float64),  # exact for every id
            encoded,
            prompt_len,
            verified=padded(max(map(len, guesses)), sizes.guess, max_len),
            drafted=any(each.drafted for each in sequences),
            uniform=random,
        )

    @property
    def sampled(self) -> bool:
        return any(each is not None for each in self.uniform)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the tensors that a CUDA graph reads."""
        main, own = self.encoded
        return (self.numbers, main) if own is None or own is main else (self.numbers, main, own)

    def with_inputs(self, numbers: Tensor, *encoded: Tensor) -> PrefillBatch:
        own = None if self.encoded.assistant is None else encoded[-1]
        return self._replace(numbers=numbers, encoded=EncoderOutput(encoded[0], own))

    def part(self, rows: slice) -> PrefillBatch:
        some = self.with_inputs(*(each[rows] for each in self.inputs))
        return some._replace(uniform=self.uniform[rows])


def most_tokens(sequence: DecodeSequence, max_positions: int) -> int:
    """Return the most tokens of a text, prompt included."""
    wanted = sequence.request.max_tokens
    return max_positions if wanted is None else min(max_positions, len(sequence.prompt) + wanted)


def uniform(samples: NDArray[np.float32], count: int) -> Tensor:
    """Return `count` random numbers in [0, 1), float32, seeded by the window's samples: a window's
    text does not depend on other rows, and equal requests get equal answers.
    """
    seed = zlib.crc32(np.ascontiguousarray(samples).tobytes())
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def init_rows(batch: PrefillBatch, rows: SequenceState) -> tuple[Tensor, Tensor]:
    """Initialise `rows` from a batch, with one transfer. Return how many tokens of each row are
    guessed, and how many of these are given, both (rows,).
    """
    prompt_len, device = batch.prompt_len, rows.tokens.device
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
    *of_rows, guessed, given = columns[:, prompt_len:].unbind(1)
    for target, column in zip(targets, of_rows, strict=True):
        target.copy_(column)
    rows.length.copy_(rows.prompt_len)
    for row, random in enumerate(batch.uniform):
        if random is not None:
            rows.uniform[row, : len(random)] = upload(random, device)
    rows.finished.zero_()
    return guessed, given


def prefill(state: DecodeState, batch: PrefillBatch, filters: LogitFilter) -> Tensor:
    """Start every row of `state`: project its audio, read its prompt, and accept the right part of
    its guess and the next token, or begin its beams.

    Return (rows, 4). Three columns are read at the start of transcript: the probability of no
    speech, the id of the likeliest language and its probability among all, both 0 without
    languages. The fourth is the probability that a text without timestamps begins with an
    annotation, which the filters suppress; 0 for a text with timestamps.
    """
    decoder, cache, rows = state.decoder, state.cache, state.rows
    drafter = state.drafter if batch.drafted else None
    decoder.fill_cross_kv(batch.encoded.main, cache)
    if drafter is not None:
        drafter.listen(batch.encoded)
    state.forget(batch.forgotten)
    guessed, given = init_rows(batch, rows)
    tokens = rows.tokens[:, : batch.prompt_len]
    positions = torch.arange(batch.prompt_len, device=tokens.device).expand(tokens.shape)
    hidden = decoder.forward(tokens, positions, cache.first_beams(), batch.prompt_len)
    start = (tokens == filters.special_tokens.start_of_transcript).int().argmax(dim=1)
    every = torch.arange(tokens.shape[0], device=tokens.device)
    # One product for both reads the vocabulary's weights, the largest of all, only once.
    read = hidden[every, start], decoder.headed(hidden[every, rows.prompt_len - 1])
    at_start, unfiltered = decoder.scores(torch.stack(read, dim=1)).unbind(dim=1)
    logits = (unfiltered + filters.first_bias)[:, None]
    if state.beams is not None:
        cache.copy_first_beams(batch.prompt_len)
        best = filters.best(logits, rows.before(rows.length[:, None]), state.beams.num_beams + 1)
        begin_beams(state.beams, rows, best, filters.eos)
    else:
        first = rows.length[:, None]
        choice = filters.choose(logits, rows.before(first))
        if batch.sampled:
            choice = sample_first(choice, logits, rows, filters, grammar=True)
        if batch.verified:
            scored = choice, logits, unfiltered[:, None]
            _accept_guess(state, batch.verified, filters, hidden, scored, (guessed, given))
        else:
            accept(rows, choice, first, torch.zeros_like(rows.length), filters.eos)
    if drafter is not None:
        drafter.read_prompt(tokens, positions, hidden, (rows.length - 2).clamp(min=0))
    annotations = upcast(unfiltered).softmax(dim=-1).index_select(1, filters.annotations)
    annotation = annotations.sum(dim=-1).double() * ~rows.timestamps
    return torch.cat((_read_start(at_start, filters.special_tokens), annotation[:, None]), dim=1)


def _accept_guess(
    state: DecodeState,
    verified: int,
    filters: LogitFilter,
    hidden: Tensor,
    scored: tuple[Choice, Tensor, Tensor],
    guesses: tuple[Tensor, Tensor],
) -> None:
    """Accept the right part of each row's guess of at most `verified` tokens, and the next token.

    `hidden` (rows, prompt_len, d_model) are the states of all positions. `scored` are the choice of
    the texts' first tokens, and their logits with a bias and without, (rows, 1, vocabulary).
    `guesses` is the result of `init_rows`. Choices beyond a shorter guess are dropped.
    """
    rows, (choice, logits, unfiltered), (guessed, given) = state.rows, scored, guesses
    # No text reaches the last place, so dropped choices may lie there.
    ends = rows.length[:, None] + torch.arange(verified + 1, device=rows.length.device)
    ends = ends.clamp(max=rows.tokens.shape[1] - 1)
    forced, every = given[:, None], torch.arange(len(ends), device=ends.device)[:, None]
    choices = [_force(choice, forced, (logits, unfiltered), rows, ends[:, :1], filters)]
    for part in torch.split(ends[:, 1:], VERIFIED_AT_ONCE, dim=1):
        read = hidden[every, (part - 1).clamp(max=hidden.shape[1] - 1)]
        unfiltered = state.decoder.logits(read)
        logits, history = unfiltered + filters.bias, rows.before(part)
        choice = filters.choose(logits, history)
        choices.append(_force(choice, forced, (logits, unfiltered), rows, part, filters))
    choice = Choice(*(torch.cat(each, dim=1) for each in zip(*choices, strict=True)))
    numbers = torch.arange(verified, device=ends.device)
    accepted = count_agreed(rows, choice, ends, numbers < guessed[:, None])
    accept(rows, choice, ends, accepted, filters.eos)


def _force(
    choice: Choice,
    forced: Tensor,
    scored: tuple[Tensor, Tensor],
    rows: SequenceState,
    ends: Tensor,
    filters: LogitFilter,
) -> Choice:
    """Return `choice` of tokens number `ends` (rows, n), but with the given tokens among the first
    `forced` (rows, 1) of each text. `scored` are logits with a bias and without, (rows, n,
    vocabulary).
    """
    given = rows.tokens.gather(1, ends)
    log_probs = filters.score(given, *scored, rows.before(ends)).to(choice.log_probs.dtype)
    is_given = ends - rows.prompt_len[:, None] < forced
    return Choice(
        torch.where(is_given, given, choice.tokens),
        torch.where(is_given, log_probs, choice.log_probs),
    )


def _read_start(logits: Tensor, special_tokens: SpecialTokens) -> Tensor:
    """Return three columns of `prefill` from logits (rows, vocabulary)."""
    no_speech = _probability(logits, special_tokens.no_speech).double()
    ids = special_tokens.languages.values()  # consecutive
    if not ids:
        return F.pad(no_speech[:, None], (0, 2))
    among = upcast(logits[:, min(ids) : max(ids) + 1]).softmax(dim=-1)
    probability, index = among.max(dim=-1)
    return torch.stack((no_speech, (index + min(ids)).double(), probability.double()), dim=1)


class LanguagePosterior(NamedTuple):
    """Probabilities of languages, by code in the vocabulary's order, and of no speech. `encoded`
    (1, frames, d_model), the main encoder's output, saves decoding the same window a second pass.
    """

    probabilities: dict[str, float]
    no_speech_prob: float
    encoded: Tensor | None = None

    @property
    def language(self) -> str:
        return max(self.probabilities, key=lambda code: self.probabilities[code])

    @property
    def probability(self) -> float:
        return self.probabilities[self.language]


def language_posterior(
    decoder: Decoder, encoded: Tensor, special_tokens: SpecialTokens
) -> LanguagePosterior:
    """Detect the language of `encoded` (1, frames, d_model), as in openai/whisper."""
    logits = decoder.scores(decoder.first(special_tokens.start_of_transcript, encoded))
    codes, ids = zip(*special_tokens.languages.items(), strict=True)
    probabilities = upcast(logits[0, list(ids)]).softmax(dim=-1)
    no_speech_prob = _probability(logits, special_tokens.no_speech)
    *shares, silent = torch.cat([probabilities, no_speech_prob]).tolist()
    return LanguagePosterior(dict(zip(codes, shares, strict=True)), silent, encoded)


def _probability(logits: Tensor, token: int) -> Tensor:
    return upcast(logits).softmax(dim=-1)[:, token]
