"""Whisper's encoders: from samples to outputs, each window once.

Outputs are returned, not kept. An output is projected into the decoders' caches when its window
enters a row. Language detection returns its output to the caller, which passes it on with the
request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

from whosaid.asr.checkpoint.conditioning import CLASSES, PRODUCTS, Conditioning
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.weights import Weights, WhisperModel, below
from whosaid.asr.model.conditioning import ConditioningLayers, Updates
from whosaid.asr.model.cpu_kernels import EncoderLinear, attend, encoder_batch_size
from whosaid.asr.model.cpu_threads import CpuThreads
from whosaid.asr.model.decoder import Norm
from whosaid.asr.model.kv_cache import upload
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

if TYPE_CHECKING:
    from whosaid.asr.frontend.target_speaker import Enrolment, Mask, TargetWindow

# A window may be encoded to 1/6, 1/5, 1/4, 1/3 or 1/2 of its frames. Such a part is SPARE_SECONDS
# longer than its speech, because silence after speech ends a text.
PARTS, SPARE_SECONDS = (6, 5, 4, 3, 2), 1.0
FRAMES_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_TOKEN
# transformers' limit: half precision would overflow in some checkpoints.
LARGEST_HALF = torch.finfo(torch.float16).max - 1000
MIN_POWER = 1e-10  # of a mel band, so that its logarithm exists
CONDITIONED_AT_ONCE = 4  # windows in a pass for one speaker each, which no CUDA graph replays
NO_UPDATES: Updates = {}
DYNAMIC_RANGE = 8.0  # powers of ten below the window's loudest value; lower values are raised


class AudioWindow(NamedTuple):
    """A window to encode: samples (n,), and the main encoder's output (1, frames, d_model) if it is
    known. `frames` is the `Encoder.part_of_window` to encode, None for all. The main encoder
    follows the `target`, if there is one; an assistant's own encoder never does.
    """

    samples: NDArray[np.float32]
    encoded: Tensor | None = None
    frames: int | None = None
    target: TargetWindow | None = None


class EncoderOutput(NamedTuple):
    """Outputs (windows, frames, d_model); `assistant` if an assistant will draft."""

    main: Tensor
    assistant: Tensor | None = None


class LogMel:
    """Computes log-mel spectrograms of many windows at once, on the model's device, equal to those
    of transformers' WhisperFeatureExtractor on the CPU. Every window is normalised by its own
    loudest value, so one spectrogram of the whole recording, cut into windows, would be wrong.
    """

    def __init__(self, feature_extractor: WhisperFeatureExtractor, device: torch.device) -> None:
        self.n_samples: int = feature_extractor.n_samples
        self.n_fft: int = feature_extractor.n_fft
        self.hop_length: int = feature_extractor.hop_length
        self.window = torch.hann_window(self.n_fft, device=device)
        filters = np.asarray(feature_extractor.mel_filters, dtype=np.float32)
        self.filters = torch.from_numpy(filters.T.copy()).to(device)  # (bands, frequencies)

    def __call__(self, windows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Return features (windows, bands, frames) of samples (n,), cut or padded to a window."""
        padded = np.zeros((len(windows), self.n_samples), dtype=np.float32)
        for row, window in zip(padded, windows, strict=True):
            row[: len(window)] = window[: self.n_samples]
        samples = upload(torch.from_numpy(padded), self.window.device)
        spectrum = torch.stft(
            samples, self.n_fft, self.hop_length, window=self.window, return_complex=True
        )
        spectrum = spectrum[..., :-1]
        # A complex abs() takes three times as long on a CPU, and CUDA compiles it at its first use.
        power = (spectrum.real.square() + spectrum.imag.square()).contiguous()
        log_power = (self.filters @ power).clamp(min=MIN_POWER).log10()
        loudest = log_power.amax(dim=(1, 2), keepdim=True)
        return (torch.maximum(log_power, loudest - DYNAMIC_RANGE) + 4.0) / 4.0


class EncoderLayer:
    """Self-attention and a perceptron, each with a norm before it and a residual around it."""

    def __init__(self, weights: Weights, heads: int, dtype: torch.dtype | None) -> None:
        linear = partial(EncoderLinear, weights, dtype=dtype)
        self.heads = heads
        self.norm = Norm.of(weights, "self_attn_layer_norm")
        self.inner_norm = Norm.of(weights, "final_layer_norm")
        self.query, self.key, self.value, self.out = (
            linear(f"self_attn.{each}_proj") for each in ("q", "k", "v", "out")
        )
        self.fc1, self.fc2 = linear("fc1", gelu=True), linear("fc2")

    def forward(self, x: Tensor, updates: Updates = NO_UPDATES) -> Tensor:
        """(windows, frames, d_model) -> (windows, frames, d_model)."""
        for_query, for_key, for_value, for_out, for_fc1, for_fc2 = map(updates.get, PRODUCTS)
        normed = self.query.rounded(self.norm(x))
        query, keys = self.query(normed, for_query), self.key(normed, for_key)
        mixed = attend(query, keys, self.value(normed, for_value), self.heads)
        x = self.out(mixed, for_out).to(x.dtype).add_(x)
        x = self.fc2(self.fc1(self.inner_norm(x), for_fc1), for_fc2).to(x.dtype).add_(x)
        return x.clamp(-LARGEST_HALF, LARGEST_HALF) if x.dtype == torch.float16 else x


class AudioEncoder:
    """A checkpoint's encoder; `dtype` is the precision of its products, as in `EncoderLinear`.

    Computes the results of transformers' modeling_whisper.WhisperEncoder (to rounding). A window
    with fewer frames than the model's uses the first position embeddings. With `conditioning`, it
    can follow one speaker (`asr.model.conditioning`).
    """

    def __init__(
        self,
        model: WhisperModel,
        dtype: torch.dtype | None = None,
        conditioning: Conditioning | None = None,
    ) -> None:
        weights, heads = dict(model.named_parameters()), model.config.encoder_attention_heads
        own = below(weights, "model.encoder.")
        self.convolutions = [
            (own[f"{name}.weight"], own[f"{name}.bias"], stride)
            for name, stride in (("conv1", 1), ("conv2", 2))
        ]
        self.positions = own["embed_positions.weight"]
        self.layers = [
            EncoderLayer(below(own, f"layers.{number}."), heads, dtype)
            for number in range(model.config.encoder_layers)
        ]
        self.norm = Norm.of(own, "layer_norm")
        self.conditioning: ConditioningLayers | None = None
        if conditioning is not None:
            self.conditioning = ConditioningLayers(conditioning, len(self.layers), heads, dtype)

    def forward(
        self, features: Tensor, mask: Tensor | None = None, enrolled: Iterator[Tensor] | None = None
    ) -> Tensor:
        """(windows, bands, frames) -> (windows, half as many frames, d_model).

        With a `mask` (windows, half as many frames, classes), follow its target. The enrolment
        blocks attend to what is `enrolled`, or each window is its own enrolment.
        """
        conditioning = self.conditioning
        if conditioning is not None and conditioning.unmasked is not None and mask is None:
            mask = conditioning.unmasked.expand(len(features), 1, -1)
        x = self.convolved(features)
        if conditioning is None or mask is None:
            x = x + self.positions[: x.shape[1]]
            for layer in self.layers:
                x = layer.forward(x)
            return self.norm(x)
        if enrolled is None:
            enrolled = self.enrolled(features, mask)
        x = conditioning.transform(x, mask, 0) + self.positions[: x.shape[1]]
        for number, layer in enumerate(self.layers):
            x = conditioning.before_layer(x, mask, number, enrolled)
            x = layer.forward(x, conditioning.updates[number])
        return self.norm(x)

    def enrolled(self, features: Tensor, mask: Tensor) -> Iterator[Tensor]:
        """Yield what each enrolment block attends to, (windows, frames, d_model)."""
        conditioning = self.conditioning
        if conditioning is None:
            return
        x = self.convolved(features)
        x = conditioning.transform(x, mask, 0) + self.positions[: x.shape[1]]
        for number in range(len(conditioning.blocks)):
            if number:
                x = self.layers[number - 1].forward(x, conditioning.updates[number - 1])
            x = conditioning.transform(x, mask, number + 1)
            yield x

    def convolved(self, features: Tensor) -> Tensor:
        """Return the convolutions' output (windows, half as many frames, d_model)."""
        for weight, bias, stride in self.convolutions:
            features = F.gelu(F.conv1d(features, weight, bias, stride, padding=1))
        return features.transpose(1, 2)


EncoderPass = Callable[[AudioEncoder, Tensor], Tensor]


class Encoder:
    """The encoders of a main model and its assistant, and their common spectrogram."""

    def __init__(
        self,
        models: WhisperModels,
        threads: CpuThreads | None = None,
        run_pass: EncoderPass = AudioEncoder.forward,
    ) -> None:
        """Take `threads`, adjusted before every pass, and `run_pass`, which may replay the pass."""
        self.threads, self.run_pass = threads or CpuThreads(1), run_pass
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.device, self.dtype = models.device, models.model.dtype
        self.main = AudioEncoder(models.model, models.product_dtype, models.conditioning)
        # What the blocks attend to, of the latest enrolments; 31 MB each in large-v3's shape.
        self._enrolled: WeakKeyDictionary[Enrolment, list[Tensor]] = WeakKeyDictionary()
        self.assistant: AudioEncoder | None = None
        if models.assistant is not None:
            self.assistant = self.main
            if not models.assistant.shares_encoder:
                self.assistant = AudioEncoder(models.assistant.model, models.product_dtype)

    @torch.inference_mode()
    def encode(
        self, windows: Sequence[AudioWindow], drafted: bool, until: float = math.inf
    ) -> EncoderOutput:
        """Encode windows for the main model and, if `drafted`, for the assistant.

        Outputs of different lengths are repeated to a common length. Once time.perf_counter()
        reaches `until`, no pass starts after the first: the output then lacks the last windows.
        """
        passes, together = [], encoder_batch_size(len(windows), self.device)
        for start in range(0, len(windows), together):
            self.threads.adjust()
            passes.append(self._encode(self._follow(windows[start : start + together]), drafted))
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
        """Return how many frames to encode of a window with `seconds` of speech; None for all.

        For windows whose latency matters more than their last word, and for windows that follow a
        target with weights that were trained so. On a CPU the time of a pass grows with its frames,
        silent or not. A part divides the whole, so that its output can be repeated: attention does
        not change if all keys occur equally often. Compare whisper.cpp's `audio_ctx`.
        """
        whole = len(self.main.positions)
        if self.device.type != "cpu":
            return None
        needed = (seconds + SPARE_SECONDS) * FRAMES_PER_SECOND
        parts = [each for each in PARTS if whole % each == 0]
        return next((whole // each for each in parts if needed <= whole // each), None)

    def _follow(self, windows: Sequence[AudioWindow]) -> list[AudioWindow]:
        """Return the windows, with the outputs of those that follow a target. Our own weights were
        trained on parts of windows too, DiCoW's were not.
        """
        outputs, whole = [*windows], len(self.main.positions)
        parts = self.main.conditioning is not None and self.main.conditioning.unmasked is None
        todo = [
            (row, each.samples, each.target)
            for row, each in enumerate(windows)
            if each.target is not None and each.encoded is None
        ]
        for first in range(0, len(todo), CONDITIONED_AT_ONCE):
            rows, samples, part = zip(*todo[first : first + CONDITIONED_AT_ONCE], strict=True)
            seconds = max(map(len, samples)) / SAMPLE_RATE
            frames = (self.part_of_window(seconds) if parts else None) or whole
            features = self.log_mel(samples)[..., : 2 * frames].to(self.dtype)
            mask = self._padded([each.mask for each in part])[:, :frames]
            enrolled = self._enrol([each.enrolment for each in part])
            followed = self.main.forward(features, mask, enrolled)
            for row, output in zip(rows, torch.split(followed, 1), strict=True):
                outputs[row] = outputs[row]._replace(encoded=output)
        return outputs

    def _enrol(self, enrolments: Sequence[Enrolment]) -> Iterator[Tensor]:
        """Return what each block attends to, (enrolments, frames, d_model)."""
        if self.main.conditioning is None or not self.main.conditioning.blocks:
            return iter(())
        for each in enrolments:
            known = self._enrolled.pop(each, None)
            if known is None:
                features = self.log_mel([each.samples]).to(self.dtype)
                known = [*self.main.enrolled(features, self._padded([each.mask]))]
            self._enrolled[each] = known  # the latest
        for each in [*self._enrolled][:-CONDITIONED_AT_ONCE]:
            del self._enrolled[each]
        return map(torch.cat, zip(*(self._enrolled[each] for each in enrolments), strict=True))

    def _padded(self, masks: Sequence[Mask]) -> Tensor:
        """Return masks cut or padded with silence, (windows, frames, classes)."""
        padded = np.zeros((len(masks), len(self.main.positions), CLASSES), np.float32)
        padded[..., 0] = 1
        for row, mask in zip(padded, masks, strict=True):
            row[: len(mask)] = mask[: len(row)]
        return torch.from_numpy(padded).to(self.device, self.dtype)

    def _encode(self, windows: Sequence[AudioWindow], drafted: bool) -> EncoderOutput:
        """Run one pass of each encoder; skip the main one if every output is known."""
        own = self.assistant if drafted and self.assistant is not self.main else None
        known = [each.encoded for each in windows if each.encoded is not None]
        if len(known) == len(windows) and own is None:
            return EncoderOutput(torch.cat(repeated(known)))
        features = self.log_mel([each.samples for each in windows]).to(self.dtype)
        frames = [each.frames for each in windows if each.frames is not None]
        if not known and own is None and len(frames) == len(windows):
            return EncoderOutput(self.run_pass(self.main, features[..., : 2 * max(frames)]))
        missing = [row for row, each in enumerate(windows) if each.encoded is None]
        new = features[missing] if known else features
        fresh = iter(self.run_pass(self.main, new) if missing else ())
        main = torch.stack([next(fresh) if e.encoded is None else e.encoded[0] for e in windows])
        return EncoderOutput(main, None if own is None else self.run_pass(own, features))


def repeated(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Repeat outputs (windows, frames, d_model) to their smallest common length."""
    frames = math.lcm(*(each.shape[1] for each in outputs))
    return [
        each if each.shape[1] == frames else each.repeat(1, frames // each.shape[1], 1)
        for each in outputs
    ]
