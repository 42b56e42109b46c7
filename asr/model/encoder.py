"""From samples to what the encoders make of them, each window once.

The one decision: the encoder's output is handed on, not kept. Decoders project it into their caches
when a window sits down, and a window decoded again at another temperature finds it there. The one
exception are the windows in which a language was looked for before anything was decoded: they are
remembered until they are heard again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from asr.checkpoint.loading import WhisperModels
from asr.frontend.features import LogMel
from asr.model.cpu_kernels import at_once, onednn_override

REMEMBERED = 16  # windows; large-v3's output for one is 4 MB in float16


@dataclass(frozen=True)
class EncoderOutput:
    """What the encoders made of some windows, (windows, frames, width); `assistant` where one will
    draft.
    """

    main: Tensor
    assistant: Tensor | None = None


class Encoder:
    """The encoders of a set of models, and the spectrogram both read."""

    def __init__(self, models: WhisperModels) -> None:
        self.model = models.model
        self.assistant = models.assistant
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.device = models.device
        self._remembered: deque[tuple[NDArray[np.float32], Tensor]] = deque(maxlen=REMEMBERED)

    @torch.inference_mode()
    def hear(self, windows: Sequence[NDArray[np.float32]], drafted: bool) -> EncoderOutput:
        """Encodes windows of samples, for the main model and, if `drafted`, for the assistant."""
        with onednn_override():
            together = at_once(len(windows), self.device)
            starts = range(0, len(windows), together)
            passes = [self._hear(windows[start : start + together], drafted) for start in starts]
        main = torch.cat([each.main for each in passes])
        if not drafted or self.assistant is None:
            return EncoderOutput(main)
        if self.assistant.shares_encoder:
            return EncoderOutput(main, main)
        return EncoderOutput(
            main, torch.cat([each.assistant for each in passes if each.assistant is not None])
        )

    def remember(self, window: NDArray[np.float32], encoded: EncoderOutput) -> None:
        """Keeps what was made of a window until it is heard again, or until too many came after
        it.
        """
        self._remembered.append((window, encoded.main))

    def _hear(self, windows: Sequence[NDArray[np.float32]], drafted: bool) -> EncoderOutput:
        """One pass of each encoder, and none where all windows are remembered."""
        own = (
            self.assistant
            if drafted and self.assistant and not self.assistant.shares_encoder
            else None
        )
        known = [self._recall(window) for window in windows]
        new = [row for row, each in enumerate(known) if each is None]
        if not new and own is None:
            return EncoderOutput(torch.cat([each for each in known if each is not None]))
        features = self.log_mel(windows).to(self.model.dtype)
        fresh = iter(_encode(self.model, features[new]) if new else ())
        main = torch.stack([next(fresh) if each is None else each[0] for each in known])
        return EncoderOutput(main, None if own is None else _encode(own.model, features))

    def _recall(self, window: NDArray[np.float32]) -> Tensor | None:
        for place, (known, encoded) in enumerate(self._remembered):
            if np.array_equal(known, window):
                del self._remembered[place]
                return encoded
        return None


def _encode(model: PreTrainedModel, features: Tensor) -> Tensor:
    """(windows, bands, frames) -> (windows, half as many frames, width)."""
    encoded: Tensor = model.get_encoder()(features).last_hidden_state
    return encoded
