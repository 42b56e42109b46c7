"""Fallback: when a decoded text is rejected, how its window is decoded again, and what is kept.

Whisper sometimes loops or makes words up. openai/whisper (`transcribe.py`, `decode_with_fallback`)
then samples at rising temperatures and keeps the last attempt. Measured on real speech that costs
several times the first pass and often makes the text worse. Here a rejected window is decoded once
more by beam search without timestamps, which finds most of what beams find everywhere, where they
matter. The audio is not encoded again, and by default nothing is sampled: where a text still loops,
what stands before the loop is better than what chance finds.

Each window has at most as many attempts as there are here, and the second pass over a window, which
needs no encoder, costs at most about what the first did (docs/decoding.md has the figures).

The one decision: the last attempt is kept, as openai/whisper does. A text that the model was unsure
of is often likelier than the better one that beams find, above all where it half repeats itself.
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

    `without_timestamps`: even if the request is decoded with them. `num_beams` of beam search, None
    for as many as the request has; a sampled attempt has none.
    """

    temperature: float = 0.0
    without_timestamps: bool = False
    num_beams: int | None = None


# Text tokens after which a start is judged: about ten seconds of speech.
START_TOKENS = 32

BEAMS = Attempt(without_timestamps=True, num_beams=5)


class Decoded(Protocol):
    """What is compared of an attempt's result."""

    @property
    def repetitive(self) -> bool:
        """Whether the text repeats itself."""

    @property
    def text_logprob(self) -> float:
        """The mean log-probability of its text."""

    @property
    def start_logprob(self) -> float:
        """The same of its first `START_TOKENS`; 0 where there are fewer, or they do not count."""

    @property
    def avg_logprob(self) -> float:
        """The mean log-probability of its tokens, timestamps included."""

    @property
    def no_speech_prob(self) -> float:
        """The probability that the window holds no speech."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The attempts after the first, in order, and when a text is rejected, by OpenAI's measures.

    A window is silent that probably holds no speech and whose tokens are less likely than
    `silence_logprob_threshold`. OpenAI has one threshold of -1 for both, which counts timestamps.
    Of 27 windows of real recordings 9 lie below `logprob_threshold`, and the others gain little
    from beams. A text that starts worse than that by `start_margin` has never recovered there, so
    it need not be finished: of the 27, four start 0.2 or more below, and the next worst 0.01.
    """

    attempts: Sequence[Attempt] = (BEAMS,)
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -0.35
    start_margin: float = 0.15
    no_speech_threshold: float = 0.6
    silence_logprob_threshold: float = -1.0

    def next_attempt(self, made: int, timestamps: bool, num_beams: int) -> Attempt | None:
        """The attempt to make after `made` ones, None if that was the last.

        `timestamps` and `num_beams` are those of the first: an attempt that would only be the same
        once more is left out.
        """
        attempts = []
        for each in self.attempts:
            untimed = timestamps and each.without_timestamps
            if untimed or each.temperature or (each.num_beams or 1) > num_beams:
                attempts.append(each)
        return attempts[made - 1] if made <= len(attempts) else None

    def repeats_itself(self, text: str) -> bool:
        """Whether `text` compresses too well to be speech."""
        return compression_ratio(text) > self.compression_ratio_threshold

    def is_silent(self, result: Decoded) -> bool:
        """Whether a window holds no speech, as far as openai/whisper can tell."""
        return (
            result.no_speech_prob > self.no_speech_threshold
            and result.avg_logprob < self.silence_logprob_threshold
        )

    def rejects(self, result: Decoded) -> bool:
        """Whether a window with this `result` should be decoded again.

        Not an unlikely text where the window is silent: another would only be wrong differently.
        """
        unlikely = result.text_logprob < self.logprob_threshold
        if result.repetitive or (unlikely and not self.is_silent(result)):
            return True
        return self.rejects_start(result.start_logprob, result.no_speech_prob)

    def rejects_start(self, start_logprob: float, no_speech_prob: float) -> bool:
        """Whether a text that starts so should be decoded again, whatever follows.

        A window that may be silent is decoded to its end, which tells.
        """
        below = start_logprob < self.logprob_threshold - self.start_margin
        return below and no_speech_prob <= self.no_speech_threshold


DEFAULT_FALLBACK = Fallback()


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
