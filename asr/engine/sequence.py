"""A request inside the engine: which session it belongs to, and which attempt is running."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from asr.engine.fallback import uniform
from asr.engine.prefill import PrefillInput
from asr.engine.request import DecodeOptions, Request
from transcript import DecodeStats


@dataclass(eq=False)
class Sequence:
    """A request, waiting or in a row. `drafted` is whether the assistant has read its audio.

    `num_beams` are those of the current attempt: they decide in which lane it runs. `encoded` is
    the main encoder's output (1, frames, d_model), kept where another attempt may run in another.
    """

    request: Request
    options: DecodeOptions
    session: Hashable
    stats: DecodeStats
    drafted: bool = False
    attempt: int = 0
    temperature: float = 0.0
    no_speech_prob: float = 0.0
    encoded: Tensor | None = None
    num_beams: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_beams = self.options.num_beams

    @property
    def draftable(self) -> bool:
        """Neither sampled attempts nor beams are drafted: a draft predicts the likeliest token."""
        return self.drafted and self.temperature == 0 and self.num_beams == 1

    @property
    def may_change_lane(self) -> bool:
        """Whether another attempt may have another number of beams."""
        return self.options.fallback is not None and self.options.num_beams > 1

    @property
    def prefilled_length(self) -> int:
        """Tokens after prefill: the prompt and the first token."""
        return len(self.request.prompt) + 1

    def retry(self, temperature: float, num_beams: int = 1) -> None:
        """Begin another attempt; a sampled one has no beams."""
        self.attempt, self.temperature = self.attempt + 1, temperature
        self.num_beams = num_beams

    def restart(self) -> None:
        """Forget all attempts: the sequence was preempted."""
        self.drafted, self.attempt, self.temperature = False, 0, 0.0
        self.num_beams = self.options.num_beams

    def prefill_input(self, max_positions: int) -> PrefillInput:
        """What its row starts from, in a model of texts of `max_positions` tokens.

        Beams find at most half as many new tokens, as in openai/whisper (`sample_len`).
        """
        request, max_length = self.request, max_positions
        if self.num_beams > 1:
            max_length = min(max_length, len(request.prompt) + max_positions // 2)
        if request.max_tokens is not None:
            max_length = min(max_length, len(request.prompt) + request.max_tokens)
        random = None
        if self.temperature:
            random = uniform(request.samples, self.attempt, max_length)
        return PrefillInput(
            request.prompt,
            max_length,
            self.draftable,
            self.options.timestamps,
            self.temperature,
            random,
        )
