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
from torch import Tensor

from asr.checkpoint.loading import WhisperModels
from asr.frontend.features import LogMel
from asr.model.audio_encoder import AudioEncoder
from asr.model.cpu_kernels import encoder_batch_size
from asr.model.cpu_threads import CpuThreads
from timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

Samples = NDArray[np.float32]


class EncoderOutput(NamedTuple):
    """Outputs (windows, frames, d_model); `assistant` where one will draft."""

    main: Tensor
    assistant: Tensor | None = None


EncoderPass = Callable[[AudioEncoder, Tensor], Tensor]


# Parts of the window that may be read instead of all of it, and the seconds that a part is
# longer than the speech in it: a text is ended by the silence behind it.
PARTS, SPARE_SECONDS = (6, 5, 4, 3, 2), 1.0
FRAMES_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_TOKEN


class Encoder:
    """The encoders of a set of models, and the spectrogram both read."""

    def __init__(
        self,
        models: WhisperModels,
        threads: CpuThreads | None = None,
        run_pass: EncoderPass = AudioEncoder.forward,
    ) -> None:
        """Take the models; `threads` are adjusted before every pass, which is long on a CPU.

        `run_pass` does what `AudioEncoder.forward` does, maybe otherwise.
        """
        self.threads, self.run_pass = threads, run_pass
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.device, self.dtype = models.device, models.model.dtype
        self.main = AudioEncoder(models.model.get_encoder(), models.product_dtype)
        self.assistant: AudioEncoder | None = None
        if models.assistant is not None:
            shares, own = models.assistant.shares_encoder, models.assistant.model
            self.assistant = self.main
            if not shares:
                self.assistant = AudioEncoder(own.get_encoder(), models.product_dtype)

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
        if self.assistant is self.main:
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
        whole = len(self.main.positions)
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
        own = self.assistant if drafted and self.assistant is not self.main else None
        missing = [row for row, each in enumerate(known) if each is None]
        if not missing and own is None:
            return EncoderOutput(torch.cat(repeated([each for each in known if each is not None])))
        features = self.log_mel(windows).to(self.dtype)
        if frames is not None and own is None and len(missing) == len(windows):
            return EncoderOutput(self.run_pass(self.main, features[..., : 2 * frames]))
        new = features if len(missing) == len(windows) else features[missing]
        fresh = iter(self.run_pass(self.main, new) if missing else ())
        main = torch.stack([next(fresh) if each is None else each[0] for each in known])
        return EncoderOutput(main, None if own is None else self.run_pass(own, features))


def repeated(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs (windows, frames, d_model), each with the fewest frames that all can have so."""
    frames = math.lcm(*(each.shape[1] for each in outputs))
    return [
        each if each.shape[1] == frames else each.repeat(1, frames // each.shape[1], 1)
        for each in outputs
    ]
