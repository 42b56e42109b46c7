"""From samples to the encoders' outputs, each window once.

The encoder's output is handed on, not kept: it is projected into the decoders' caches when a window
enters a row. Language detection hands it back to the caller, who gives it along with the request.
"""

from __future__ import annotations

import copy
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
from timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

Samples = NDArray[np.float32]


class EncoderOutput(NamedTuple):
    """Outputs (windows, frames, d_model); `assistant` where one will draft."""

    main: Tensor
    assistant: Tensor | None = None


EncoderPass = Callable[[nn.Module, Tensor], Tensor]


# Parts of the window that may be read instead of all of it, and the seconds that a part is
# longer than the speech in it: a text is ended by the silence behind it.
PARTS, SPARE_SECONDS = (6, 5, 4, 3, 2), 1.0
FRAMES_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_TOKEN


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
        self._parts: dict[int, nn.Module] = {}
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
        frames: Sequence[int | None] | None = None,
    ) -> EncoderOutput:
        """Encode windows of samples, for the main model and, if `drafted`, for the assistant.

        `known` holds, for each window, the main encoder's output (1, frames, d_model) where there
        is one already. From the time `until` (of time.perf_counter) on the other windows are left
        out; at least one pass is made. `frames` are those of `part_of_window`, by window; output
        that has fewer than the model's is repeated beside such as has all.
        """
        known, passes = known or [None] * len(windows), []
        frames = frames or [None] * len(windows)
        with OneDnnOverride(self.weights):
            together = encoder_batch_size(len(windows), self.device)
            for start in range(0, len(windows), together):
                part = slice(start, start + together)
                shorter = self._shorter(frames[part])
                passes.append(self._encode(windows[part], drafted, known[part], shorter))
                if time.perf_counter() >= until:
                    break
        main = torch.cat(repeated([each.main for each in passes]))
        if not drafted or self.assistant is None:
            return EncoderOutput(main)
        if self.assistant.shares_encoder:
            return EncoderOutput(main, main)
        own = [each.assistant for each in passes if each.assistant is not None]
        return EncoderOutput(main, torch.cat(own))

    def part_of_window(self, seconds: float) -> int | None:
        """How many frames to read of a window with `seconds` of speech where speed is worth more
        than the last word; None for all.

        On a CPU an encoder's pass takes the longer the more frames it reads, silence or not. A part
        divides the whole, so that its output may be repeated: attention over keys of which each
        occurs equally often is the same. Compare whisper.cpp's `audio_ctx`.
        """
        whole: int = self.model.config.max_source_positions
        if self.device.type != "cpu":
            return None
        needed = (seconds + SPARE_SECONDS) * FRAMES_PER_SECOND
        parts = [each for each in PARTS if whole % each == 0]
        return next((whole // each for each in parts if needed <= whole // each), None)

    def _shorter(self, frames: Sequence[int | None]) -> int | None:
        """How many frames windows that are encoded together have, None for all."""
        wanted = [each for each in frames if each is not None]
        return max(wanted) if len(wanted) == len(frames) else None

    def _encode(
        self,
        windows: Sequence[Samples],
        drafted: bool,
        known: Sequence[Tensor | None],
        frames: int | None,
    ) -> EncoderOutput:
        """One pass of each encoder, and none of the main one where every output is known."""
        if self.threads is not None:
            self.threads.adjust()
        own = self.assistant if drafted else None
        if own is not None and own.shares_encoder:
            own = None
        missing = [row for row, each in enumerate(known) if each is None]
        if not missing and own is None:
            return EncoderOutput(torch.cat(repeated([each for each in known if each is not None])))
        features = self.log_mel(windows).to(self.model.dtype)
        if frames is not None and own is None and len(missing) == len(windows):
            part = features[..., : 2 * frames]
            return EncoderOutput(self.run_pass(self._part(frames), part))
        new = features if len(missing) == len(windows) else features[missing]
        fresh = iter(self._run(self.model, new) if missing else ())
        main = torch.stack([next(fresh) if each is None else each[0] for each in known])
        return EncoderOutput(main, None if own is None else self._run(own.model, features))

    def _run(self, model: PreTrainedModel, features: Tensor) -> Tensor:
        return self.run_pass(model.get_encoder(), features)

    def _part(self, frames: int) -> nn.Module:
        """The main encoder for so many frames: the same modules, but for fewer positions."""
        if frames not in self._parts:
            encoder = self.model.get_encoder()
            part = copy.copy(encoder)
            part._modules = dict(encoder._modules)
            part.config = copy.copy(encoder.config)
            part.config.max_source_positions = frames
            positions = encoder.embed_positions.weight[:frames]
            part.embed_positions = nn.Embedding(frames, positions.shape[1], _weight=positions)
            self._parts[frames] = part
        return self._parts[frames]


def repeated(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs (windows, frames, d_model), each with the fewest frames that all can have so."""
    frames = math.lcm(*(each.shape[1] for each in outputs))
    return [
        each if each.shape[1] == frames else each.repeat(1, frames // each.shape[1], 1)
        for each in outputs
    ]
