"""Prints the figures for the model cards, measured on voices that were not used for training.

Recorded voices of flite are reported beside the espeak voices. The endpoint's own transcriber
decodes, with drafts of five tokens, which do not change the text. Thresholds of the diarization
were chosen on dialogues of another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import jiwer
import numpy as np
import torch

from benchmarks.voices.scoring import diarization_parts, errors_of
from tests.support.dialogue import Scene, Style, draw_dialogue, draw_dialogues
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
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Diarizer, SpeakerHints

TEXT_SEED, DIARIZATION_SEED, DRAFTS, COLLAR = 11, 2, 5, 0.25
PARTS = ((4.0, 80), (30.0, 16), (70.0, 8))  # seconds and number of utterances
MAX_SENTENCE = 4.0  # seconds; longer utterances are dialogues
ESPEAK, RECORDED = espeak_speakers("development"), recorded_speakers("development")


def print_recognition(main: Path, assistant: Path) -> None:
    """Print word error rates by length, how often English is detected, and accepted drafts."""
    models = load_whisper(Checkpoint(str(main)), torch.device("cpu"), torch.float32)
    transcriber = Transcriber(with_assistant(models, Checkpoint(str(assistant))))
    decode = DecodeOptions(assisted=True, drafts=DRAFTS)
    options = transcriber.validate(TranscriptionOptions(decode=decode))
    for voices, names in (("espeak", ESPEAK), ("flite", RECORDED)):
        for seconds, count in PARTS:
            generator = np.random.default_rng([TEXT_SEED, round(seconds)])
            spoken = [_utter(names, number, seconds, generator) for number in range(count)]
            found = [transcriber.transcribe(samples, options) for samples, _ in spoken]
            texts = [" ".join(each.text.split()) for each in found]
            wrong = jiwer.wer([text for _, text in spoken], texts)
            english = sum(each.language == "en" for each in found)
            kept = sum(each.stats.accepted for each in found)
            drafted = DRAFTS * sum(each.stats.drafted_rows for each in found)
            print(
                f"{voices}, {seconds:.0f} s ({count}): WER {wrong:.1%}, English in {english},"
                f" {kept / drafted:.1%} of drafts kept",
                flush=True,
            )


def _utter(
    names: Sequence[str], number: int, seconds: float, generator: np.random.Generator
) -> tuple[Samples, str]:
    """Draw a sentence of at most `seconds`, or a dialogue of up to two of the voices `names`.

    Return its samples and its text.
    """
    if seconds <= MAX_SENTENCE:
        voice = draw_voice(names[number % len(names)], generator)
        while (clip := draw_clip(voice, generator)).duration > seconds:
            pass
        return clip.samples, clip.text
    chosen = generator.choice(names, min(2, len(names)), replace=False)
    voices = [draw_voice(str(name), generator) for name in chosen]
    scene = draw_dialogue(voices, seconds, Style(), generator)
    return scene.samples, " ".join(word.text for word in scene.words)


def print_diarization(folder: Path) -> None:
    """Print diarization error rates of dialogues by two and three voices."""
    diarizer = load_diarizer(str(folder), None, None, torch.device("cpu"))
    groups: dict[str, Sequence[tuple[str, ...]]] = {
        "two espeak voices": [*combinations(ESPEAK, 2)],
        "three espeak voices": [*combinations(ESPEAK, 3)],
        "one espeak, one recorded": [(one, other) for one in ESPEAK for other in RECORDED],
    }
    for name, casts in groups.items():
        scenes = draw_dialogues(casts, DIARIZATION_SEED)
        rate, right = error_rate(diarizer, scenes)
        print(f"{name}: DER {rate:.1%}, right number of speakers in {right} of {len(scenes)}")


def error_rate(diarizer: Diarizer, scenes: Sequence[Scene]) -> tuple[float, int]:
    """Return the diarization error rate, overlapped speech and collars left out, and in how many
    scenes the number of speakers is right.
    """
    errors, speech, right = 0.0, 0.0, 0
    for scene in scenes:
        found = diarizer.diarize(scene.samples, SpeakerHints()).turns
        parts = diarization_parts(scene.turns, found, scene.duration, COLLAR, skip_overlap=True)
        count = errors_of(parts)
        errors, speech = errors + count.errors, speech + count.total
        speakers = ({turn.speaker for turn in turns} for turns in (found, scene.turns))
        right += len(next(speakers)) == len(next(speakers))
    return errors / speech, right
