"""A request while the engine decodes it, and the lane that it waits and runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.session import Session
from whosaid.scheduling.fair_shares import WorkClass

if TYPE_CHECKING:
    from torch import Tensor

# A recording with more windows left is long: two minutes.
LONG_WINDOWS = 4
LIVE_ALONE = frozenset({WorkClass.LIVE})


def work_class(live: bool, windows_left: int) -> WorkClass:
    """Return the class of work on a recording; live recordings are never long."""
    if live:
        return WorkClass.LIVE
    return WorkClass.LONG if windows_left > LONG_WINDOWS else WorkClass.SHORT


class Lane(NamedTuple):
    """Sequences that share a batch. On a CPU, where rows cost time, `live` windows and `long`
    recordings have lanes of their own, so that rows of others do not slow them and short ones.
    """

    num_beams: int
    live: bool = False
    long: bool = False


@dataclass(eq=False)
class DecodeSequence:
    """A request in the engine, with the state of its current attempt.

    `rejected` is the first text, if the fallback rejected it. The current attempt starts from
    `prompt` and has been through `steps`; it is `drafted` for if the drafter has read its audio. A
    second attempt waits for others of its session until the greedy lane's step `gathers_until`.
    `encoded` is the main encoder's output (1, frames, d_model), kept if another attempt may follow.
    The classes in `own_lanes` have lanes of their own. `isolated` sequences run
    without those of other sessions, after a failed step. `entry_cost` is the charge for entering a
    row.
    """

    session: Session
    request: Request
    own_lanes: frozenset[WorkClass] = LIVE_ALONE
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
    def work(self) -> WorkClass:
        return work_class(self.options.live, self.request.windows_left)

    @property
    def lane(self) -> Lane:
        own = self.work if self.work in self.own_lanes else None
        return Lane(self.num_beams, own is WorkClass.LIVE, own is WorkClass.LONG)

    @property
    def num_beams(self) -> int:
        beams, fallback = self.options.num_beams, self.options.fallback
        retry_beams = fallback.retry_beams if self.retried and fallback else None
        return max(beams, retry_beams or 0)

    @property
    def timestamps(self) -> bool:
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

    def looked_up(self, newest: Sequence[int], most: int) -> tuple[int, ...]:
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

    def read_start(self, start: list[float], languages: Mapping[str, int]) -> None:
        """Keep a row of `prefill`'s output; `languages` maps codes to tokens."""
        self.no_speech_prob, language, probability, annotation = start
        self.annotation_prob = max(self.annotation_prob, annotation)
        for code, token in languages.items():
            if token == language:
                self.language, self.language_probability = code, probability
