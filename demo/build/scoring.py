"""How well a recogniser hears voices it never heard: word error rate on the development voices, timestamps on.

The one decision: decoding is transformers' own greedy generation, so a figure here is what a stock pipeline gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

from demo.build.clip import SAMPLING_RATE, Samples
from demo.build.corpus import MELS
from demo.build.dialogue import Style, draw_dialogue
from demo.build.speech import draw_clip
from demo.build.voices import draw_voice, espeak_speakers

QUIETEST_WITHIN = 10.0
WINDOW = 30.0
RECORDED = "rms"


@dataclass(frozen=True)
class Utterance:
    """Samples and what is said in them."""

    samples: Samples
    text: str


DevelopmentSet = dict[str, list[Utterance]]


def draw_development_set(seed: int, clips: int = 16, dialogues: int = 6, seconds: float = 30.0) -> DevelopmentSet:
    """Clips of about 4 s and dialogues of `seconds`, of the espeak development voices and of flite's rms apart."""
    generator = np.random.default_rng(seed)
    names = espeak_speakers("development")
    return {
        "4s": [_utterance([names[i % len(names)]], 4.0, generator) for i in range(clips)],
        f"{seconds:.0f}s": [_utterance(_pair(names, generator), seconds, generator) for _ in range(dialogues)],
        f"{RECORDED}-4s": [_utterance([RECORDED], 4.0, generator) for _ in range(clips // 2)],
    }


def word_error_rate(
    model: WhisperForConditionalGeneration, tokenizer: WhisperTokenizer, development: DevelopmentSet
) -> dict[str, float]:
    """WER of each part of the set."""
    return {
        name: jiwer.wer(
            [utterance.text for utterance in utterances],
            [transcribe(model, tokenizer, utterance.samples) for utterance in utterances],
        )
        for name, utterances in development.items()
    }


def transcribe(model: WhisperForConditionalGeneration, tokenizer: WhisperTokenizer, samples: Samples) -> str:
    """Greedy text of audio of any length, window by window, timestamps on; words separated by single spaces."""
    extractor = WhisperFeatureExtractor(feature_size=MELS)
    features = extractor(cut(samples), sampling_rate=SAMPLING_RATE, return_tensors="pt").input_features
    with torch.inference_mode():
        tokens = model.generate(features, language="en", task="transcribe", return_timestamps=True, max_new_tokens=160)
    return " ".join(" ".join(tokenizer.batch_decode(tokens, skip_special_tokens=True)).split())


def cut(samples: Samples) -> list[Samples]:
    """Windows of at most 30 s, cut at the quietest 0.2 s of each window's last ten seconds."""
    windows = []
    while len(samples) > WINDOW * SAMPLING_RATE:
        first = int((WINDOW - QUIETEST_WITHIN) * SAMPLING_RATE)
        width = SAMPLING_RATE // 5
        power = np.convolve(np.square(samples[first : int(WINDOW * SAMPLING_RATE)]), np.ones(width), "valid")
        at = first + int(power.argmin()) + width // 2
        windows.append(samples[:at])
        samples = samples[at:]
    return [*windows, samples]


def _pair(names: Sequence[str], generator: np.random.Generator) -> list[str]:
    return [names[int(index)] for index in generator.choice(len(names), 2, replace=False)]


def _utterance(names: Sequence[str], seconds: float, generator: np.random.Generator) -> Utterance:
    """A clip where `seconds` hold one sentence, a dialogue of these voices otherwise."""
    voices = [draw_voice(name, generator) for name in names]
    if seconds > 5.0:
        scene = draw_dialogue(voices, seconds, Style(), generator)
        return Utterance(scene.samples, " ".join(word.text for word in scene.words))
    clip = draw_clip(voices[0], generator)
    while clip.duration > seconds:
        clip = draw_clip(voices[0], generator)
    return Utterance(clip.samples, clip.text)
