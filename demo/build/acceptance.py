"""How much of what the assistant drafts the main model keeps: the measure of speculative decoding.

The one decision: greedy speculation changes nothing in the text, so the main model's own transcript
is decoded once, and drafts of it are counted against it; no cache, no speed, only the share.
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

from demo.build.scoring import Utterance, window_features

DRAFT_LENGTH = 5
PROMPT_LENGTH = 3
LONGEST = 220


def acceptance(
    main: WhisperForConditionalGeneration,
    assistant: WhisperForConditionalGeneration,
    utterances: Sequence[Utterance],
    draft_length: int = DRAFT_LENGTH,
) -> float:
    """The share of draft tokens kept under greedy speculative decoding, timestamps on; the encoder
    is shared.
    """
    kept = drafted = 0
    with torch.inference_mode():
        for window in (
            window for utterance in utterances for window in window_features(utterance.samples)
        ):
            hidden = main.model.encoder(window[None]).last_hidden_state
            truth = greedy(main, hidden, prompt(main), LONGEST)
            counts = count_drafts(assistant, hidden, truth, draft_length)
            kept, drafted = kept + counts[0], drafted + counts[1]
    return kept / drafted


def count_drafts(
    assistant: WhisperForConditionalGeneration, hidden: Tensor, truth: list[int], draft_length: int
) -> tuple[int, int]:
    """How many tokens were kept and drafted; after each draft the main model adds a token of its
    own.
    """
    position, kept, drafted = PROMPT_LENGTH, 0, 0
    while position < len(truth):
        draft = greedy(assistant, hidden, truth[:position], draft_length)[position:]
        pairs = zip(draft, truth[position:], strict=False)
        agreed = next(
            (index for index, (guess, token) in enumerate(pairs) if guess != token), len(draft)
        )
        kept, drafted = kept + agreed, drafted + len(draft)
        position += agreed + 1
    return kept, drafted


def greedy(
    model: WhisperForConditionalGeneration, hidden: Tensor, tokens: list[int], count: int
) -> list[int]:
    """`tokens` continued by up to `count` tokens, by Whisper's timestamp rules, up to
    <|endoftext|>.
    """
    rules = _rules(model)
    continued = list(tokens)
    for _ in range(count):
        ids = torch.LongTensor([continued])
        decoded = model.model.decoder(
            ids, encoder_hidden_states=hidden, use_cache=False
        ).last_hidden_state
        scores = rules(ids, cast(torch.FloatTensor, model.proj_out(decoded[:, -1]).float()))
        continued.append(int(scores.argmax()))
        if continued[-1] == model.config.eos_token_id:
            break
    return continued


def prompt(model: WhisperForConditionalGeneration) -> list[int]:
    """<|startoftranscript|><|en|><|transcribe|>: timestamps on."""
    settings = model.generation_config.to_dict()
    return [
        settings["decoder_start_token_id"],
        settings["lang_to_id"]["<|en|>"],
        settings["task_to_id"]["transcribe"],
    ]


def _rules(model: WhisperForConditionalGeneration) -> LogitsProcessorList:
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
