"""pyannote's embedding network on a fake CUDA device: batches are large, and nothing is computed in
another place.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_cuda import fake_cuda, to_fake_cuda
from pyannote.audio import Audio
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.core import SlidingWindow, SlidingWindowFeature
from torch._subclasses.fake_tensor import FakeTensor

from whosaid.diarization.embeddings import WindowEmbeddings
from whosaid.diarization.pyannote import GPU_BATCH

RATE, SECONDS, FRAMES = 16_000, 10.0, 589  # a window of pyannote's published pipelines


@pytest.fixture
def device(monkeypatch):
    # What comes back to the host is made up.
    host = lambda each: np.zeros(tuple(each.shape), np.float32)  # noqa: E731
    monkeypatch.setattr(FakeTensor, "numpy", host, raising=False)
    with fake_cuda(monkeypatch) as device:
        yield device


def pipeline_of(model):
    """The parts of a SpeakerDiarization that its `get_embeddings` uses."""
    embedding = SimpleNamespace(
        device=torch.device("cuda"), model_=model, sample_rate=RATE, min_num_samples=400
    )
    return SimpleNamespace(
        embedding_batch_size=GPU_BATCH,
        _embedding=embedding,
        _segmentation=SimpleNamespace(duration=SECONDS),
        _audio=Audio(RATE, mono="downmix"),
    )


def test_windows_are_embedded_a_batch_at_a_time_on_the_device(device):
    model = WeSpeakerResNet34().eval()
    to_fake_cuda(model)
    sizes = []
    forward = model.resnet.forward_frames
    model.resnet.forward_frames = lambda features: (
        sizes.append((*features.shape, features.device.type, features.dtype)) or forward(features)
    )
    ours = WindowEmbeddings(pipeline_of(model), model)
    del sizes[:]
    windows = 2 * GPU_BATCH + 3
    activity = SlidingWindowFeature(
        np.ones((windows, FRAMES, 3), np.float32), SlidingWindow(duration=SECONDS, step=1.0)
    )
    samples = torch.zeros(1, round((windows + SECONDS) * RATE))
    found = ours({"waveform": samples, "sample_rate": RATE}, activity, exclude_overlap=True)
    assert found.shape == (windows, 3, 256)
    assert sizes == [(each, 998, 80, "cuda", torch.float32) for each in (GPU_BATCH, GPU_BATCH, 3)]
