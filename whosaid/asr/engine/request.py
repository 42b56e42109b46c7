"""Options and requests of the engine.

Options belong to a session and a prompt to a request, so requests of many sessions share a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.engine.fallback import Fallback

if TYPE_CHECKING:
    from torch import Tensor

    from whosaid.asr.engine.rescoring import Proposer
    from whosaid.asr.frontend.target_speaker import TargetWindow

MAX_ROWS = 128  # of a batch
DEFAULT_ROWS = 24  # of a session on a CPU


class Share(NamedTuple):
    """A client of the engine, which gets `weight` times the rows of others (1)."""

    client: str
    weight: float


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How the requests of a session are decoded.

    At most `batch_size` requests occupy rows at once; None leaves that to the engine. `assisted`
    lets the assistant or heads draft; None leaves that to the planner (`asr.decoding_plan`), and
    the engine drafts nothing. `drafts` fixes the number of drafted tokens a step; None lets
    measured costs and acceptance decide. `num_beams` above 1 means beam search
    (`asr.engine.beam_search`) without drafts; the best text has the largest mean log-probability,
    or is chosen under `length_penalty` (0 to 1). A `temperature` above 0 means that texts are
    sampled, once, from one beam and without drafts. `live` windows precede everything else, because
    a speaker waits for them. Finished texts are rescored with the alternatives of a `proposer`
    (`asr.engine.rescoring`). Sessions of one `share` count as one client for rows.
    """

    timestamps: bool = True
    assisted: bool | None = None
    batch_size: int | None = None
    fallback: Fallback | None = None
    drafts: int | None = None
    num_beams: int = 1
    length_penalty: float | None = None
    temperature: float = 0.0
    live: bool = False
    proposer: Proposer | None = None
    share: Share | None = None


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
