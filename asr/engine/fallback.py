"""Temperature fallback: when a decoded text is rejected, and at which temperature it is retried.

Greedy decoding sometimes loops or makes words up. The remedy, its thresholds and its order are
those of openai/whisper (`transcribe.py`, `decode_with_fallback`): text that compresses too well
repeats itself, text the model itself finds unlikely is guessed, and either is decoded again,
sampled at the next temperature; unless the window probably holds no speech, where another attempt
would only be wrong differently. One sample per attempt; the last attempt is kept.

The one decision: random numbers depend on the window's samples and the attempt alone. So a
window's text does not depend on its neighbours in the batch, and the same request gives the same
answer.
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
    """The temperatures in the order they are tried, the first 0, and OpenAI's thresholds."""

    temperatures: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -1.0
    no_speech_threshold: float = 0.6

    def next_temperature(self, attempt: int) -> float | None:
        """The temperature after attempt number `attempt`, or None if that was the last."""
        return self.temperatures[attempt + 1] if attempt + 1 < len(self.temperatures) else None

    def rejects(self, text: str, avg_logprob: float, no_speech_prob: float) -> bool:
        """Whether `text` should be decoded again."""
        unlikely = avg_logprob < self.logprob_threshold
        if unlikely and no_speech_prob > self.no_speech_threshold:
            return False
        return unlikely or compression_ratio(text) > self.compression_ratio_threshold


OPENAI = Fallback()


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes the text's UTF-8; speech stays below 2.4, loops do not."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


def uniform(samples: NDArray[np.float32], attempt: int, count: int) -> Tensor:
    """`count` random numbers in [0, 1), float32, seeded by the window's samples and the attempt."""
    seed = zlib.crc32(np.ascontiguousarray(samples).tobytes(), attempt)
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))
