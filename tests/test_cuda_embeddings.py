"""pyannote's embedding network on an emulated CUDA device: nothing is computed in another place."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pyannote.audio import Audio
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.audio.models.embedding.wespeaker.resnet import BasicBlock, ResNet
from pyannote.core import Annotation, SlidingWindow, SlidingWindowFeature

from tests.helpers.cuda_emulator import emulated_cuda, module_on_cuda
from whosaid.diarization.embeddings import FoldedEmbedding, FoldedResNet, WindowEmbeddings
from whosaid.diarization.pyannote import PyannoteDiarizer
from whosaid.diarization.thread import warm_up

BATCH, RATE, SECONDS, FRAMES = 4, 16_000, 2.0, 118


@pytest.fixture
def device(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        yield device


def pipeline_of(model):
    """The parts of a SpeakerDiarization that its `get_embeddings` uses."""
    embedding = SimpleNamespace(
        device=torch.device("cuda"), model_=model, sample_rate=RATE, min_num_samples=400
    )
    audio, segmentation = Audio(RATE, mono="downmix"), SimpleNamespace(duration=SECONDS)
    parts = {"_embedding": embedding, "_segmentation": segmentation, "_audio": audio}
    return SimpleNamespace(embedding_batch_size=BATCH, **parts)


def network_on_cuda(range_=1.0):
    torch.manual_seed(0)
    model = WeSpeakerResNet34()
    sizes = {"m_channels": 8, "feat_dim": 80, "embed_dim": 256}
    model.resnet = ResNet(BasicBlock, [1, 1, 1, 1], **sizes, two_emb_layer=False)
    model.eval()
    with torch.no_grad():
        model.resnet.bn1.weight.mul_(range_)
    module_on_cuda(model)
    return model


def embed(ours, windows=2 * BATCH - 1):
    active = np.ones((windows, FRAMES, 3), np.float32)
    activity = SlidingWindowFeature(active, SlidingWindow(duration=SECONDS, step=1.0))
    samples = torch.zeros(1, round((windows + SECONDS) * RATE))
    found = ours({"waveform": samples, "sample_rate": RATE}, activity, exclude_overlap=True)
    assert found.shape == (windows, 3, 256)


@pytest.mark.parametrize("range_", [1.0, 1e6], ids=["float16", "beyond float16"])
def test_windows_are_embedded_in_batches_on_the_device(device, monkeypatch, range_):
    """The network runs in float16 unless its values exceed it; batches are padded."""
    model, sizes = network_on_cuda(range_), []

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
    embed(ours)
    half, single = torch.float16, torch.float32
    later = half if range_ == 1 else single
    dtypes = [half, single, later, later]  # the first batch in both
    assert sizes == [(BATCH, 198, 80, "cuda", each) for each in dtypes]


def test_speech_that_float16_embeds_otherwise_is_embedded_in_float32(device, monkeypatch, caplog):
    ours, calls = WindowEmbeddings(pipeline_of(network_on_cuda())), []

    def wrong(self, waveforms, masks):
        calls.append(len(waveforms))
        return torch.randn(*masks.shape[:2], 256).to(masks.device)

    monkeypatch.setattr(FoldedEmbedding, "__call__", wrong)
    embed(ours)
    assert calls == [BATCH]
    assert "speakers are embedded in float32" in caplog.text


def test_the_warm_up_prepares_each_padded_size_that_fits(device, monkeypatch):
    parts, segmented, embedded = vars(pipeline_of(network_on_cuda())), [], []
    pipeline = Mock(**parts, return_value=Annotation())

    def infer(chunks):
        if len(chunks) > 2 * BATCH:
            raise MemoryError
        segmented.append(len(chunks))

    pipeline._segmentation.infer = infer
    pipeline.get_embeddings = ours = WindowEmbeddings(pipeline)
    monkeypatch.setattr(ours, "_max_batch", BATCH)
    monkeypatch.setattr(ours, "_embed", lambda waveforms, _: embedded.append(len(waveforms)))
    diarizer = PyannoteDiarizer(pipeline, 4 * BATCH, torch.cuda.Stream())
    for _ in range(2):
        warm_up(diarizer)
    assert (segmented, embedded) == ([8, 4, 2, 1], [4, 2, 1])
