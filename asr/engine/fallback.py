"""Fallback: when a decoded text is rejected, how its window is decoded again, and what is kept.

Whisper sometimes loops or makes words up. openai/whisper (`transcribe.py`, `decode_with_fallback`)
then samples at rising temperatures and keeps the last attempt. Measured on real speech that costs
several times the first pass and often makes the text worse. Here a rejected window is decoded once
more by the likeliest tokens, with timestamps if it had none and without if it had some: what makes
Whisper loop under one of the two seldom does under the other. Only where both loop is it sampled,
once. The audio is not encoded again. The thresholds for rejection are OpenAI's.

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

    `other_timestamps`: with timestamps where the request is decoded without, and the reverse.
    `after_repetition`: only made where all attempts before it repeated themselves.
    """

    temperature: float = 0.0
    other_timestamps: bool = False
    after_repetition: bool = False


FIRST = Attempt()


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

    attempts: Sequence[Attempt] = (
        Attempt(other_timestamps=True),
        Attempt(temperature=0.4, after_repetition=True),
    )
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -1.0
    no_speech_threshold: float = 0.6

    def next_attempt(self, made: int, repetitive: bool) -> Attempt | None:
        """The attempt to make after `made` ones, None if that was the last.

        `repetitive` says whether the best of them repeats itself.
        """
        for attempt in self.attempts[made - 1 : made]:
            if repetitive or not attempt.after_repetition:
                return attempt
        return None

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
