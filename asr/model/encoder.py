"""From samples to the encoders' outputs, each window once.

The encoder's output is handed on, not kept: it is projected into the decoders' caches when a window
enters a row. Language detection hands it back to the caller, who gives it along with the request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from asr.checkpoint.loading import WhisperModels
from asr.frontend.features import LogMel
from asr.model.cpu_kernels import EncoderWeights, OneDnnOverride, encoder_batch_size
from asr.model.cpu_threads import CpuThreads

Samples = NDArray[np.float32]


class EncoderOutput(NamedTuple):
    """Outputs (windows, frames, d_model); `assistant` where one will draft."""

    main: Tensor
    assistant: Tensor | None = None


EncoderPass = Callable[[nn.Module, Tensor], Tensor]


def run_encoder(encoder: nn.Module, features: Tensor) -> Tensor:
    """(windows, bands, frames) -> (windows, half as many frames, d_model)."""
    encoded: Tensor = encoder(features).last_hidden_state
    return encoded


class Encoder:
    """The encoders of a set of models, and the spectrogram both read."""

    def __init__(
        self,
        models: WhisperModels,
        threads: CpuThreads | None = None,
        run_pass: EncoderPass = run_encoder,
    ) -> None:
        """Take the models; `threads` are adjusted before every pass, which is long on a CPU.

        `run_pass` does what `run_encoder` does, maybe otherwise.
        """
        self.threads, self.run_pass = threads, run_pass
        self.model = models.model
        self.assistant = models.assistant
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.device = models.device
        self.weights = EncoderWeights.of(models.model.get_encoder(), models.product_dtype)
        if models.assistant is not None and not models.assistant.shares_encoder:
            own = EncoderWeights.of(models.assistant.model.get_encoder(), models.product_dtype)
            self.weights = self.weights.joined(own)

    @torch.inference_mode()
    def encode(
        self,
        windows: Sequence[Samples],
        drafted: bool,
        known: Sequence[Tensor | None] | None = None,
        until: float = math.inf,
    ) -> EncoderOutput:
        """Encode windows of samples, for the main model and, if `drafted`, for the assistant.

        `known` holds, for each window, the main encoder's output (1, frames, d_model) where there
        is one already. From the time `until` (of time.perf_counter) on the other windows are left
        out; at least one pass is made.
        """
        known, passes = known or [None] * len(windows), []
        with OneDnnOverride(self.weights):
            together = encoder_batch_size(len(windows), self.device)
            for start in range(0, len(windows), together):
                part = slice(start, start + together)
                passes.append(self._encode(windows[part], drafted, known[part]))
                if time.perf_counter() >= until:
                    break
        main = torch.cat([each.main for each in passes])
        if not drafted or self.assistant is None:
            return EncoderOutput(main)
        if self.assistant.shares_encoder:
            return EncoderOutput(main, main)
        own = [each.assistant for each in passes if each.assistant is not None]
        return EncoderOutput(main, torch.cat(own))

    def _encode(
        self, windows: Sequence[Samples], drafted: bool, known: Sequence[Tensor | None]
    ) -> EncoderOutput:
        """One pass of each encoder, and none of the main one where every output is known."""
        if self.threads is not None:
            self.threads.adjust()
        own = self.assistant if drafted else None
        if own is not None and own.shares_encoder:
            own = None
        missing = [row for row, each in enumerate(known) if each is None]
        if not missing and own is None:
            return EncoderOutput(torch.cat([each for each in known if each is not None]))
        features = self.log_mel(windows).to(self.model.dtype)
        new = features if len(missing) == len(windows) else features[missing]
        fresh = iter(self._run(self.model, new) if missing else ())
        main = torch.stack([next(fresh) if each is None else each[0] for each in known])
        return EncoderOutput(main, None if own is None else self._run(own.model, features))

    def _run(self, model: PreTrainedModel, features: Tensor) -> Tensor:
        return self.run_pass(model.get_encoder(), features)
