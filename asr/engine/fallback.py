"""Fallback: when a decoded text is rejected, how its window is decoded again, and what is kept.

Whisper sometimes loops or makes words up. openai/whisper (`transcribe.py`, `decode_with_fallback`)
then samples at rising temperatures and keeps the last attempt. Measured on real speech that costs
several times the first pass and often makes the text worse. Here a rejected window is decoded once
more by beam search without timestamps, which finds most of what beams find everywhere, where they
matter. The audio is not encoded again, and nothing is sampled: where a text still loops, what
stands before the loop is better than what chance finds. The second pass over a window, which needs
no encoder, costs at most about what the first did (docs/decoding.md has the figures).

The second text is kept, as openai/whisper keeps its last. A text that the model was unsure of is
often likelier than the better one that beams find, above all where it half repeats itself. The
first is kept where it is complete, does not loop and has twice as many tokens
(`asr.engine.results`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Retry:
    """How a rejected window is decoded once more: by at least `num_beams` beams."""

    num_beams: int = 5
    timestamps: bool = False


# Text tokens after which a start is judged: about ten seconds of speech.
START_TOKENS = 32


class Scored(Protocol):
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
    """When a text is rejected, by OpenAI's measures, and the `retry` that follows, if any.

    A window is silent that probably holds no speech and whose tokens are less likely than
    `silence_logprob_threshold`. OpenAI has one threshold of -1 for both, which counts timestamps.
    Of 27 windows of real recordings 9 lie below `logprob_threshold`, and the others gain little
    from beams. A text that starts worse than that by `start_margin` has never recovered there, so
    it need not be finished: of the 27, four start 0.2 or more below, and the next worst 0.01.
    """

    retry: Retry | None = Retry()
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -0.35
    start_margin: float = 0.15
    no_speech_threshold: float = 0.6
    silence_logprob_threshold: float = -1.0

    def differs(self, timestamps: bool, num_beams: int) -> bool:
        """Whether a retry is anything else than a first attempt with these options once more."""
        if self.retry is None:
            return False
        return (timestamps and not self.retry.timestamps) or self.retry.num_beams > num_beams

    def repeats_itself(self, text: str) -> bool:
        """Whether `text` compresses too well to be speech."""
        return letter_compression_ratio(text) > self.compression_ratio_threshold

    def is_silent(self, result: Scored) -> bool:
        """Whether a window holds no speech, as far as openai/whisper can tell."""
        return (
            result.no_speech_prob > self.no_speech_threshold
            and result.avg_logprob < self.silence_logprob_threshold
        )

    def rejects(self, result: Scored) -> bool:
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


def with_thresholds(
    compression_ratio: float | None, logprob: float | None, no_speech: float | None
) -> Fallback | None:
    """The default with these thresholds of openai/whisper's, None where none is given.

    There `logprob` is the threshold of silence, too.
    """
    given = {
        "compression_ratio_threshold": compression_ratio,
        "logprob_threshold": logprob,
        "silence_logprob_threshold": logprob,
        "no_speech_threshold": no_speech,
    }
    named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(DEFAULT_FALLBACK, **named) if named else None


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes the text's UTF-8, as openai/whisper reports it."""
    return _compression_ratio(text.encode())


def letter_compression_ratio(text: str) -> float:
    """The same of one byte a letter; speech stays below 2.4, loops do not.

    For Latin script it is OpenAI's. UTF-8 of other scripts has the same byte before each letter:
    two plain sentences of Georgian (tests/test_fallback.py) are made 2.5 times smaller, at a byte a
    letter 1.4 times.
    """
    return _compression_ratio(bytes(ord(letter) & 255 for letter in text))


def _compression_ratio(raw: bytes) -> float:
    return len(raw) / len(zlib.compress(raw))
