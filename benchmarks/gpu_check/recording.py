"""The conversation that is transcribed, and how many of its words are wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from config import REPOSITORY
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
TRUTH = REPOSITORY / "demo" / "conversation.json"
LIMITS = AudioLimits(600.0, 1 << 28)

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """Mono samples (n,) at 16 kHz."""

    samples: Samples

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    def lasting(self, seconds: float) -> Recording:
        """Return the recording, repeated or cut to last so many seconds."""
        return Recording(np.resize(self.samples, round(seconds * SAMPLE_RATE)))


def read_conversation(path: Path = CONVERSATION) -> Recording:
    return Recording(decode_audio(path.read_bytes(), SAMPLE_RATE, LIMITS).samples)


def spoken_words() -> list[str]:
    """Return the words of the conversation, in the order of their starts."""
    words = json.loads(TRUTH.read_text(encoding="utf-8"))["words"]
    return [word["text"] for word in sorted(words, key=lambda word: word["start"])]
