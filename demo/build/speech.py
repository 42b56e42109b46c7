"""Sentences of the grammar, spoken: the clips that everything in the demo is made from.

The one decision: a third of the sentences are random words, so that a recogniser has to listen and
cannot guess from the grammar alone.
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
SLOT = re.compile(r"\{(\w+)\}")


@cache
def vocabulary() -> tuple[str, ...]:
    """Every word that a sentence can hold, sorted."""
    texts = [
        *grammar()["templates"],
        *(entry for entries in grammar()["slots"].values() for entry in entries),
    ]
    return tuple(sorted({word for text in texts for word in SLOT.sub("", text).split()}))


def draw_sentence(generator: np.random.Generator) -> str:
    """A sentence from a template, or a few random words."""
    if generator.random() < TEMPLATE_SHARE:
        return _fill(_pick(grammar()["templates"], generator), generator)
    count = generator.integers(RANDOM_WORDS[0], RANDOM_WORDS[1] + 1)
    return " ".join(_pick(vocabulary(), generator) for _ in range(count))


def draw_clip(voice: Voice, generator: np.random.Generator) -> Clip:
    """`voice` speaking a sentence of its own."""
    return speak(voice, draw_sentence(generator))


def _fill(text: str, generator: np.random.Generator) -> str:
    """Fill the slots, and the slots of what filled them."""
    while match := SLOT.search(text):
        text = text[: match.start()] + _entry(match.group(1), generator) + text[match.end() :]
    return text


def _entry(slot: str, generator: np.random.Generator) -> str:
    slots = grammar()["slots"]
    if slot == "digits":
        count = generator.integers(DIGITS[0], DIGITS[1] + 1)
        return " ".join(_pick(slots["digit"], generator) for _ in range(count))
    return _pick(slots[slot], generator)


def _pick(entries: Sequence[str], generator: np.random.Generator) -> str:
    return entries[int(generator.integers(len(entries)))]
