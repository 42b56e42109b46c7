"""Fallback: rejects texts, decodes their windows again, and finds loops.

Whisper sometimes loops or makes words up. openai/whisper (`transcribe.py`, `decode_with_fallback`)
then samples at rising temperatures, which costs several times the first pass and often makes the
text worse. Here a rejected window is decoded once more by beam search without timestamps: beams
find most there of what they would find on all windows (docs/decoding.md has the figures).

The second text is kept, as openai/whisper keeps its last. Likelihood does not choose, because an
unsure first text is often likelier than the better text of the beams. A first text that is
complete, does not loop and has twice as many tokens is kept (`asr.engine.result_reader`).

A loop has to be distinguished from words that a speaker repeats:

    I am going to play it again, until the or, or, or, or, or, or, or, or, or, or
                                          ^ kept ^ the first of equal parts
    not now, not now, not now, not now, not now, not now, not now, not now, not now
    ^ attention goes on through the audio with every part            ^ and stands still

openai/whisper notices a loop once a row has run to its limit, because the text compresses too well.
Here tokens are compared, so that a row can be stopped while it runs, and then attention decides. In
speech, attention moves through the audio with the text; in a loop it stands still, jumps, or goes
through the same audio with every part. A repetition is checked in stretches, each by the attention
up to its own end. So the kept text depends on the row alone and not on when the row was checked.

The constants of loops were chosen on words and sentences of one recording, spliced 20 to 100 times,
and confirmed on others. In a stretch of real repetition attention went forward with 84% of the
tokens or more and back with 16% or fewer. In loops over noise, reversed speech, speech under noise,
and a stutter in a resonant room, it went forward with 72% at most and back with 21% at least. The
tokens of a spoken phrase lay 0.9 s or more behind those of the phrase before, in 41 spliced ones;
those of a phrase that Whisper wrote twice at most 0.04 s.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.engine.result import DecodeResult

# Text tokens in a text's start, which can reject the text: about ten seconds of speech.
START_TOKENS = 32

LONGEST_PERIOD = 40  # tokens; a sentence or two
# A loop has at least this many equal parts, and this many tokens unless a part has PHRASE different
# ones: "no, no, no, no, no!" is none.
LEAST_REPEATS, LEAST_TOKENS, PHRASE = 2, 20, 7
# In a repetition's first stretch: the share of tokens that go forward in the audio, less the share
# that go back. Real repetitions have 0.68 or more, loops 0.51 or less.
LEAST_PROGRESS = 0.6
ADVANCE = 5  # frames, 0.1 s: no part of a text is spoken faster

# Returns the normalized attention of the first n text tokens, (n, frames of 20 ms).
Attend = Callable[[int], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Fallback:
    """OpenAI's measures that reject a text, and the options of the second attempt.

    The second attempt has at least `retry_beams` beams; None means no second attempt. It has
    timestamps only if `retry_timestamps`.

    A window is silent if its no-speech probability exceeds `no_speech_threshold` and its mean
    log-probability is below `silence_logprob_threshold`. OpenAI uses one threshold of -1, which
    counts timestamps, for silence and for rejection. Of 27 windows of real recordings, 9 lie below
    `logprob_threshold`, and the others gain little from beams. A text whose start is lower than
    that by `start_margin` never recovered there, so it need not be finished: of the 27, four start
    0.2 or more below, and the next worst 0.01.
    """

    retry_beams: int | None = 5
    retry_timestamps: bool = False
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -0.35
    start_margin: float = 0.15
    no_speech_threshold: float = 0.6
    silence_logprob_threshold: float = -1.0

    def differs(self, timestamps: bool, num_beams: int) -> bool:
        if self.retry_beams is None:
            return False
        return (timestamps and not self.retry_timestamps) or self.retry_beams > num_beams

    def repeats_itself(self, text: str) -> bool:
        return letter_compression_ratio(text) > self.compression_ratio_threshold

    def is_silent(self, result: DecodeResult) -> bool:
        """Return whether a window holds no speech, as in openai/whisper."""
        return (
            result.no_speech_prob > self.no_speech_threshold
            and result.avg_logprob < self.silence_logprob_threshold
        )

    def rejects(self, result: DecodeResult) -> bool:
        """Return whether a window with this `result` should be decoded again. An unlikely text of a
        silent window is not rejected, because another would be as wrong.
        """
        unlikely = result.text_logprob < self.logprob_threshold
        if result.repetitive or (unlikely and not self.is_silent(result)):
            return True
        return self.rejects_start(result.start_logprob, result.no_speech_prob)

    def rejects_start(self, start_logprob: float, no_speech_prob: float) -> bool:
        """Return whether to decode a text with this start again; a silent window's may stay."""
        below = start_logprob < self.logprob_threshold - self.start_margin
        return below and no_speech_prob <= self.no_speech_threshold


DEFAULT_FALLBACK = Fallback()


def with_thresholds(
    compression_ratio: float | None, logprob: float | None, no_speech: float | None
) -> Fallback | None:
    """Return the default with these thresholds of openai/whisper; None if none is given. `logprob`
    is the threshold of silence too, as in openai/whisper.
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
    """Return the zlib compression ratio of the text's UTF-8, as openai/whisper reports it."""
    return _compression_ratio(text.encode())


def letter_compression_ratio(text: str) -> float:
    """Return the zlib compression ratio of the text at one byte a letter, in which speech stays
    below 2.4 and loops do not. UTF-8 of other scripts than Latin has the same byte before each
    letter: two plain sentences of Georgian (tests/test_fallback.py) have 2.5 in it, not 1.4.
    """
    return _compression_ratio(bytes(ord(letter) & 255 for letter in text))


def _compression_ratio(raw: bytes) -> float:
    return len(raw) / len(zlib.compress(raw))


class Repetition(NamedTuple):
    """Equal parts of `period` tokens: `start` to `stop` of a text, the last part maybe cut."""

    start: int
    stop: int
    period: int


class Loop(NamedTuple):
    """A text's first loop. The first `kept` tokens stay: up to the first of the equal parts, or if
    the speaker says the parts (`spoken`), up to the last spoken part.
    """

    kept: int
    spoken: bool


def parts_of_stretch(part: Sequence[int]) -> int:
    """Return how many equal `part`s are checked together: the fewest of a loop."""
    is_phrase = len(set(part)) >= PHRASE
    return LEAST_REPEATS if is_phrase else max(LEAST_REPEATS, -(-LEAST_TOKENS // len(part)))


def ends_in_repetition(tokens: Sequence[int]) -> bool:
    """Return whether text `tokens` end in a repetition, which may be a loop."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - 1) + 1):
        if tokens[-1] == tokens[-1 - period]:
            length = period * parts_of_stretch(tokens[-period:])
            newest = tokens[-length:]
            if len(newest) == length and newest[period:] == newest[:-period]:
                return True
    return False


def find_repetition(tokens: Sequence[int], begin: int = 0) -> Repetition | None:
    """Return the first repetition in text `tokens` from `begin` on, by its shortest period."""
    equal = [0] * (LONGEST_PERIOD + 1)  # newest tokens equal to those one period back
    for place in range(begin, len(tokens)):
        token = tokens[place]
        for period in range(1, min(place - begin, LONGEST_PERIOD) + 1):
            if tokens[place - period] != token:
                equal[period] = 0
                continue
            equal[period] += 1
            length = equal[period] + period
            part = tokens[place + 1 - period : place + 1]
            if equal[period] >= period and length >= period * parts_of_stretch(part):
                stop = place + 1
                while stop < len(tokens) and tokens[stop] == tokens[stop - period]:
                    stop += 1
                return Repetition(place + 1 - length, stop, period)
    return None


def read_repetitions(tokens: Sequence[int], attend: Attend) -> tuple[Loop | None, list[int]]:
    """Return the first loop in `tokens`, by attention, and the text with each repetition once."""
    once: list[int] = []
    begin = 0
    while found := find_repetition(tokens, begin):
        once += tokens[begin : found.start + found.period]
        count = parts_of_stretch(tokens[found.start : found.start + found.period])
        spoken = _parts_spoken(found, count, attend)
        if spoken is not None:
            return Loop(found.start + max(1, spoken) * found.period, spoken > 0), once
        begin = found.stop
    return None, [*once, *tokens[begin:]]


def _parts_spoken(repetition: Repetition, count: int, attend: Attend) -> int | None:
    """Return how many parts are spoken before the loop; None if all are. In the first stretch of
    `count` parts attention must move forward with the tokens. In each stretch more than half of the
    parts must go on: half of their tokens lie later in the audio than the same token of all parts
    before.
    """
    start, stop, period = repetition
    spoken = 0
    for first in range(0, (stop - start) // period - count + 1, count):
        end = first + count
        attention = attend(start + end * period)[start:]
        if first == 0 and _progress(attention.argmax(axis=1)) < LEAST_PROGRESS:
            return 0
        places = attention.argmax(axis=1).reshape(end, period)
        moved = np.median(places[1:] - np.maximum.accumulate(places)[:-1], axis=1)
        advances = [True, *(moved >= ADVANCE)][first:]
        if any(advances):
            spoken = first + max(part + 1 for part, goes_on in enumerate(advances) if goes_on)
        if 2 * sum(advances) <= count:
            return spoken if first else 0
    return None


def _progress(places: NDArray[np.intp]) -> float:
    """Return the share of steps between `places` that go forward, less the share that go back."""
    steps = np.sign(np.diff(places))
    return float(steps.mean()) if len(steps) else 0.0
