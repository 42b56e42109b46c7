"""The result of a request: tokens, their probabilities and their attention."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Replacement(NamedTuple):
    """Tokens `start` to `stop` of a text, and the tokens that were decoded there."""

    start: int
    stop: int
    decoded: tuple[int, ...]


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
    do, without previous text; they are never written. It is 0 if every attempt had timestamps.
    `replaced` are parts that were written after decoding (`asr.engine.rescoring`), in order.
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
    replaced: tuple[Replacement, ...] = ()

    @property
    def ended(self) -> bool:
        """Return whether the model, not a limit, ended the text."""
        return len(self.log_probs) > len(self.tokens)

    @property
    def avg_logprob(self) -> float:
        return sum(self.log_probs) / max(1, len(self.log_probs))
