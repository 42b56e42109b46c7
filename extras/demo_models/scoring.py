"""Word error rate on the development voices, decoded with timestamps.

Decoding is transformers' greedy generation, window by window: figures here are about the model, not
about this repository's engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
import torch
from torch import Tensor
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

from extras.demo_models.corpus import MELS
from tests.support.dialogue import Style, draw_dialogue
from tests.support.speech import Samples, draw_clip, draw_voice
from whosaid.asr.frontend.windows import Loudness, window_stop
from whosaid.timebase import SAMPLE_RATE

MAX_SENTENCE = 4.0  # seconds; longer utterances are dialogues
WINDOW = 30.0
MAX_TOKENS = 160


@dataclass(frozen=True)
class Utterance:
    """Samples and their reference text."""

    samples: Samples
    text: str


def draw_utterances(names: Sequence[str], seconds: float, count: int, seed: int) -> list[Utterance]:
    """Draw `count` utterances of `seconds`: dialogues of up to two of the voices `names`.

    Of MAX_SENTENCE or less they are single sentences, at most as long.
    """
    generator = np.random.default_rng([seed, round(seconds)])
    if seconds <= MAX_SENTENCE:
        return [_sentence(names[index % len(names)], seconds, generator) for index in range(count)]
    return [_dialogue(names, seconds, generator) for _ in range(count)]


def word_error_rate(
    model: WhisperForConditionalGeneration,
    tokenizer: WhisperTokenizer,
    utterances: Sequence[Utterance],
) -> float:
    """Return the word error rate over all utterances."""
    references = [utterance.text for utterance in utterances]
    hypotheses = [transcribe(model, tokenizer, utterance.samples) for utterance in utterances]
    return float(jiwer.wer(references, hypotheses))


def transcribe(
    model: WhisperForConditionalGeneration, tokenizer: WhisperTokenizer, samples: Samples
) -> str:
    """Greedy transcript of audio of any length; words separated by single spaces."""
    with torch.inference_mode():
        tokens = model.generate(
            window_features(samples),
            language="en",
            task="transcribe",
            return_timestamps=True,
            max_new_tokens=MAX_TOKENS,
        )
    return " ".join(" ".join(tokenizer.batch_decode(tokens, skip_special_tokens=True)).split())


def window_features(samples: Samples) -> Tensor:
    """Features (windows, 80, 3000) of windows of at most 30 s, cut where it is quiet."""
    loudness, start, windows = Loudness(samples), 0, []
    while start < len(samples):
        stop = window_stop(loudness, start, len(samples), round(WINDOW * SAMPLE_RATE))
        windows.append(samples[start:stop])
        start = stop
    extractor = WhisperFeatureExtractor(feature_size=MELS)
    features: Tensor = extractor(
        windows, sampling_rate=SAMPLE_RATE, return_tensors="pt"
    ).input_features
    return features


def _sentence(name: str, seconds: float, generator: np.random.Generator) -> Utterance:
    voice = draw_voice(name, generator)
    clip = draw_clip(voice, generator)
    while clip.duration > seconds:
        clip = draw_clip(voice, generator)
    return Utterance(clip.samples, clip.text)


def _dialogue(names: Sequence[str], seconds: float, generator: np.random.Generator) -> Utterance:
    chosen = generator.choice(len(names), min(2, len(names)), replace=False)
    scene = draw_dialogue(
        [draw_voice(names[int(index)], generator) for index in chosen], seconds, Style(), generator
    )
    return Utterance(scene.samples, " ".join(word.text for word in scene.words))
