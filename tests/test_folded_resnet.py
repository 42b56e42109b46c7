"""The folded network against pyannote's: every frame, every embedding, and how much is computed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.audio.models.embedding.wespeaker.resnet import BasicBlock, Bottleneck, ResNet

from tests.helpers.calls import calls_of
from whosaid.diarization import embeddings
from whosaid.diarization.embeddings import SPAN, FoldedEmbedding, FoldedResNet

BANDS = 16


def normalised_at_random(network):
    """In evaluation mode, with no statistic or factor at its initial 0 or 1."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, 0, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.2)
    return network.eval().requires_grad_(False)


def small(block, numbers=(2, 2, 1, 1)):
    return normalised_at_random(ResNet(block, list(numbers), m_channels=8, feat_dim=BANDS))


def close(ours, stock):
    np.testing.assert_allclose(ours, stock, rtol=1e-3, atol=2e-5 * float(stock.abs().max()))


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def with_onednn(request, monkeypatch):
    if request.param and not embeddings.HAS_ONEDNN:
        pytest.skip("torch was built without oneDNN or MKL")
    monkeypatch.setattr(embeddings, "HAS_ONEDNN", request.param)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize(("windows", "frames"), [(3, 200), (2, 77), (1, 1)])
@pytest.mark.usefixtures("with_onednn")
def test_frames_equal_pyannotes(block, windows, frames):
    network = small(block)
    features = torch.randn(windows, frames, BANDS)
    given_features = features.clone()
    stock = network.forward_frames(features.clone())
    ours = FoldedResNet(network)(features)
    assert ours.shape == stock.shape
    close(ours, stock)
    assert torch.equal(features, given_features)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.usefixtures("with_onednn")
def test_a_stretch_of_frames_equals_that_of_all(block):
    network = small(block)
    folded = FoldedResNet(network)
    features = torch.randn(1, 998, BANDS)
    stock = network.forward_frames(features.clone())
    assert folded.stride == 8
    for first, last in [(0, 0), (0, 124), (124, 124), (31, 32), (40, 90), (100, 124), (0, 60)]:
        close(folded.frames(features, first, last), stock[..., first : last + 1])


def test_a_frame_depends_on_features_within_reach_alone():
    folded = FoldedResNet(small(BasicBlock))
    features = torch.randn(1, 600, BANDS)
    at = 37
    near, far = features.clone(), features.clone()
    far[:, : at * folded.stride - folded.reach] += 1
    far[:, at * folded.stride + folded.reach + 1 :] += 1
    assert torch.equal(folded(far)[..., at], folded(features)[..., at])
    near[:, at * folded.stride - folded.reach] += 1e3
    near[:, at * folded.stride + folded.reach] += 1e3
    assert not torch.equal(folded(near)[..., at], folded(features)[..., at])


@pytest.fixture(scope="module")
def published():
    """The published network, with random weights: (model, its folded embedding)."""
    torch.manual_seed(0)
    model = normalised_at_random(WeSpeakerResNet34())
    return model, FoldedEmbedding(model, torch.float32)


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_embeddings_under_masks_equal_pyannotes(published, seed, start, stop):
    model, folded = published
    rng = np.random.default_rng(seed)
    waveforms = torch.from_numpy(rng.normal(0, 0.1, (1, 1, 4 * 16_000)).astype(np.float32))
    masks = torch.from_numpy((rng.random((1, 3, 235)) < 0.7).astype(np.float32))
    first, last = sorted((round(start * 235), round(stop * 235)))
    masks[:, :, :first] = masks[:, :, last:] = 0
    with torch.inference_mode():
        stock = model.forward_embedding(model.forward_frames(waveforms), masks)
        close(folded(waveforms, masks), stock)


def test_no_more_is_computed_than_frames_that_masks_ask_for(published, monkeypatch):
    model, folded = published
    network, passes = FoldedResNet(model.resnet), calls_of(monkeypatch, FoldedResNet, "__call__")
    waveforms, features = torch.randn(1, 1, 160_000), 998
    for first, last in [(0, 589), (0, 60), (200, 260), (588, 589), (0, 0)]:
        masks = torch.zeros(1, 3, 589)
        masks[0, 1, first:last] = 1
        folded(waveforms, masks)
        computed = [given.shape[1] for _, given in passes]
        asked = (last - first) / 589 * features
        assert computed[-1] <= min(features, asked + 2 * (network.reach + network.stride + SPAN))
    assert computed[0] == features
    assert computed[2] < 0.6 * features
