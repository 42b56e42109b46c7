"""The acceptance rate of speculative decoding: the share of drafted tokens that are kept.

Greedy speculation does not change the text. So the main model decodes once, and drafts are compared
with its tokens. No KV cache is needed; this measures acceptance, not speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import LogitsProcessorList, WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from extras.demo_models.scoring import Utterance, window_features

DRAFT_LENGTH = 5
PROMPT_LENGTH = 3
MAX_TOKENS = 220


def acceptance(
    main: WhisperForConditionalGeneration,
    assistant: WhisperForConditionalGeneration,
    utterances: Sequence[Utterance],
    draft_length: int = DRAFT_LENGTH,
) -> float:
    """Return the share of drafted tokens kept by greedy speculative decoding with timestamps.

    Both models read the encoder output of `main`.
    """
    kept = drafted = 0
    windows = [window for utterance in utterances for window in window_features(utterance.samples)]
    with torch.inference_mode():
        for window in windows:
            hidden = main.model.encoder(window[None]).last_hidden_state
            expected = greedy(main, hidden, prompt(main), MAX_TOKENS)
            counts = count_drafts(assistant, hidden, expected, draft_length)
            kept, drafted = kept + counts[0], drafted + counts[1]
    return kept / drafted


def count_drafts(
    assistant: WhisperForConditionalGeneration,
    hidden: Tensor,
    expected: list[int],
    draft_length: int,
) -> tuple[int, int]:
    """Return the numbers of kept and of drafted tokens, if the main model's tokens are `expected`.

    After each draft the main model adds one token of its own, as in speculative decoding.
    """
    position, kept, drafted = PROMPT_LENGTH, 0, 0
    while position < len(expected):
        draft = greedy(assistant, hidden, expected[:position], draft_length)[position:]
        accepted = _common_prefix(draft, expected[position:])
        kept, drafted = kept + accepted, drafted + len(draft)
        position += accepted + 1
    return kept, drafted


def greedy(
    model: WhisperForConditionalGeneration, hidden: Tensor, tokens: list[int], count: int
) -> list[int]:
    """`tokens` and up to `count` greedy ones after them, ending at <|endoftext|>.

    Logits are filtered by Whisper's timestamp rules.
    """
    filters = _logit_filters(model)
    continued = list(tokens)
    for _ in range(count):
        ids = torch.LongTensor([continued])
        decoded = model.model.decoder(
            ids, encoder_hidden_states=hidden, use_cache=False
        ).last_hidden_state
        scores = filters(ids, cast(torch.FloatTensor, model.proj_out(decoded[:, -1]).float()))
        continued.append(int(scores.argmax()))
        if continued[-1] == model.config.eos_token_id:
            break
    return continued


def prompt(model: WhisperForConditionalGeneration) -> list[int]:
    """<|startoftranscript|><|en|><|transcribe|>, which asks for timestamps."""
    settings = model.generation_config.to_dict()
    return [
        settings["decoder_start_token_id"],
        settings["lang_to_id"]["<|en|>"],
        settings["task_to_id"]["transcribe"],
    ]


def _common_prefix(draft: list[int], expected: list[int]) -> int:
    """Return the length of the prefix that `draft` and `expected` share.

    A draft that goes on where `expected` ends counts as equal up to its own end.
    """
    for index, (guess, token) in enumerate(zip(draft, expected, strict=False)):
        if guess != token:
            return index
    return len(draft)


def _logit_filters(model: WhisperForConditionalGeneration) -> LogitsProcessorList:
    config = model.generation_config
    return LogitsProcessorList(
        [
            SuppressTokensLogitsProcessor(config.suppress_tokens),
            SuppressTokensAtBeginLogitsProcessor(
                config.begin_suppress_tokens, begin_index=PROMPT_LENGTH
            ),
            WhisperTimeStampLogitsProcessor(config, begin_index=PROMPT_LENGTH),
        ]
    )
