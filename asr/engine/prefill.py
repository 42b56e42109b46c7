"""How sequences enter the batch: their audio is projected, prompts read, first tokens chosen.

What else is asked of a window comes from this pass. The logits at the start of transcript hold the
probability of no speech, and those at the prompt's end the first token, so neither costs a pass of
its own. Prompts of different lengths share it, each padded at its end with tokens whose keys are
overwritten before anything attends to them. Like a step it asks the device for nothing, so that
CUDA can replay it as a graph.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence as Values
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
from asr.engine.logit_filters import LogitFilter, upcast
from asr.engine.row_state import ModelWithCache, SequenceState
from asr.engine.sequence import Sequence
from asr.engine.speculative import accept, sample_first
from asr.model.encoder import EncoderOutput


@dataclass(frozen=True)
class PrefillInput:
    """What a row starts from."""

    prompt: tuple[int, ...]
    max_length: int  # most tokens, prompt included
    draftable: bool
    timestamps: bool = True
    temperature: float = 0.0
    uniform: Tensor | None = None  # (max_length,) for sampling

    @classmethod
    def of(cls, sequence: Sequence, max_positions: int) -> PrefillInput:
        """For a sequence in a model of texts of `max_positions` tokens.

        Beams find at most half as many new tokens, as in openai/whisper (`sample_len`).
        """
        request, max_length = sequence.request, max_positions
        if sequence.num_beams > 1:
            max_length = min(max_length, len(sequence.prompt) + max_positions // 2)
        if request.max_tokens is not None:
            max_length = min(max_length, len(sequence.prompt) + request.max_tokens)
        temperature = sequence.options.temperature
        return cls(
            sequence.prompt,
            max_length,
            sequence.draftable,
            sequence.timestamps,
            temperature,
            uniform(request.samples, max_length) if temperature else None,
        )


def uniform(samples: NDArray[np.float32], count: int) -> Tensor:
    """`count` random numbers in [0, 1), float32, seeded by the window's samples.

    So a window's text does not depend on its neighbours, and the same request has the same answer.
    """
    seed = zlib.crc32(np.ascontiguousarray(samples).tobytes())
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


class PrefillShape(NamedTuple):
    """All that a CUDA graph of a prefill depends on besides the number of rows."""

    prompt_len: int  # positions that are read: as many as the longest prompt, or more
    forgotten: int  # positions that earlier texts may have written, which are zeroed
    drafted: bool = False  # whether the drafter reads the prompts, and the audio, too
    sampled: bool = False  # whether any row samples


class PrefillBatch(NamedTuple):
    """What rows start from, their audio among it.

    `numbers` (rows, prompt_len + 6), float64, on the device or the host: each row's prompt, padded,
    and what else tells it from others in the order of `init_rows`. `uniform` as in PrefillInput.
    """

    numbers: Tensor
    shape: PrefillShape
    encoded: EncoderOutput
    uniform: Values[Tensor | None] = ()

    @classmethod
    def of(
        cls,
        inputs: Values[PrefillInput],
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


def init_rows(batch: PrefillBatch, rows: SequenceState) -> None:
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
    for target, column in zip(targets, columns[:, prompt_len:].unbind(1), strict=True):
        target.copy_(column)
    rows.length.copy_(rows.prompt_len)
    for row, uniform in enumerate(batch.uniform):
        if uniform is not None:
            rows.uniform[row, : len(uniform)] = upload(uniform, device)
    for counter in (rows.finished, rows.accepted, rows.drafted):
        counter.zero_()


def _numbers(each: PrefillInput, prompt_len: int, max_len: int) -> list[float]:
    """A row's prompt, padded to `prompt_len`, and its parameters in the order of `init_rows`."""
    padding = [0] * (prompt_len - len(each.prompt))
    length = len(each.prompt)
    grammar_start = length if each.timestamps else max_len
    parameters = (grammar_start, each.max_length, each.draftable, each.timestamps)
    return [*each.prompt, *padding, length, *parameters, each.temperature]


def upload(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`; the host does not wait for CUDA."""
    if values.device == device or device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values).to(device, non_blocking=True)


def prefill(
    state: DecodeState, batch: PrefillBatch, filters: LogitFilter, special_tokens: SpecialTokens
) -> Tensor:
    """Let every row of `state` start: project its audio, read its prompt, make its first token
    final or begin its beams.

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
    init_rows(batch, rows)
    tokens = rows.tokens[:, : shape.prompt_len]
    positions = torch.arange(shape.prompt_len, device=tokens.device).expand(tokens.shape)
    hidden = main.decoder.forward(tokens, positions, main.cache.first_beams(), shape.prompt_len)
    if drafter is not None:
        drafter.read_prompt(tokens, positions, hidden, rows.prompt_len)
    start = (tokens == special_tokens.start_of_transcript).int().argmax(dim=1)
    every = torch.arange(tokens.shape[0], device=tokens.device)
    at_start = main.decoder.logits(hidden[every, start], whisper_alone=True)
    unfiltered = main.decoder.logits(hidden[every, rows.prompt_len - 1])
    _choose_first(state, unfiltered, shape, filters)
    annotation = _annotation_prob(unfiltered, filters.annotations) * ~rows.timestamps
    return torch.cat((_read_start(at_start, special_tokens), annotation[:, None]), dim=1)


def _choose_first(
    state: DecodeState, unfiltered: Tensor, shape: PrefillShape, filters: LogitFilter
) -> None:
    """Make each row's first token final, or begin its beams, by logits (rows, vocabulary)."""
    rows, beams = state.rows, state.beams
    logits = (unfiltered + filters.first_bias)[:, None]
    history = rows.before(rows.length[:, None])
    if beams is not None:
        state.main.cache.copy_first_beams(shape.prompt_len)
        begin_beams(beams, rows, filters.best(logits, history, beams.num_beams + 1), filters.eos)
        return
    choice = filters.choose(logits, history)
    if shape.sampled:
        choice = sample_first(choice, logits, rows, filters, grammar=True)
    accept(rows, choice, torch.zeros_like(rows.length), filters.eos)


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
    def likeliest(self) -> DetectedLanguage:
        """The first of the likeliest languages."""
        code = max(self.probabilities, key=lambda code: self.probabilities[code])
        return DetectedLanguage(code, self.probabilities[code], self.no_speech_prob, self.encoded)


class DetectedLanguage(NamedTuple):
    """The likeliest language of a `LanguagePosterior`, and its probability among all."""

    language: str
    probability: float
    no_speech_prob: float
    encoded: Tensor | None = None


def language_posterior(
    main: ModelWithCache, encoded: Tensor, special_tokens: SpecialTokens
) -> LanguagePosterior:
    """The languages of the window in the first row (openai/whisper, `detect_language`)."""
    start = torch.tensor([[special_tokens.start_of_transcript]], device=encoded.device)
    hidden = main.decoder.forward(start, torch.zeros_like(start), main.cache, 1)
    logits = main.decoder.logits(hidden[:, 0], whisper_alone=True)
    codes, ids = zip(*special_tokens.languages.items(), strict=True)
    probabilities = upcast(logits[0, list(ids)]).softmax(dim=-1)
    no_speech_prob = _probability(logits, special_tokens.no_speech)
    *shares, silent = torch.cat([probabilities, no_speech_prob]).tolist()
    return LanguagePosterior(dict(zip(codes, shares, strict=True)), silent, encoded)


def _probability(logits: Tensor, token: int) -> Tensor:
    return upcast(logits).softmax(dim=-1)[:, token]
