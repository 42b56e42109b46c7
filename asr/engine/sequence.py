"""A request inside the engine: which session it belongs to, and which attempt is running."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from torch import Tensor

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.fallback import Attempt, uniform
from asr.engine.prefill import PrefillInput
from asr.engine.request import DecodeOptions, DecodeResult, Request
from transcript import DecodeStats


@dataclass(eq=False)
class Sequence:
    """A request, waiting or in a row. `drafted` is whether the assistant has read its audio.

    `attempt` is the current one, number `attempts` of them, which starts from `prompt` and has been
    through `steps`. `num_beams` are its own: they decide in which lane it runs, and `gathers_until`
    when at the latest (`asr.engine.lanes`).
    `encoded` is the main encoder's output (1, frames, d_model), kept where another attempt may run
    in another.
    """

    request: Request
    options: DecodeOptions
    session: Hashable
    stats: DecodeStats
    drafted: bool = False
    attempts: int = 1
    steps: int = field(default=0, init=False)
    gathers_until: int = field(default=0, init=False)
    attempt: Attempt = field(init=False)
    no_speech_prob: float = 0.0
    language: str | None = None
    language_probability: float | None = None
    annotation_prob: float = 0.0
    encoded: Tensor | None = None
    num_beams: int = field(init=False)
    prompt: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._begin(Attempt(self.options.temperature), self.request.prompt)

    def _begin(self, attempt: Attempt, prompt: tuple[int, ...]) -> None:
        """Make an attempt the current one."""
        self.attempt, self.prompt, self.steps = attempt, prompt, 0
        self.num_beams = self._beams_of(attempt)

    def _beams_of(self, attempt: Attempt) -> int:
        """The beams of an attempt: a sampled one has none."""
        if attempt.temperature:
            return 1
        return max(attempt.num_beams or 1, self.options.num_beams)

    @property
    def temperature(self) -> float:
        """The current attempt's; 0 where it takes the likeliest tokens."""
        return self.attempt.temperature

    @property
    def timestamps(self) -> bool:
        """Whether the current attempt follows the timestamp grammar."""
        return self.options.timestamps and not self.attempt.without_timestamps

    @property
    def draftable(self) -> bool:
        """Neither sampled attempts nor beams are drafted: a draft predicts the likeliest token."""
        return self.drafted and self.temperature == 0 and self.num_beams == 1

    @property
    def may_change_lane(self) -> bool:
        """Whether another attempt may have another number of beams."""
        fallback = self.options.fallback
        return fallback is not None and any(
            self._beams_of(each) != self.num_beams for each in fallback.attempts
        )

    @property
    def judged_by_start(self) -> bool:
        """Whether how the text starts may reject it: greedy ones, whose tokens are final."""
        return self.temperature == 0 and self.num_beams == 1

    def next_attempt(self) -> Attempt | None:
        """What to try if the current attempt's text is rejected."""
        options = self.options
        if options.fallback is None:
            return None
        return options.fallback.next_attempt(self.attempts, options.timestamps, options.num_beams)

    @property
    def prefilled_length(self) -> int:
        """Tokens after prefill: the prompt and the first token."""
        return len(self.prompt) + 1

    def complete(self, last: DecodeResult) -> DecodeResult:
        """The last attempt's result with what any attempt has told of the window."""
        return replace(last, annotation_prob=self.annotation_prob)

    def read_start(self, said: list[float], special_tokens: SpecialTokens) -> None:
        """Keep what `prefill` has read: its row of four numbers.

        Only attempts without timestamps tell of annotations, so an earlier one's is kept.
        """
        self.no_speech_prob, language, probability, annotation = said
        self.annotation_prob = max(self.annotation_prob, annotation)
        for code, token in special_tokens.languages.items():
            if token == language:
                self.language, self.language_probability = code, probability

    def retry(self, attempt: Attempt, prompt: tuple[int, ...]) -> None:
        """Begin another attempt."""
        self.attempts += 1
        self._begin(attempt, prompt)

    def restart(self) -> None:
        """Forget all attempts: the sequence was preempted."""
        self.drafted, self.attempts, self.annotation_prob = False, 1, 0.0
        self._begin(Attempt(self.options.temperature), self.request.prompt)

    def prefill_input(self, max_positions: int) -> PrefillInput:
        """What its row starts from, in a model of texts of `max_positions` tokens.

        Beams find at most half as many new tokens, as in openai/whisper (`sample_len`).
        """
        request, max_length = self.request, max_positions
        if self.num_beams > 1:
            max_length = min(max_length, len(self.prompt) + max_positions // 2)
        if request.max_tokens is not None:
            max_length = min(max_length, len(self.prompt) + request.max_tokens)
        random = None
        if self.temperature:
            random = uniform(request.samples, self.attempts - 1, max_length)
        return PrefillInput(
            self.prompt,
            max_length,
            self.draftable,
            self.timestamps,
            self.temperature,
            random,
        )
