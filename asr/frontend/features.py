"""Log-mel spectrograms of many windows at once, on the device that will read them.

The one decision: every window is normalised by its own loudest value, as if it were alone. Slicing
the spectrogram of a whole recording would be cheaper and wrong: a loud moment elsewhere would
change what the model hears here. Equal to transformers' WhisperFeatureExtractor, which works on the
CPU and hands numpy back; the mel filters are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

FLOOR = 1e-10  # of a band's power
RANGE = 8.0  # in powers of ten below the loudest value


class LogMel:
    """The spectrogram a checkpoint was trained on, as its feature extractor describes it."""

    def __init__(self, feature_extractor: WhisperFeatureExtractor, device: torch.device) -> None:
        self.samples: int = feature_extractor.n_samples
        self.fourier: int = feature_extractor.n_fft
        self.hop: int = feature_extractor.hop_length
        self.window = torch.hann_window(self.fourier, device=device)
        filters = np.asarray(feature_extractor.mel_filters, dtype=np.float32)
        self.filters = torch.from_numpy(filters.T.copy()).to(device)  # (bands, frequencies)

    def __call__(self, windows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Features (windows, bands, frames), float32, of windows of samples; shorter ones end in
        silence.
        """
        padded = np.zeros((len(windows), self.samples), dtype=np.float32)
        for row, window in zip(padded, windows, strict=True):
            row[: len(window)] = window[: self.samples]
        samples = torch.from_numpy(padded).to(self.window.device)
        spectrum = torch.stft(
            samples, self.fourier, self.hop, window=self.window, return_complex=True
        )
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        bands = (self.filters @ power).clamp(min=FLOOR).log10()
        return (torch.maximum(bands, bands.amax(dim=(1, 2), keepdim=True) - RANGE) + 4.0) / 4.0
