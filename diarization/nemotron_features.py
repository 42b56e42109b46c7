"""The log-mel spectrogram that Nemotron-3-Diarization reads, of any stretch of a recording.

transformers computes it for a whole recording at once, some two gigabytes an hour, and takes its
filters from librosa, which is 200 MB of libraries that nothing else here needs. The numbers are the
same, whatever the stretch: `tests/test_nemotron_diarizer.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers.audio_utils import mel_filter_bank

from errors import StartError
from timebase import SAMPLE_RATE

EXTRACTOR = "NemotronAsrStreamingFeatureExtractor"
DEFAULTS = {
    "feature_extractor_type": EXTRACTOR,
    "feature_size": 80,
    "sampling_rate": SAMPLE_RATE,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
    "mel_filters_dtype": "float32",
}
LOG_OFFSET = 2**-24


@dataclass(frozen=True, slots=True)
class MelFeatures:
    """Frames every `hop_length` samples, each of `n_fft` samples around its place.

    `filters` are (mel bins, frequencies), `window` (win_length,), both float32; `preemphasis` is
    None where there is none.
    """

    filters: torch.Tensor
    window: torch.Tensor
    n_fft: int
    hop_length: int
    preemphasis: float | None

    @classmethod
    def read(cls, name: str, config: Mapping[str, Any]) -> Self:
        """From a checkpoint's configuration of its feature extractor.

        Raises StartError where that is of another kind.
        """
        given = {key: config.get(key, default) for key, default in DEFAULTS.items()}
        if (given["feature_extractor_type"], given["sampling_rate"]) != (EXTRACTOR, SAMPLE_RATE):
            raise StartError(
                f"{name} asks for {given['feature_extractor_type']} at"
                f" {given['sampling_rate']} Hz, not for {EXTRACTOR} at {SAMPLE_RATE}"
            )
        filters = mel_filter_bank(
            num_frequency_bins=given["n_fft"] // 2 + 1,
            num_mel_filters=given["feature_size"],
            min_frequency=0.0,
            max_frequency=SAMPLE_RATE / 2,
            sampling_rate=SAMPLE_RATE,
            norm="slaney",
            mel_scale="slaney",
        )
        # Some checkpoints keep both in a lower precision, and were trained on what that gives.
        dtype: torch.dtype = getattr(torch, given["mel_filters_dtype"])
        return cls(
            torch.from_numpy(filters).T.float().to(dtype).float(),
            torch.hann_window(given["win_length"], periodic=False).to(dtype).float(),
            given["n_fft"],
            given["hop_length"],
            given["preemphasis"],
        )

    @property
    def reach(self) -> int:
        """So many samples before and after a frame's place belong to it."""
        return self.n_fft // 2

    def count(self, samples: torch.Tensor) -> int:
        """How many frames `samples` have."""
        return len(samples) // self.hop_length

    def frames(self, samples: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Those from `first` up to `last` of `samples`, float32 (n,): (last - first, mel bins)."""
        start = first * self.hop_length - self.reach
        end = (last - 1) * self.hop_length + self.reach
        spectrum = torch.stft(
            self._stretch(samples, start, end),
            self.n_fft,
            self.hop_length,
            len(self.window),
            self.window,
            center=False,
            return_complex=True,
        )
        return torch.log(self.filters @ spectrum.abs().square() + LOG_OFFSET).T

    def _stretch(self, samples: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Samples `start` to `end` with their preemphasis, zeros beyond the recording's ends."""
        begins, ends = max(start, 0), min(end, len(samples))
        stretch = samples[begins:ends].clone()
        if self.preemphasis is not None:
            before = samples[max(begins - 1, 0) : ends - 1]
            stretch[len(stretch) - len(before) :] -= self.preemphasis * before
        return torch.nn.functional.pad(stretch, (begins - start, end - ends))
