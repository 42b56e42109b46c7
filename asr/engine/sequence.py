"""A request inside the engine: where it stands, and which attempt at its window is made.

Its `status` has one owner, the scheduler. What the device tells of the window is kept beside it.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from asr.engine.request import DecodeOptions, DecodeResult, Request
from asr.engine.session import Client

if TYPE_CHECKING:
    from torch import Tensor

# A recording with more windows left is long: two minutes.
LONG_WINDOWS = 4


class Lane(NamedTuple):
    """Which rows a sequence shares: those of as many beams, and of who is `live` or of who is not.

    Rows of a step are alike, and what is live is never held up by the rows of others. Where rows
    cost time, what is short is not held up by those of `long` recordings either.
    """

    num_beams: int
    live: bool = False
    long: bool = False


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # for a row
    RETRYING = "retrying"  # its text was rejected: it waits for a row of beams
    PREPARING = "preparing"  # on its way into a row: encoded, and its prompt read
    RUNNING = "running"  # in a row
    DONE = "done"  # finished, cancelled or failed


# From each status to those that may follow.
FOLLOWING = {
    Status.WAITING: {Status.PREPARING, Status.DONE},
    Status.RETRYING: {Status.PREPARING, Status.DONE},
    Status.PREPARING: {Status.RUNNING, Status.WAITING, Status.RETRYING, Status.DONE},
    Status.RUNNING: {Status.WAITING, Status.RETRYING, Status.DONE},
    Status.DONE: set[Status](),
}


@dataclass(eq=False)
class Sequence:
    """One window of a client. `rejected` is its first text, if the fallback rejected it.

    The current attempt starts from `prompt`, has been through `steps`, and is drafted for if the
    assistant has read its audio. A retried one waits for others of its client until the step
    `gathers_until`. `encoded` is the main encoder's output (1, frames, d_model), kept where another
    attempt may follow. `apart` is whether long recordings have lanes of their own.
    """

    client: Client
    request: Request
    apart: bool = False
    status: Status = Status.WAITING
    rejected: DecodeResult | None = None
    gathers_until: int = 0
    prompt: tuple[int, ...] = field(init=False)
    steps: int = 0
    drafted: bool = False
    no_speech_prob: float = 0.0
    language: str | None = None
    language_probability: float | None = None
    annotation_prob: float = 0.0
    encoded: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a prefix that another attempt would not begin with."""
        self.prompt = self.request.prompt
        self.encoded = self.request.encoded
        if self.request.prefix and (self.may_retry or not self.judged_by_start):
            raise ValueError("a prefix is for texts that are decoded greedily, once")

    @property
    def retried(self) -> bool:
        """Whether this is the second attempt."""
        return self.rejected is not None

    @property
    def options(self) -> DecodeOptions:
        """Those of its client."""
        return self.client.options

    @property
    def lane(self) -> Lane:
        """Where the current attempt is queued and runs."""
        return Lane(self.num_beams, self.options.live, self.apart and self.long)

    @property
    def num_beams(self) -> int:
        """The beams of the current attempt."""
        beams, fallback = self.options.num_beams, self.options.fallback
        retry_beams = fallback.retry_beams if self.retried and fallback else None
        return max(beams, retry_beams or 0)

    @property
    def timestamps(self) -> bool:
        """Whether the current attempt follows the timestamp grammar."""
        fallback = self.options.fallback
        return self.options.timestamps and not (
            self.retried and fallback and not fallback.retry_timestamps
        )

    @property
    def draftable(self) -> bool:
        """Neither sampled texts nor beams are drafted: a draft predicts the likeliest token."""
        return self.drafted and self.judged_by_start

    @property
    def judged_by_start(self) -> bool:
        """Whether how the text starts may reject it: greedy ones, whose tokens are final."""
        return self.options.temperature == 0 and self.num_beams == 1

    @property
    def may_retry(self) -> bool:
        """Whether another attempt follows if this one's text is rejected; none follows a sampled
        one.
        """
        options = self.options
        if self.retried or self.request.once or options.temperature or options.fallback is None:
            return False
        return options.fallback.differs(options.timestamps, options.num_beams)

    @property
    def long(self) -> bool:
        """Whether much of its recording is left; live ones, which go in their order, are never."""
        return not self.options.live and self.request.windows_left > LONG_WINDOWS

    @property
    def guess(self) -> tuple[int, ...]:
        """What the first pass reads behind the prompt: the prefix, and a greedy text's draft.

        A draft is of the first attempt, whose text has timestamps or has none.
        """
        drafted = self.judged_by_start and not self.retried
        return (*self.request.prefix, *(self.request.draft if drafted else ()))

    def looked_up(self, newest: abc.Sequence[int], most: int) -> tuple[int, ...]:
        """At most so many tokens that its draft goes on with where it has the `newest` two: behind
        a wrong token a draft may be right again (Saxena 2023, "Prompt Lookup Decoding").
        """
        draft = self.request.draft if self.judged_by_start and not self.retried else ()
        for place in range(2, len(draft)):
            if draft[place - 2 : place] == tuple(newest):
                return draft[place : place + most]
        return ()

    @property
    def prefilled_length(self) -> int:
        """Most tokens after prefill: the prompt, what was guessed and was right, and the next."""
        return len(self.prompt) + len(self.guess) + 1

    def read_start(self, said: list[float], languages: abc.Mapping[str, int]) -> None:
        """Keep what `prefill` has read: its row of four numbers; `languages` are ids by code.

        Only attempts without timestamps tell of annotations, so an earlier one's is kept.
        """
        self.no_speech_prob, language, probability, annotation = said
        self.annotation_prob = max(self.annotation_prob, annotation)
        for code, token in languages.items():
            if token == language:
                self.language, self.language_probability = code, probability
