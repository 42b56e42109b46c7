"""Computes the figures in the model cards of the speech recognition model and its assistant.

The voices are the development voices: espeak's and, reported separately, flite's recorded one. The
endpoint's own transcriber decodes, with drafts of five tokens, which do not change the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jiwer
import numpy as np
import torch

from tests.support.dialogue import Style, draw_dialogue
from tests.support.speech import (
    Samples,
    draw_clip,
    draw_voice,
    espeak_speakers,
    recorded_speakers,
)
from whosaid.asr import (
    Checkpoint,
    DecodeOptions,
    Transcriber,
    TranscriptionOptions,
    load_whisper,
    with_assistant,
)

SEED, DRAFTS = 11, 5
PARTS = ((4.0, 80), (30.0, 16), (70.0, 8))  # seconds and number of utterances
MAX_SENTENCE = 4.0  # seconds; longer utterances are dialogues


class Utterance(NamedTuple):
    """Samples and their reference text."""

    samples: Samples
    text: str


def evaluate(main: Path, assistant: Path) -> Iterator[str]:
    """Yield one line a figure: word error rates by length, language detection, acceptance."""
    models = load_whisper(Checkpoint(str(main)), torch.device("cpu"), torch.float32)
    transcriber = Transcriber(with_assistant(models, Checkpoint(str(assistant))))
    decode = DecodeOptions(assisted=True, drafts=DRAFTS)
    options = transcriber.validate(TranscriptionOptions(decode=decode))
    voices = {
        "espeak": espeak_speakers("development"),
        "flite rms": recorded_speakers("development"),
    }
    for engine, names in voices.items():
        for seconds, count in PARTS:
            utterances = draw_utterances(names, seconds, count)
            found = [transcriber.transcribe(each.samples, options) for each in utterances]
            wrong = jiwer.wer(
                [each.text for each in utterances], [" ".join(each.text.split()) for each in found]
            )
            english = sum(each.language == "en" for each in found)
            kept = sum(each.stats.accepted for each in found)
            drafted = DRAFTS * sum(each.stats.drafted_rows for each in found)
            yield (
                f"{engine}, {seconds:.0f} s ({count}): WER {wrong:.1%}, English in {english},"
                f" {kept / drafted:.1%} of drafts kept"
            )


def draw_utterances(names: Sequence[str], seconds: float, count: int) -> list[Utterance]:
    """Draw `count` utterances of `seconds`: dialogues of up to two of the voices `names`.

    Of MAX_SENTENCE or less they are single sentences, at most as long.
    """
    generator = np.random.default_rng([SEED, round(seconds)])
    if seconds <= MAX_SENTENCE:
        return [_sentence(names[index % len(names)], seconds, generator) for index in range(count)]
    return [_dialogue(names, seconds, generator) for _ in range(count)]


def _sentence(name: str, seconds: float, generator: np.random.Generator) -> Utterance:
    voice = draw_voice(name, generator)
    clip = draw_clip(voice, generator)
    while clip.duration > seconds:
        clip = draw_clip(voice, generator)
    return Utterance(clip.samples, clip.text)


def _dialogue(names: Sequence[str], seconds: float, generator: np.random.Generator) -> Utterance:
    chosen = generator.choice(len(names), min(2, len(names)), replace=False)
    voices = [draw_voice(names[int(index)], generator) for index in chosen]
    scene = draw_dialogue(voices, seconds, Style(), generator)
    return Utterance(scene.samples, " ".join(word.text for word in scene.words))
