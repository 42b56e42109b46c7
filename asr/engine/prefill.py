"""How sequences enter the batch: rows are initialised, prompts read, first tokens chosen.

The one decision: what else is asked of a window comes from this pass. The logits at the start of
transcript hold the probability of no speech, and those at the prompt's end the first token, so
neither costs a pass of its own. Prompts of different lengths share it, each padded at its end with
tokens whose keys are overwritten before anything attends to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.beam_search import begin_beams
from asr.engine.drafters import Drafter
from asr.engine.logit_filters import LogitFilter, upcast
from asr.engine.row_state import BeamState, ModelWithCache, SequenceState
from asr.engine.speculative import accept, sample_first


@dataclass(frozen=True)
class PrefillInput:
    """What a row starts from."""

    prompt: tuple[int, ...]
    max_length: int  # most tokens, prompt included
    draftable: bool
    timestamps: bool = True
    temperature: float = 0.0
    uniform: Tensor | None = None  # (max_length,) for sampling


def init_rows(inputs: Sequence[PrefillInput], rows: SequenceState) -> None:
    """Write one input into each of `rows`, forgetting what they held.

    All numbers of all rows go to the device in one transfer.
    """
    max_len = rows.tokens.shape[1]
    longest = max(len(each.prompt) for each in inputs)
    columns = _upload([_numbers(each, longest, max_len) for each in inputs], rows.tokens.device)
    rows.tokens[:, :longest] = columns[:, :longest]
    targets = (
        rows.prompt_len,
        rows.grammar_start,
        rows.max_length,
        rows.draftable,
        rows.timestamps,
        rows.temperature,
    )
    for target, column in zip(targets, columns[:, longest:].unbind(1), strict=True):
        target.copy_(column)
    rows.length.copy_(rows.prompt_len)
    for row, each in enumerate(inputs):
        if each.uniform is not None:
            rows.uniform[row, : len(each.uniform)] = _upload(each.uniform, rows.uniform.device)
    for counter in (rows.finished, rows.accepted, rows.drafted):
        counter.zero_()


def _numbers(each: PrefillInput, longest: int, max_len: int) -> list[float]:
    """A row's prompt, padded to `longest`, and its parameters in the order of `init_rows`."""
    padding = [0] * (longest - len(each.prompt))
    length = len(each.prompt)
    grammar_start = length if each.timestamps else max_len
    parameters = (grammar_start, each.max_length, each.draftable, each.timestamps)
    return [*each.prompt, *padding, length, *parameters, each.temperature]


def _upload(values: Sequence[Sequence[float]] | Tensor, device: torch.device) -> Tensor:
    """A float64 copy on `device`, exact for every id; on CUDA the host does not wait for it."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    if device.type != "cuda":
        return numbers.to(device)
    pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    return pinned.copy_(numbers).to(device, non_blocking=True)


def prefill(
    main: ModelWithCache,
    drafter: Drafter | None,
    rows: SequenceState,
    filters: LogitFilter,
    special_tokens: SpecialTokens,
    beams: BeamState | None = None,
) -> Tensor:
    """Read each row's prompt and make its first token final, or begin its beams.

    Returns what the start of transcript says, (rows, 3): the probability of no speech, the id of
    the likeliest language and its probability among all; the latter two are 0 where the vocabulary
    has none.
    """
    longest = int(rows.prompt_len.max())
    tokens = rows.tokens[:, :longest]
    positions = torch.arange(longest, device=tokens.device).expand(tokens.shape)
    hidden = main.decoder.forward(tokens, positions, main.cache.first_beams(), longest)
    if drafter is not None:
        drafter.read_prompt(tokens, positions, hidden, rows.prompt_len)
    start = (tokens == special_tokens.start_of_transcript).int().argmax(dim=1)
    every = torch.arange(tokens.shape[0], device=tokens.device)
    at_start = main.decoder.logits(hidden[every, start], whisper_alone=True)
    logits = main.decoder.logits(hidden[every, rows.prompt_len - 1], filters.first_bias)[:, None]
    history = rows.before(rows.length[:, None])
    if beams is not None:
        main.cache.copy_first_beams(longest)
        begin_beams(beams, rows, filters.best(logits, history, beams.num_beams + 1), filters.eos)
    else:
        choice = filters.choose(logits, history)
        choice = sample_first(choice, logits, rows, filters, grammar=True)
        accept(rows, choice, torch.zeros_like(rows.length), filters.eos)
    return _read_start(at_start, special_tokens)


def _read_start(logits: Tensor, special_tokens: SpecialTokens) -> Tensor:
    """What `prefill` returns, from logits (rows, vocabulary); languages are consecutive ids."""
    no_speech = _probability(logits, special_tokens.no_speech).double()
    ids = special_tokens.languages.values()
    if not ids:
        return F.pad(no_speech[:, None], (0, 2))
    among = upcast(logits[:, min(ids) : max(ids) + 1]).softmax(dim=-1)
    probability, index = among.max(dim=-1)
    return torch.stack((no_speech, (index + min(ids)).double(), probability.double()), dim=1)


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
