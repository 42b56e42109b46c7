"""Computes log-mel spectrograms of many windows at once, on the model's device.

Every window is normalised by its own loudest value. One spectrogram of the whole recording, cut
into windows, would be cheaper and wrong: a loud sound in another window would change this one. The
values equal those of transformers' WhisperFeatureExtractor, whose mel filters are used. That class
works on the CPU and returns numpy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

MIN_POWER = 1e-10  # of a mel band, so that its logarithm exists
DYNAMIC_RANGE = 8.0  # powers of ten below the window's loudest value; lower values are raised


class LogMel:
    """The spectrogram that a checkpoint was trained on, by its feature extractor's parameters."""

    def __init__(self, feature_extractor: WhisperFeatureExtractor, device: torch.device) -> None:
        self.n_samples: int = feature_extractor.n_samples
        self.n_fft: int = feature_extractor.n_fft
        self.hop_length: int = feature_extractor.hop_length
        self.window = torch.hann_window(self.n_fft, device=device)
        filters = np.asarray(feature_extractor.mel_filters, dtype=np.float32)
        self.filters = torch.from_numpy(filters.T.copy()).to(device)  # (bands, frequencies)

    def __call__(self, windows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Return features (windows, bands, frames), float32, of windows of samples (n,).

        Each window is cut or padded with silence to `n_samples`.
        """
        padded = np.zeros((len(windows), self.n_samples), dtype=np.float32)
        for row, window in zip(padded, windows, strict=True):
            row[: len(window)] = window[: self.n_samples]
        samples = torch.from_numpy(padded).to(self.window.device)
        spectrum = torch.stft(
            samples, self.n_fft, self.hop_length, window=self.window, return_complex=True
        )
        spectrum = spectrum[..., :-1]
        # A complex abs() takes three times as long on a CPU, and CUDA compiles it at its first use.
        power = (spectrum.real.square() + spectrum.imag.square()).contiguous()
        log_power = (self.filters @ power).clamp(min=MIN_POWER).log10()
        loudest = log_power.amax(dim=(1, 2), keepdim=True)
        return (torch.maximum(log_power, loudest - DYNAMIC_RANGE) + 4.0) / 4.0
