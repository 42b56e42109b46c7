"""Options, requests, results and sessions of the engine, and a request while it is decoded.

Options belong to a session and a prompt to a request, so requests of many sessions share a batch. A
request becomes a Sequence when it is queued. Nothing in this module knows a device.
"""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.engine.fallback import Fallback
from whosaid.runtime.turns import Work
from whosaid.transcript import DecodeStats

if TYPE_CHECKING:
    from torch import Tensor

    from whosaid.asr.engine.engine import Engine
    from whosaid.asr.frontend.target_speaker import TargetWindow

MAX_ROWS = 128  # of a batch
# A recording with more windows left is long: two minutes.
LONG_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How the requests of a session are decoded.

    At most `batch_size` requests occupy rows at once. `assisted` lets the assistant or heads draft;
    None leaves that to the planner (`asr.decoding_plan`), and the engine drafts nothing. `drafts`
    fixes the number of drafted tokens a step; None lets measured costs and acceptance decide.
    `num_beams` above 1 means beam search (`asr.engine.beam_search`) without drafts; the best text
    has the largest mean log-probability, or is chosen under `length_penalty` (0 to 1). A
    `temperature` above 0 means that texts are sampled, once, from one beam and without drafts.
    `live` windows precede everything else, because a speaker waits for them.
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
    most `max_tokens` tokens after the prompt; None means the model's limit. `encoded` (1, frames,
    d_model) is the main encoder's output, if language detection has made it. `once` means no second
    attempt, whatever the session's fallback. `windows_left` counts the windows of the recording
    that are not decoded yet, this window included.

    The text begins with the tokens of `prefix`, whatever the model would choose, and may end after
    them. They count for `max_tokens`, which may cut them. A prefix is only for greedy texts without
    a second attempt. `draft` is a guess, of any length, of the text after the prefix. The first
    pass verifies it, so it changes only speed; only a first greedy attempt uses it. `frames` of the
    window are encoded, None for all (`asr.model.encoder.Encoder.part_of_window`). The text is that
    of one speaker if there is a `target`, which needs conditioned models.
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
    target: TargetWindow | None = None


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A request's tokens after the prompt, without the end of text, and their probabilities.

    `log_probs` are natural logarithms, after the logit filters and at temperature 1, as
    openai/whisper counts them. They include the end of text if the model ended the text.
    `text_logprob` is their mean without timestamps, so attempts with and without timestamps
    compare. `start_logprob` is that mean over the first `asr.engine.fallback.START_TOKENS` tokens;
    0 for shorter texts and for texts that are not greedy.

    `attention` (tokens, frames of 20 ms) shows when in the window each token was spoken
    (`asr.model.decoder.normalize_attention`). It is None without tokens, and not compared.
    `timestamps` says whether the tokens may hold timestamps; a second attempt may differ from the
    options in this. `repetitive` texts repeat themselves. `cut` texts were cut at a loop
    (`asr.engine.fallback`).

    `no_speech_prob` is the probability of the no-speech token at the start of transcript.
    `language` is the likeliest language there and `language_probability` its probability among all,
    whatever the prompt says; both are None if the vocabulary has no languages. `annotation_prob` is
    the probability that the text begins with a note or a bracket, as captions of laughter and music
    do, which are never written; 0 if every attempt had timestamps.
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
        """Return whether the model, not a limit, ended the text."""
        return len(self.log_probs) > len(self.tokens)

    @property
    def avg_logprob(self) -> float:
        return sum(self.log_probs) / max(1, len(self.log_probs))


class Session:
    """Requests with the same options; open one session per recording. After an `error` the
    session's remaining requests are lost.
    """

    def __init__(self, engine: Engine, options: DecodeOptions) -> None:
        self.options = options
        self.stats = DecodeStats()
        self.finished: deque[tuple[Request, DecodeResult]] = deque()
        self.error: Exception | None = None
        self.served = 0  # number of the last row that it was given
        self._engine = engine
        self._outstanding = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def done(self) -> bool:
        return self._outstanding == 0

    @property
    def ready(self) -> bool:
        """Return whether `take` returns results or raises now."""
        return bool(self.finished) or self.error is not None

    @property
    def free_rows(self) -> int:
        """Return how many more requests fit into `batch_size` rows."""
        return max(0, self.options.batch_size - self._outstanding)

    def add(self, requests: abc.Sequence[Request]) -> None:
        """Queue any number of requests; at most `batch_size` occupy rows at once. Raises
        ValueError, and queues none, if a prefix does not suit the options.
        """
        if requests:
            self._engine.add(self, requests)
            self._outstanding += len(requests)

    def step(self) -> list[tuple[Request, DecodeResult]]:
        """Run one step of the engine unless results are ready, then `take`."""
        if self.done:
            return []
        if not self.ready:
            self._engine.step()
        return self.take()

    def take(self) -> list[tuple[Request, DecodeResult]]:
        """Return the requests that finished since the last call. Raises OutOfMemory if one window
        does not fit into the device's memory, and errors of the models.
        """
        if self.error is not None:
            raise self.error
        finished = list(self.finished)
        self.finished.clear()
        self._outstanding -= len(finished)
        return finished

    def close(self) -> None:
        """Drop all requests that were not returned."""
        if not self.done:
            self._engine.cancel(self)
        self.finished.clear()
        self._outstanding = 0


def work_class(live: bool, windows_left: int) -> Work:
    """Return the class of work on a recording; live recordings are never long."""
    if live:
        return Work.LIVE
    return Work.LONG if windows_left > LONG_WINDOWS else Work.SHORT


class Lane(NamedTuple):
    """Sequences that share a batch. If rows cost time, `long` recordings have lanes of their own
    too, so that their rows do not slow short ones.
    """

    num_beams: int
    live: bool = False
    long: bool = False


@dataclass(eq=False)
class Sequence:
    """A request in the engine, with the state of its current attempt.

    `rejected` is the first text, if the fallback rejected it. The current attempt starts from
    `prompt` and has been through `steps`; it is `drafted` for if the drafter has read its audio. A
    second attempt waits for others of its session until the greedy lane's step `gathers_until`.
    `encoded` is the main encoder's output (1, frames, d_model), kept if another attempt may follow.
    `long_lanes` says whether long recordings have lanes of their own. `isolated` sequences run
    without those of other sessions, after a failed step. `entry_cost` is the charge for entering a
    row.
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
        """Raises ValueError for a prefix with sampling, beams or a possible second attempt."""
        self.prompt = self.request.prompt
        self.encoded = self.request.encoded
        if self.request.prefix and (self.may_retry or not self.is_greedy):
            raise ValueError("a prefix is for texts that are decoded greedily, once")

    @property
    def retried(self) -> bool:
        return self.rejected is not None

    @property
    def options(self) -> DecodeOptions:
        return self.session.options

    @property
    def work(self) -> Work:
        return work_class(self.options.live, self.request.windows_left)

    @property
    def lane(self) -> Lane:
        long = self.long_lanes and self.work is Work.LONG
        return Lane(self.num_beams, self.options.live, long)

    @property
    def num_beams(self) -> int:
        beams, fallback = self.options.num_beams, self.options.fallback
        retry_beams = fallback.retry_beams if self.retried and fallback else None
        return max(beams, retry_beams or 0)

    @property
    def timestamps(self) -> bool:
        """Return whether the current attempt has timestamps."""
        fallback = self.options.fallback if self.retried else None
        return self.options.timestamps and (fallback is None or fallback.retry_timestamps)

    @property
    def draftable(self) -> bool:
        """Return whether drafts may be accepted; sampled texts and beams use none."""
        return self.drafted and self.is_greedy

    @property
    def is_greedy(self) -> bool:
        """Return whether each token is final when it is chosen."""
        return self.options.temperature == 0 and self.num_beams == 1

    @property
    def may_retry(self) -> bool:
        """Return whether a second attempt follows a rejected text; sampled texts have none."""
        options = self.options
        if self.retried or self.request.once or options.temperature or options.fallback is None:
            return False
        return options.fallback.differs(options.timestamps, options.num_beams)

    @property
    def draft(self) -> tuple[int, ...]:
        return self.request.draft if self.is_greedy and not self.retried else ()

    @property
    def guess(self) -> tuple[int, ...]:
        """Return the tokens that the first pass reads after the prompt."""
        return (*self.request.prefix, *self.draft)

    def looked_up(self, newest: abc.Sequence[int], most: int) -> tuple[int, ...]:
        """Return at most `most` tokens of the draft after the two `newest` in it: after a wrong
        token a draft may be right again (Saxena 2023, "Prompt Lookup Decoding").
        """
        draft = self.draft
        for place in range(2, len(draft)):
            if draft[place - 2 : place] == tuple(newest):
                return draft[place : place + most]
        return ()

    @property
    def prefilled_length(self) -> int:
        """Return the most tokens after prefill."""
        return len(self.prompt) + len(self.guess) + 1

    def read_start(self, start: list[float], languages: abc.Mapping[str, int]) -> None:
        """Keep a row of `prefill`'s output; `languages` maps codes to tokens. Attempts with
        timestamps have no annotation probability, so an earlier one is kept.
        """
        self.no_speech_prob, language, probability, annotation = start
        self.annotation_prob = max(self.annotation_prob, annotation)
        for code, token in languages.items():
            if token == language:
                self.language, self.language_probability = code, probability
