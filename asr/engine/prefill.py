"""How a window enters the batch: it is heard by every model, reads its prompt and gets its first
token.

The one decision: what else is asked of a window comes from this pass. The logits at the start of
transcript hold the probability of no speech, and those at the prompt's end the first token, so
neither costs a pass of its own; prompts of different lengths share it, each padded at its end with
tokens whose keys are written over before they are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.logit_filters import LogitFilter, widened
from asr.engine.speculative import Reader, Rows, accept, warmed


@dataclass(frozen=True)
class Entry:
    """What a row starts from."""

    prompt: tuple[int, ...]
    limit: int  # most tokens, prompt included
    draftable: bool
    temperature: float = 0.0
    chance: Tensor | None = None  # (limit,) for sampling


def enter(entries: Sequence[Entry], rows: Rows) -> None:
    """Writes one entry into each of `rows`, forgetting what they held."""
    device = rows.tokens.device
    longest = max(len(entry.prompt) for entry in entries)
    padded = [[*entry.prompt, *[0] * (longest - len(entry.prompt))] for entry in entries]
    rows.tokens[:, :longest] = torch.tensor(padded, device=device)
    lengths = torch.tensor([len(entry.prompt) for entry in entries], device=device)
    rows.begin.copy_(lengths)
    rows.length.copy_(lengths)
    rows.limit.copy_(torch.tensor([entry.limit for entry in entries], device=device))
    rows.draftable.copy_(torch.tensor([entry.draftable for entry in entries], device=device))
    rows.temperature.copy_(torch.tensor([entry.temperature for entry in entries], device=device))
    for row, entry in enumerate(entries):
        if entry.chance is not None:
            rows.chance[row, : len(entry.chance)] = entry.chance.to(device)
    for counter in (rows.finished, rows.accepted, rows.judged):
        counter.zero_()


def read_prompts(
    main: Reader,
    assistant: Reader | None,
    rows: Rows,
    rules: LogitFilter,
    vocabulary: SpecialTokens,
) -> Tensor:
    """Reads each row's prompt and makes its first token final. Returns the probability of no
    speech, (rows,).
    """
    longest = int(rows.begin.max())
    tokens = rows.tokens[:, :longest]
    positions = torch.arange(longest, device=tokens.device).expand(tokens.shape)
    if assistant is not None:
        assistant.decoder.read(tokens, positions, assistant.cache, longest)
    hidden = main.decoder.read(tokens, positions, main.cache, longest)
    start = (tokens == vocabulary.start_of_transcript).int().argmax(dim=1)
    every = torch.arange(tokens.shape[0], device=tokens.device)
    heard = main.decoder.logits(hidden[every, start])
    logits = main.decoder.logits(hidden[every, rows.begin - 1], rules.first_bias)[:, None]
    ends = rows.begin[:, None]
    choice = warmed(rules.choose(logits, rows.tokens, rows.begin, ends), logits, rows, rules, ends)
    accept(rows, choice, torch.zeros_like(rows.length), rules.eos)
    return _probability(heard, vocabulary.no_speech)


class Detected(NamedTuple):
    """What a window's first pass says before any transcript; the probability is the language's
    among all languages.
    """

    language: str
    probability: float
    no_speech: float


def detect_language(main: Reader, vocabulary: SpecialTokens) -> Detected:
    """The likeliest language of the window heard in the first row (openai/whisper,
    `detect_language`).
    """
    start = torch.tensor(
        [[vocabulary.start_of_transcript]], device=main.decoder.token_embeddings.device
    )
    hidden = main.decoder.read(start, torch.zeros_like(start), main.cache, 1)
    heard = main.decoder.logits(hidden[:, 0])
    codes = list(vocabulary.languages)
    probability, likeliest = (
        widened(heard[0, list(vocabulary.languages.values())]).softmax(dim=-1).max(dim=-1)
    )
    return Detected(
        codes[int(likeliest)],
        float(probability),
        float(_probability(heard, vocabulary.no_speech)[0]),
    )


def _probability(logits: Tensor, token: int) -> Tensor:
    return widened(logits).softmax(dim=-1)[:, token]
