"""pyannote's embedding network on an emulated CUDA device: nothing is computed in another place."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda_emulator import emulated_cuda, module_on_cuda
from pyannote.audio import Audio
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.audio.models.embedding.wespeaker.resnet import BasicBlock, ResNet
from pyannote.core import SlidingWindow, SlidingWindowFeature

from whosaid.diarization.embeddings import FoldedResNet, WindowEmbeddings

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


@pytest.mark.parametrize("range_", [1.0, 1e6], ids=["float16", "beyond float16"])
def test_windows_are_embedded_a_batch_at_a_time_on_the_device(device, monkeypatch, range_):
    """In float16, unless the network's values exceed it."""
    torch.manual_seed(0)
    model = WeSpeakerResNet34()
    model.resnet = ResNet(
        BasicBlock, [1, 1, 1, 1], m_channels=8, feat_dim=80, embed_dim=256, two_emb_layer=False
    )
    model.eval()
    with torch.no_grad():
        model.resnet.bn1.weight.mul_(range_)
    module_on_cuda(model)
    sizes = []

    def watched(forward):
        def watch(*args):
            features = args[-1]
            sizes.append((*features.shape, features.device.type, features.dtype))
            return forward(*args)

        return watch

    monkeypatch.setattr(FoldedResNet, "__call__", watched(FoldedResNet.__call__))
    model.resnet.forward_frames = watched(model.resnet.forward_frames)
    ours = WindowEmbeddings(pipeline_of(model))
    del sizes[:]
    windows = 2 * BATCH + 1
    activity = SlidingWindowFeature(
        np.ones((windows, FRAMES, 3), np.float32), SlidingWindow(duration=SECONDS, step=1.0)
    )
    samples = torch.zeros(1, round((windows + SECONDS) * RATE))
    found = ours({"waveform": samples, "sample_rate": RATE}, activity, exclude_overlap=True)
    assert found.shape == (windows, 3, 256)
    dtype = torch.float16 if range_ == 1 else torch.float32
    assert sizes == [(each, 198, 80, "cuda", dtype) for each in (BATCH, BATCH, 1)]
