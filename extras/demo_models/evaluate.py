"""Computes the figures in the model cards of the speech recognition model and its assistant.

The sentences differ from those that checkpoints were chosen on. The voices are the development
voices: espeak's and, reported separately, flite's recorded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoProcessor, WhisperForConditionalGeneration

from extras.demo_models.acceptance import acceptance
from extras.demo_models.scoring import Utterance, draw_utterances, window_features, word_error_rate
from tests.support.speech import espeak_speakers, recorded_speakers

SEED = 11
PARTS = ((4.0, 80), (30.0, 16), (70.0, 8))


def evaluate(main: Path, assistant: Path) -> Iterator[str]:
    """Yield one line a figure: word error rates by length, language detection, acceptance."""
    model = WhisperForConditionalGeneration.from_pretrained(main, dtype=torch.float32).eval()
    tokenizer = AutoProcessor.from_pretrained(main).tokenizer
    drafter = WhisperForConditionalGeneration.from_pretrained(assistant, dtype=torch.float32).eval()
    voices = {
        "espeak": espeak_speakers("development"),
        "flite rms": recorded_speakers("development"),
    }
    parts: dict[float, list[Utterance]] = {}
    for engine, names in voices.items():
        for seconds, count in PARTS:
            utterances = draw_utterances(names, seconds, count, SEED)
            rate = word_error_rate(model, tokenizer, utterances)
            yield f"WER {engine} {seconds:.0f} s ({count}): {rate:.1%}"
            if engine == "espeak":
                parts[seconds] = utterances
    english = english_share(model, [utterance for part in parts.values() for utterance in part])
    yield f"English detected: {english:.1%}"
    for seconds, utterances in parts.items():
        yield f"Drafts of 5 kept, {seconds:.0f} s: {acceptance(model, drafter, utterances):.1%}"


def english_share(model: WhisperForConditionalGeneration, utterances: Sequence[Utterance]) -> float:
    """Return the share of utterances in whose first window English is detected."""
    first = torch.cat([window_features(utterance.samples)[:1] for utterance in utterances])
    detected = torch.cat([model.detect_language(window[None]) for window in first])
    english = model.generation_config.to_dict()["lang_to_id"]["<|en|>"]
    return float((detected == english).float().mean())
