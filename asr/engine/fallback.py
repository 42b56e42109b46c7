"""When a window's text is not to be believed, and how hot the next attempt is.

Greedy decoding sometimes loops or babbles. OpenAI's remedy is kept with its thresholds and order
(openai/whisper, `transcribe.py`, `decode_with_fallback`): text that compresses too well repeats
itself, text the model itself finds unlikely is guessed, and either is decoded again, sampled at the
next temperature; unless the window probably holds no speech, where another attempt would only
babble differently. One sample an attempt; the last attempt stands.

The one decision: what chance draws depends on the window's samples and the attempt alone. So a
window's text is the same whatever is decoded beside it, and the same request gives the same answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fallback:
    """Temperatures in the order they are tried, the first 0, and what sends a window on to the
    next.
    """

    temperatures: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    most_compression: float = 2.4
    least_log_probability: float = -1.0
    no_speech: float = 0.6

    def next_temperature(self, attempt: int) -> float | None:
        """The temperature after attempt number `attempt`, or None if that was the last."""
        return self.temperatures[attempt + 1] if attempt + 1 < len(self.temperatures) else None

    def rejects(self, text: str, mean_log_probability: float, no_speech: float) -> bool:
        """Whether `text` should be decoded anew."""
        unlikely = mean_log_probability < self.least_log_probability
        if unlikely and no_speech > self.no_speech:
            return False
        return unlikely or compression(text) > self.most_compression


OPENAI = Fallback()


def compression(text: str) -> float:
    """How many times smaller zlib makes the text's UTF-8; speech stays below 2.4, loops do not."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


def chances(samples: NDArray[np.float32], attempt: int, count: int) -> Tensor:
    """`count` numbers in [0, 1), float32, that depend on the window's samples and the attempt
    alone.
    """
    seed = zlib.crc32(np.ascontiguousarray(samples).tobytes(), attempt)
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))
