"""Fallback: when a decoded text is rejected, how its window is decoded again, and what is kept.

Whisper sometimes loops or makes words up. openai/whisper (`transcribe.py`, `decode_with_fallback`)
then samples at rising temperatures and keeps the last attempt. Measured on real speech that costs
several times the first pass and often makes the text worse. Here a rejected window that was decoded
with timestamps is decoded once more without: that seldom loops at the same place. The audio is not
encoded again, and by default nothing is sampled: where a text still loops, what stands before the
loop is better than what chance finds. The thresholds for rejection are OpenAI's.

The one decision: the best attempt is kept, not the last. One that does not repeat itself is better
than one that does; of two alike the one that the model finds likelier is.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a window is decoded: sampled at a `temperature` above 0, or the likeliest tokens.

    `without_timestamps`: even if the request is decoded with them.
    """

    temperature: float = 0.0
    without_timestamps: bool = False


NO_TIMESTAMPS = Attempt(without_timestamps=True)


class Decoded(Protocol):
    """What is compared of an attempt's result."""

    @property
    def repetitive(self) -> bool:
        """Whether the text repeats itself."""

    @property
    def avg_logprob(self) -> float:
        """The mean log-probability of its tokens."""

    @property
    def no_speech_prob(self) -> float:
        """The probability that the window holds no speech."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The attempts after the first, in order, and OpenAI's thresholds."""

    attempts: Sequence[Attempt] = (NO_TIMESTAMPS,)
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -1.0
    no_speech_threshold: float = 0.6

    def next_attempt(self, made: int, timestamps: bool) -> Attempt | None:
        """The attempt to make after `made` ones, None if that was the last.

        `timestamps` says whether the first had any: without, one that only lacks them is the same.
        """
        attempts = [each for each in self.attempts if timestamps or each != NO_TIMESTAMPS]
        return attempts[made - 1] if made <= len(attempts) else None

    def repeats_itself(self, text: str) -> bool:
        """Whether `text` compresses too well to be speech."""
        return compression_ratio(text) > self.compression_ratio_threshold

    def rejects(self, result: Decoded) -> bool:
        """Whether a window with this `result` should be decoded again.

        Not an unlikely text where the window probably holds no speech: another would only be wrong
        differently.
        """
        unlikely = result.avg_logprob < self.logprob_threshold
        if unlikely and not result.repetitive:
            return result.no_speech_prob <= self.no_speech_threshold
        return result.repetitive


DEFAULT_FALLBACK = Fallback()


def is_better(result: Decoded, than: Decoded) -> bool:
    """Whether a later attempt's result is kept in place of an earlier one's."""
    if result.repetitive != than.repetitive:
        return than.repetitive
    return result.avg_logprob > than.avg_logprob


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes the text's UTF-8; speech stays below 2.4, loops do not."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


def uniform(samples: NDArray[np.float32], attempt: int, count: int) -> Tensor:
    """`count` random numbers in [0, 1), float32, seeded by the window's samples and the attempt.

    So a window's text does not depend on its neighbours, and the same request has the same answer.
    """
    seed = zlib.crc32(np.ascontiguousarray(samples).tobytes(), attempt)
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))
