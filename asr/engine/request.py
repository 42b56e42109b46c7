"""What a session asks of the engine, what the engine answers, and a request on its way.

Options belong to a session and a prompt to a request, so that requests of many sessions are decoded
beside each other. A request becomes a Sequence when it is queued. Nothing here knows a device.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asr.engine.fallback import Fallback
from runtime.turns import Work

if TYPE_CHECKING:
    from torch import Tensor

    from asr.engine.engine import Session

# A recording with more windows left is long: two minutes.
LONG_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How the requests of a session are decoded.

    At most `batch_size` of them occupy rows at once. `assisted` says whether the assistant or heads
    may draft; None leaves it to the planner (`asr.decoding_plan`), and the engine drafts nothing.
    `drafts` fixes the number of drafted tokens a step; None lets measured costs and acceptance
    decide. With `num_beams` above 1 texts are found by beam search (`asr.engine.beam_search`) and
    nothing is drafted; the best has the largest mean log-probability, or is chosen under
    `length_penalty` (0 to 1). At a `temperature` above 0 texts are sampled, once, from one beam and
    without drafts. `live` windows go before everything else: somebody waits for them.
    """

    timestamps: bool = True
    assisted: bool | None = None
    batch_size: int = 24
    fallback: Fallback | None = None
    drafts: int | None = None
    num_beams: int = 1
    length_penalty: float | None = None
    temperature: float = 0.0
    live: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """One window to decode.

    `samples` (n,) are mono at 16 kHz, at most as many as the encoder reads at once. The text has at
    most `max_tokens` tokens after the prompt, by default as many as the model allows. `encoded`
    (1, frames, d_model) is the main encoder's output if language detection has made it already.
    A request that is decoded `once` has no second attempt, whatever its session's fallback.
    `windows_left` counts the windows of the recording that are not decoded yet, with this one.

    The text begins with the tokens of `prefix`, whatever the model would choose, and may end behind
    them; they count for `max_tokens`, which may cut them. A prefix is for greedy texts that are
    decoded once. `draft` is a guess, of any length, of the text after the prefix. The first pass
    verifies it, so it changes speed alone; only a first greedy attempt uses it. `frames` of the
    window are encoded, None for all (`asr.model.encoder.Encoder.part_of_window`).
    """

    key: Any
    samples: NDArray[np.float32]
    prompt: tuple[int, ...]
    max_tokens: int | None = None
    encoded: Tensor | None = None
    once: bool = False
    windows_left: int = 0
    prefix: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    frames: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A request's tokens after the prompt, without the end of text, and how likely they were.

    `no_speech_prob` is the probability of the no-speech token where the transcript starts.
    `log_probs` are natural logarithms for the tokens and, where the model ended by itself, for the
    end of text, after the logit filters and at temperature 1, as openai/whisper counts them.
    `attention` (tokens, frames of 20 ms) shows for each of the tokens where in the window it was
    spoken (`asr.model.alignment_heads.normalize_attention`); None without tokens, and not compared.
    `timestamps` says whether the tokens may hold timestamps, in which an attempt after the first
    may differ from the options.
    `repetitive` texts repeat themselves; of `cut` ones only a loop's first part was kept
    (`asr.engine.fallback`). `language` is the likeliest one where the transcript starts and
    `language_probability` its probability among all, whatever the prompt says; None where nothing
    was read of them.
    `annotation_prob` is the probability that the text begins with a note or a bracket, as captions
    of laughter and music do, which are never written; 0 if every attempt had timestamps.
    `text_logprob` is the mean over `log_probs` without those of timestamps, by which attempts with
    and without timestamps compare, and `start_logprob` that of the first of them, which a greedy
    text has from `asr.engine.fallback.START_TOKENS` on.
    """

    tokens: tuple[int, ...]
    no_speech_prob: float
    log_probs: tuple[float, ...]
    temperature: float
    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    timestamps: bool = True
    repetitive: bool = False
    cut: bool = False
    language: str | None = None
    language_probability: float | None = None
    annotation_prob: float = 0.0
    text_logprob: float = 0.0
    start_logprob: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether the model ended the text, not a limit."""
        return len(self.log_probs) > len(self.tokens)

    @property
    def avg_logprob(self) -> float:
        """The mean over the log-probabilities; 0 if there are none."""
        return sum(self.log_probs) / max(1, len(self.log_probs))


def work_class(live: bool, windows_left: int) -> Work:
    """Return the class of work on a recording; live recordings are never long."""
    if live:
        return Work.LIVE
    return Work.LONG if windows_left > LONG_WINDOWS else Work.SHORT


class Lane(NamedTuple):
    """Which sequences share a batch: those with as many beams, live ones apart from all others.

    If rows cost time, sequences of long recordings have a lane of their own too, so that their rows
    do not slow those of short ones.
    """

    num_beams: int
    live: bool = False
    long: bool = False


@dataclass(eq=False)
class Sequence:
    """A request in the engine: which attempt is made, and what the device has read of it.

    `rejected` is the first text, if the fallback rejected it. The current attempt starts from
    `prompt`, has been through `steps`, and is drafted for if the assistant has read its audio. A
    second attempt waits for others of its session until the greedy lane's step `gathers_until`.
    `encoded` is the main encoder's output (1, frames, d_model), kept if another attempt may follow.
    `long_lanes` is whether long recordings have lanes of their own. `isolated` sequences run
    without those of other sessions, after a step that failed. `entry_cost` is what entering a row
    was charged.
    """

    session: Session
    request: Request
    long_lanes: bool = False
    rejected: DecodeResult | None = None
    gathers_until: int = 0
    isolated: bool = False
    entry_cost: float = 0.0
    prompt: tuple[int, ...] = field(init=False)
    steps: int = 0
    drafted: bool = False
    no_speech_prob: float = 0.0
    language: str | None = None
    language_probability: float | None = None
    annotation_prob: float = 0.0
    encoded: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a prefix that a second attempt would not begin with."""
        self.prompt = self.request.prompt
        self.encoded = self.request.encoded
        if self.request.prefix and (self.may_retry or not self.is_greedy):
            raise ValueError("a prefix is for texts that are decoded greedily, once")

    @property
    def retried(self) -> bool:
        """Whether this is the second attempt."""
        return self.rejected is not None

    @property
    def options(self) -> DecodeOptions:
        """The options of the session."""
        return self.session.options

    @property
    def work(self) -> Work:
        """The class of its work, by what is left of its recording."""
        return work_class(self.options.live, self.request.windows_left)

    @property
    def lane(self) -> Lane:
        """Where the current attempt is queued and runs."""
        long = self.long_lanes and self.work is Work.LONG
        return Lane(self.num_beams, self.options.live, long)

    @property
    def num_beams(self) -> int:
        """The beams of the current attempt."""
        beams, fallback = self.options.num_beams, self.options.fallback
        retry_beams = fallback.retry_beams if self.retried and fallback else None
        return max(beams, retry_beams or 0)

    @property
    def timestamps(self) -> bool:
        """Whether the current attempt follows the timestamp grammar."""
        fallback, timestamps = self.options.fallback, self.options.timestamps
        if self.retried and fallback is not None:
            return timestamps and fallback.retry_timestamps
        return timestamps

    @property
    def draftable(self) -> bool:
        """Whether drafts may be accepted: a draft predicts the likeliest token, so neither sampled
        texts nor beams use one.
        """
        return self.drafted and self.is_greedy

    @property
    def is_greedy(self) -> bool:
        """Whether each token is final when it is chosen."""
        return self.options.temperature == 0 and self.num_beams == 1

    @property
    def may_retry(self) -> bool:
        """Whether a second attempt follows if this text is rejected; none follows a sampled one."""
        options = self.options
        if self.retried or self.request.once or options.temperature or options.fallback is None:
            return False
        return options.fallback.differs(options.timestamps, options.num_beams)

    @property
    def draft(self) -> tuple[int, ...]:
        """The request's draft, for a first greedy attempt."""
        return self.request.draft if self.is_greedy and not self.retried else ()

    @property
    def guess(self) -> tuple[int, ...]:
        """What the first pass reads behind the prompt: the prefix and the draft."""
        return (*self.request.prefix, *self.draft)

    def looked_up(self, newest: abc.Sequence[int], most: int) -> tuple[int, ...]:
        """At most so many tokens with which the draft continues the `newest` two: behind a wrong
        token a draft may be right again (Saxena 2023, "Prompt Lookup Decoding").
        """
        draft = self.draft
        for place in range(2, len(draft)):
            if draft[place - 2 : place] == tuple(newest):
                return draft[place : place + most]
        return ()

    @property
    def prefilled_length(self) -> int:
        """The most tokens after prefill: the prompt, what was guessed and was right, and one."""
        return len(self.prompt) + len(self.guess) + 1

    def read_start(self, start: list[float], languages: abc.Mapping[str, int]) -> None:
        """Keep a row of prefill's output: probability of no speech, token of the likeliest
        language, its probability, probability of an annotation. `languages` are tokens by code.

        Attempts with timestamps tell nothing of annotations, so an earlier probability is kept.
        """
        self.no_speech_prob, language, probability, annotation = start
        self.annotation_prob = max(self.annotation_prob, annotation)
        for code, token in languages.items():
            if token == language:
                self.language, self.language_probability = code, probability
