"""What is asked of the engine and what it answers, as plain values.

Options belong to a session and a prompt to a request, so that requests of many clients can be
decoded beside each other. Nothing here knows rows, steps or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asr.engine.fallback import Fallback
from runtime.turns import Work

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How the requests of a session are decoded.

    At most `batch_size` of them occupy rows at once. `assisted` says whether the assistant or heads
    may draft; None leaves it to the planner (`asr.decoding_plan`), and the engine drafts nothing.
    `drafts` fixes the number of drafted tokens a step; None lets measured costs and acceptance
    decide. `words` asks for the attention of the
    alignment heads, from which word times are made. With `num_beams` above 1 texts are found by
    beam search (`asr.engine.beam_search`) and nothing is drafted; the best has the largest mean
    log-probability, or is chosen under `length_penalty` (0 to 1; `asr.engine.hypotheses`). At a
    `temperature` above 0 texts are sampled, once, from one beam and without drafts. What is `live`,
    somebody waits for as they speak: it goes before everything else.
    """

    timestamps: bool = True
    assisted: bool | None = None
    batch_size: int = 24
    fallback: Fallback | None = None
    drafts: int | None = None
    words: bool = False
    num_beams: int = 1
    length_penalty: float | None = None
    temperature: float = 0.0
    live: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """One window to decode.

    `samples` (n,) are mono at 16 kHz, at most as many as the encoder reads at once. The text has at
    most `max_tokens` tokens after the prompt, by default as many as the model allows. `encoded`
    (1, frames, d_model) is the main encoder's output where language detection has made it already.
    What is decoded `once` has no second attempt, whatever its session's fallback. So many
    `windows_left` of the recording are to be decoded, this one among them; short recordings go
    first.

    The text begins with the tokens of `prefix`, whatever the model would choose, and may end behind
    them; they count for `max_tokens`, which may cut them. A prefix is for greedy texts that are
    decoded once: ValueError is raised where another is added. `draft` is a guess of what follows,
    as long as anybody likes, which is verified in the first pass and so changes speed alone; only
    a first attempt that is greedy uses it. `frames` of the window are encoded, None for all
    (`asr.model.encoder.Encoder.part_of_window`).
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
    `attention` (tokens, frames of 20 ms) holds for each of these where in the window it was spoken
    (`asr.model.alignment_heads.normalize_attention`): where words are wanted, and for a text that
    was cut, is as long as texts may be or lacks the timestamps asked for. `timestamps` says whether
    the tokens may hold timestamps, in which an attempt after the first may differ from the options.
    `repetitive` texts repeat themselves; of `cut` ones only a loop's first part was kept
    (`asr.engine.repetition`). `language` is the likeliest one where the transcript starts and
    `language_probability` its probability among all, whatever the prompt says; None where nothing
    was read of them.
    `annotation_prob` is the probability that the text begins with a note or a bracket, as captions
    of laughter and music do, which is never written; 0 where no attempt was without timestamps.
    `text_logprob` is the mean over `log_probs` without those of timestamps, by which attempts with
    and without them compare, and `start_logprob` that of the first of them, which a greedy text has
    from `asr.engine.fallback.START_TOKENS` on.
    """

    tokens: tuple[int, ...]
    no_speech_prob: float
    log_probs: tuple[float, ...]
    temperature: float
    attention: NDArray[np.float32] | None = None
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
        """Whether the model ended the text, which no limit did."""
        return len(self.log_probs) > len(self.tokens)

    @property
    def avg_logprob(self) -> float:
        """The mean over the log-probabilities; 0 where there are none."""
        return sum(self.log_probs) / max(1, len(self.log_probs))


def work_class(live: bool, windows_left: int) -> Work:
    """Return the class of work of a recording."""
    if live:
        return Work.LIVE
    return Work.SHORT if windows_left <= 4 else Work.LONG
