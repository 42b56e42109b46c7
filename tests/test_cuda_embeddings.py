"""pyannote's embedding network on an emulated CUDA device: nothing is computed in another place."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda_emulator import emulated_cuda, module_on_cuda
from pyannote.audio import Audio
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.core import SlidingWindow, SlidingWindowFeature

from whosaid.diarization.embeddings import WindowEmbeddings

BATCH, RATE, SECONDS, FRAMES = 2, 16_000, 2.0, 118


@pytest.fixture
def device(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        yield device


def pipeline_of(model):
    """The parts of a SpeakerDiarization that its `get_embeddings` uses."""
    embedding = SimpleNamespace(
        device=torch.device("cuda"), model_=model, sample_rate=RATE, min_num_samples=400
    )
    return SimpleNamespace(
        embedding_batch_size=BATCH,
        _embedding=embedding,
        _segmentation=SimpleNamespace(duration=SECONDS),
        _audio=Audio(RATE, mono="downmix"),
    )


def test_windows_are_embedded_a_batch_at_a_time_on_the_device(device):
    model = WeSpeakerResNet34().eval()
    module_on_cuda(model)
    sizes = []
    forward = model.resnet.forward_frames
    model.resnet.forward_frames = lambda features: (
        sizes.append((*features.shape, features.device.type, features.dtype)) or forward(features)
    )
    ours = WindowEmbeddings(pipeline_of(model), model)
    del sizes[:]
    windows = 2 * BATCH + 1
    activity = SlidingWindowFeature(
        np.ones((windows, FRAMES, 3), np.float32), SlidingWindow(duration=SECONDS, step=1.0)
    )
    samples = torch.zeros(1, round((windows + SECONDS) * RATE))
    found = ours({"waveform": samples, "sample_rate": RATE}, activity, exclude_overlap=True)
    assert found.shape == (windows, 3, 256)
    assert sizes == [(each, 198, 80, "cuda", torch.float32) for each in (BATCH, BATCH, 1)]
