"""A request inside the engine: which session it belongs to, and which attempt is running."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from asr.engine.fallback import uniform
from asr.engine.prefill import PrefillInput
from asr.engine.request import DecodeOptions, Request
from transcript import DecodeStats


@dataclass(eq=False)
class Sequence:
    """A request, waiting or in a row. `drafted` is whether the assistant has read its audio."""

    request: Request
    options: DecodeOptions
    session: Hashable
    stats: DecodeStats
    drafted: bool = False
    attempt: int = 0
    temperature: float = 0.0
    no_speech_prob: float = 0.0

    @property
    def draftable(self) -> bool:
        """Sampled attempts are never drafted: a draft predicts the likeliest token."""
        return self.drafted and self.temperature == 0

    @property
    def prefilled_length(self) -> int:
        """Tokens after prefill: the prompt and the first token."""
        return len(self.request.prompt) + 1

    def retry(self, temperature: float) -> None:
        """Begin another attempt."""
        self.attempt, self.temperature = self.attempt + 1, temperature

    def restart(self) -> None:
        """Forget all attempts: the sequence was preempted."""
        self.drafted, self.attempt, self.temperature = False, 0, 0.0

    def prefill_input(self, max_positions: int) -> PrefillInput:
        """What its row starts from, in a model of texts of `max_positions` tokens."""
        request, max_length = self.request, max_positions
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
