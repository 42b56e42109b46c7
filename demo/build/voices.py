"""The synthetic voices and their splits: training, development and reserved.

A voice is a value, so a speaker keeps pitch and speed through a dialogue. Neither training nor the
choice of checkpoints draws from the reserved voices.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from demo.build import espeak, flite
from demo.build.clip import Clip

GRAMMAR = Path(__file__).with_name("grammar.json")
ESPEAK_PITCH, ESPEAK_SPEED = (35, 65), (130, 190)
FLITE_SPEED = (125, 190)
FLITE_PITCH = {"kal16": (85, 125), "awb": (95, 145), "slt": (140, 205), "rms": (80, 115)}

Split = Literal["training", "development", "reserved"]


@dataclass(frozen=True)
class Voice:
    """One speaker; `pitch` is 0-99 for espeak and Hz for flite, `speed` in words a minute."""

    engine: Literal["espeak", "flite"]
    name: str
    accent: str
    pitch: int
    speed: int


@cache
def grammar() -> dict[str, Any]:
    """The grammar file: `slots`, `templates` and `voices`."""
    content: dict[str, Any] = json.loads(GRAMMAR.read_text())
    return content


def speakers(split: Split) -> tuple[str, ...]:
    """The names of a split's voices."""
    voices = grammar()["voices"]
    return tuple(
        voices["espeak_variants"] + voices["flite"] if split == "training" else voices[split]
    )


def espeak_speakers(split: Split) -> tuple[str, ...]:
    """The names of a split's espeak voices."""
    return tuple(name for name in speakers(split) if name not in FLITE_PITCH)


def recorded_speakers(split: Split) -> tuple[str, ...]:
    """The names of a split's flite voices."""
    return tuple(name for name in speakers(split) if name in FLITE_PITCH)


def draw_voice(name: str, generator: np.random.Generator) -> Voice:
    """Draw pitch, speed and (for espeak) accent of a speaker with voice `name`."""
    if name in FLITE_PITCH:
        return Voice(
            "flite",
            name,
            "en-us",
            _draw(FLITE_PITCH[name], generator),
            _draw(FLITE_SPEED, generator),
        )
    accent = str(generator.choice(grammar()["voices"]["espeak_accents"]))
    return Voice(
        "espeak", name, accent, _draw(ESPEAK_PITCH, generator), _draw(ESPEAK_SPEED, generator)
    )


def speak(voice: Voice, sentence: str) -> Clip:
    """Speak a sentence of lower-case words without punctuation."""
    if voice.engine == "flite":
        return flite.speak(voice.name, voice.pitch, voice.speed, sentence)
    return espeak.speak(voice.name, voice.accent, voice.pitch, voice.speed, sentence)


def _draw(bounds: tuple[int, int], generator: np.random.Generator) -> int:
    return int(generator.integers(bounds[0], bounds[1] + 1))
