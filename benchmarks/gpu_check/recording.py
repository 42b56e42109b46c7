"""The conversation that is transcribed, and its words."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from config import REPOSITORY
from whosaid.timebase import SAMPLE_RATE

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
TRUTH = REPOSITORY / "demo" / "conversation.json"

Samples = NDArray[np.float32]


def lasting(samples: Samples, seconds: float) -> Samples:
    """Return samples, repeated or cut to last so many seconds."""
    return np.resize(samples, round(seconds * SAMPLE_RATE))


def spoken_words() -> list[str]:
    """Return the words of the conversation, in the order of their starts."""
    words = json.loads(TRUTH.read_text(encoding="utf-8"))["words"]
    return [word["text"] for word in sorted(words, key=lambda word: word["start"])]
