"""Networks out of ONNX files against those that the files were made of: stock pyannote's, with
random weights.
"""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx_files import embedding_file, onnx_file, segmentation_file
from pyannote.audio.models.embedding import WeSpeakerResNet34
from safetensors.numpy import save_file

from diarization.pyannote import load_network
from model_sources.onnx_weights import read_graph
from model_sources.pyannote_weights import (
    EMBEDDING,
    SEGMENTATION,
    band_edges,
    embedding_tensors,
    segmentation_tensors,
)

# As SincNet has them: half of 251 samples at 16 kHz.
TIMES = np.float32(2 * np.pi) * (np.arange(-125, 0, dtype=np.float32) / np.float32(16_000))
WINDOW = np.hamming(251)[:125].astype(np.float32)


@pytest.fixture(scope="module")
def waveforms() -> torch.Tensor:
    return torch.randn(2, 1, 80_000, generator=torch.Generator().manual_seed(0)) / 10


def saved(folder, description, tensors):
    (folder / "config.json").write_text(json.dumps(description))
    save_file(tensors, folder / "model.safetensors")
    return load_network(folder)


def test_segmentation_computes_the_same_bits(random_segmentation, waveforms, tmp_path):
    graph = read_graph(segmentation_file(random_segmentation, layers=4))
    made = saved(tmp_path, SEGMENTATION, segmentation_tensors(graph))
    assert made.specifications == random_segmentation.specifications
    assert dict(made.hparams) == dict(random_segmentation.hparams)
    with torch.inference_mode():
        assert torch.equal(made(waveforms), random_segmentation(waveforms))


def test_embedding_is_the_models_up_to_rounding(waveforms, tmp_path):
    torch.manual_seed(0)
    model = WeSpeakerResNet34().eval()
    for norm in (each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        for values in (norm.bias, norm.running_mean):
            torch.nn.init.normal_(values, std=0.1)
        torch.nn.init.uniform_(norm.running_var, 0.5, 1.5)
    mean = np.random.default_rng(0).normal(size=256).astype(np.float32)
    tensors = embedding_tensors(read_graph(embedding_file(model, mean)))
    made = saved(tmp_path, EMBEDDING, tensors)
    assert dict(made.hparams) == dict(model.hparams)
    with torch.inference_mode():
        expected = model(waveforms) - torch.from_numpy(mean)
        torch.testing.assert_close(made(waveforms), expected, rtol=1e-4, atol=1e-4)


@given(
    st.lists(
        st.tuples(st.floats(1, 7000, width=32), st.floats(1, 800, width=32)),
        min_size=1,
        max_size=8,
    )
)
def test_edges_of_bands_are_found_to_their_last_digit(bands):
    """Filters computed by the formula of the paper, in float64 and rounded; where an edge lies
    between two numbers it may be the other one.
    """
    low = np.array([50 + edge for edge, _ in bands], np.float32)
    high = np.minimum(low + np.float32(50) + np.array([w for _, w in bands], np.float32), 8000)
    t = TIMES.astype(np.float64)
    lower, upper = np.outer(low, t), np.outer(high, t)
    scale = WINDOW / (t / 2) / (2 * (high - low).astype(np.float64))[:, None]
    even = (np.sin(upper) - np.sin(lower)) * scale
    odd = (np.cos(lower) - np.cos(upper)) * scale
    filters = np.concatenate([even, odd]).astype(np.float32)
    found = band_edges(filters, TIMES, WINDOW)
    for edges, true in zip(found, (low, high), strict=True):
        np.testing.assert_array_max_ulp(edges, true, maxulp=2)


@pytest.mark.parametrize("read", [segmentation_tensors, embedding_tensors])
def test_another_network_is_refused(read, random_segmentation):
    nothing = onnx_file([], {})
    other = onnx_file([("Conv", ("x", "w", "b"))], {"w": np.ones(3), "b": np.ones(3)})
    for data in (nothing, other):
        with pytest.raises(ValueError, match="these are not the weights of"):
            read(read_graph(data))


def test_a_layer_too_few_is_refused_by_the_loader(random_segmentation, tmp_path):
    description = copy.deepcopy(SEGMENTATION)
    tensors = segmentation_tensors(read_graph(segmentation_file(random_segmentation, layers=3)))
    with pytest.raises(RuntimeError, match="Missing key"):
        saved(tmp_path, description, tensors)
