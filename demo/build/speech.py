"""Draws sentences of the grammar and speaks them.

A third of the sentences are random words, so that a model has to use the audio and cannot guess
from the grammar alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from demo.build.clip import Clip
from demo.build.voices import Voice, grammar, speak

TEMPLATE_SHARE = 0.65
RANDOM_WORDS = (2, 8)
DIGITS = (3, 6)
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@cache
def vocabulary() -> tuple[str, ...]:
    """Every word that sentences are made of, sorted."""
    texts = [
        *grammar()["templates"],
        *(entry for entries in grammar()["slots"].values() for entry in entries),
    ]
    return tuple(sorted({word for text in texts for word in PLACEHOLDER.sub("", text).split()}))


def draw_sentence(generator: np.random.Generator) -> str:
    """Draw a sentence: a filled template, or a few random words."""
    if generator.random() < TEMPLATE_SHARE:
        return _fill(_pick(grammar()["templates"], generator), generator)
    count = generator.integers(RANDOM_WORDS[0], RANDOM_WORDS[1] + 1)
    return " ".join(_pick(vocabulary(), generator) for _ in range(count))


def draw_clip(voice: Voice, generator: np.random.Generator) -> Clip:
    """Draw a sentence and have `voice` speak it."""
    return speak(voice, draw_sentence(generator))


def _fill(text: str, generator: np.random.Generator) -> str:
    """Replace every {name} of the template, and those in the replacements."""
    while match := PLACEHOLDER.search(text):
        text = text[: match.start()] + _entry(match.group(1), generator) + text[match.end() :]
    return text


def _entry(name: str, generator: np.random.Generator) -> str:
    entries = grammar()["slots"]
    if name == "digits":
        count = generator.integers(DIGITS[0], DIGITS[1] + 1)
        return " ".join(_pick(entries["digit"], generator) for _ in range(count))
    return _pick(entries[name], generator)


def _pick(entries: Sequence[str], generator: np.random.Generator) -> str:
    return entries[int(generator.integers(len(entries)))]
