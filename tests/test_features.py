"""The spectrogram equals that of transformers' feature extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from whosaid.asr.model.encoder import LogMel


@pytest.mark.parametrize("bins", [80, 128])
def test_equal_to_the_feature_extractor_whatever_else_is_in_the_batch(bins):
    extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=2)
    windows = [np.zeros(20_000, np.float32), np.ones(1, np.float32)]
    random = np.random.default_rng(0)
    for length, level in ((32_000, 0.5), (16_001, 0.05), (27_345, 0.2), (20_000, 1e-4)):
        windows.append(random.normal(0, level, length).astype(np.float32))
    together = LogMel(extractor, torch.device("cpu"))(windows)
    for window, features in zip(windows, together, strict=True):
        expected = extractor(window, sampling_rate=16_000, return_tensors="pt").input_features[0]
        torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


def test_samples_beyond_the_window_are_cut_off():
    log_mel = LogMel(WhisperFeatureExtractor(chunk_length=1), torch.device("cpu"))
    samples = np.random.default_rng(0).normal(0, 0.1, 20_000).astype(np.float32)
    assert torch.equal(log_mel([samples]), log_mel([samples[:16_000]]))
