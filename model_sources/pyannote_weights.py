"""The two networks of pyannote's pipelines out of ONNX exports of them, as tensors by pyannote's
names, and what else pyannote has to know to build them.

Everything is arrays and names here, so that what is written does not depend on which release of
torch or pyannote.audio is installed. A network is `pyannote.audio.models.segmentation.PyanNet`, or
`pyannote.audio.models.embedding.WeSpeakerResNet34`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_sources.onnx_weights import Array, Graph
from timebase import SAMPLE_RATE

Tensors = dict[str, NDArray[Any]]

# What `diarization.pyannote` reads beside the tensors; from pyannote/segmentation-3.0's checkpoint.
SEGMENTATION = {
    "architecture": "PyanNet",
    "hyperparameters": {
        "sample_rate": SAMPLE_RATE,
        "num_channels": 1,
        "sincnet": {"stride": 10},
        "lstm": {
            "hidden_size": 128,
            "num_layers": 4,
            "bidirectional": True,
            "monolithic": True,
            "dropout": 0.5,
        },
        "linear": {"hidden_size": 128, "num_layers": 2},
    },
    "specifications": {
        "problem": "MONO_LABEL_CLASSIFICATION",
        "resolution": "FRAME",
        "duration": 10.0,
        "warm_up": [0.0, 0.0],
        "classes": ["speaker#1", "speaker#2", "speaker#3"],
        "powerset_max_classes": 2,
        "permutation_invariant": True,
    },
}
# WeSpeaker's features are pyannote's defaults.
EMBEDDING = {
    "architecture": "WeSpeakerResNet34",
    "hyperparameters": {"sample_rate": SAMPLE_RATE, "num_channels": 1, "num_mel_bins": 80},
    "specifications": {"problem": "REPRESENTATION", "resolution": "CHUNK", "duration": 5.0},
}

FILTERS = "/sincnet/conv1d.0/Concat_2_output_0"  # the exporter's name of what it computed
FILTERBANK = "sincnet.conv1d.0.filterbank"
HALF, SAMPLES = 125, 251  # of SincNet's filters
LOWEST = np.float32(50)  # Hz; the least lower edge, and the least width
STEPS = 10  # of Gauss-Newton; four suffice
# Blocks in each layer of a ResNet34 (He et al., CVPR 2016).
BLOCKS = (3, 4, 6, 3)
NORM_EPSILON = 1e-5


def segmentation_tensors(graph: Graph) -> Tensors:
    """The `state_dict` of a PyanNet. Raises ValueError where the graph is of another network.

    ONNX has an LSTM's gates in another order than torch: input, output, forget, cell.
    """
    with _weights_of("a PyanNet"):
        weights = graph.weights
        tensors: Tensors = {
            name: weights[name]
            for name in weights
            if name.startswith(("sincnet.", "linear.", "classifier."))
        }
        tensors |= _filterbank(weights[FILTERS][:, 0])
        for layer, (_, wih, whh, biases, *_) in enumerate(graph.inputs("LSTM")):
            for direction, suffix in enumerate(("", "_reverse")):
                end = f"l{layer}{suffix}"
                both = np.split(weights[biases][direction], 2)
                tensors[f"lstm.weight_ih_{end}"] = _gates(weights[wih][direction])
                tensors[f"lstm.weight_hh_{end}"] = _gates(weights[whh][direction])
                tensors[f"lstm.bias_ih_{end}"], tensors[f"lstm.bias_hh_{end}"] = map(_gates, both)
        *linear, (_, classifier) = graph.inputs("MatMul")
        for number, (_, name) in enumerate(linear):
            tensors[f"linear.{number}.weight"] = weights[name].T
        tensors["classifier.weight"] = weights[classifier].T
    return _contiguous(tensors)


def embedding_tensors(graph: Graph) -> Tensors:
    """The `state_dict` of a WeSpeakerResNet34. Raises ValueError where it is another network.

    The export merged each batch normalisation into the convolution before it, so that here one does
    nothing but add the bias. A mean that it subtracts at the end goes into the last bias.
    """
    with _weights_of("a WeSpeaker ResNet34"):
        weights, tensors = graph.weights, {}
        names = _convolutions()
        for (convolution, norm), (_, weight, bias) in zip(names, graph.inputs("Conv"), strict=True):
            tensors[f"resnet.{convolution}.weight"] = weights[weight]
            tensors |= {f"resnet.{norm}.{name}": each for name, each in _norm(weights[bias])}
        ((_, weight, bias),) = graph.inputs("Gemm")
        mean = weights[graph.inputs("Sub")[-1][1]]
        tensors["resnet.seg_1.weight"] = weights[weight]
        tensors["resnet.seg_1.bias"] = weights[bias] - mean
    return _contiguous(tensors)


@contextmanager
def _weights_of(network: str) -> Iterator[None]:
    """What is missing in the block, or has another shape, means that the graph is another's."""
    try:
        yield
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"these are not the weights of {network}: {error}") from error


def _gates(rows: Array) -> Array:
    """Rows of the gates in torch's order: input, forget, cell, output."""
    entry, out, forget, cell = np.split(rows, 4)
    return np.concatenate([entry, forget, cell, out])


def _convolutions() -> list[tuple[str, str]]:
    """The names of each convolution and of the normalisation after it, in the order in which they
    are computed. The first block of every layer but the first has a shortcut.
    """
    names = [("conv1", "bn1")]
    for layer, blocks in enumerate(BLOCKS, 1):
        for block in range(blocks):
            place = f"layer{layer}.{block}"
            names += [(f"{place}.conv{number}", f"{place}.bn{number}") for number in (1, 2)]
            if layer > 1 and block == 0:
                names.append((f"{place}.shortcut.0", f"{place}.shortcut.1"))
    return names


def _norm(bias: Array) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "weight", np.ones_like(bias)
    yield "bias", bias
    yield "running_mean", np.zeros_like(bias)
    yield "running_var", np.full_like(bias, 1 - NORM_EPSILON)
    yield "num_batches_tracked", np.array(0, np.int64)


def _filterbank(filters: Array) -> Tensors:
    """The parameters of SincNet's filters (80, 251), which the export has in place of them."""
    seconds = np.arange(-HALF, 0, dtype=np.float32) / np.float32(SAMPLE_RATE)
    times: Array = np.multiply(seconds, 2 * np.pi, dtype=np.float32)
    window = np.hamming(SAMPLES)[:HALF].astype(np.float32)
    low, high = band_edges(filters, times, window)
    tensors = {
        "low_hz_": (low - LOWEST)[:, None],
        "band_hz_": (high - (low + LOWEST))[:, None],
        "n_": times[None],
        "window_": window,
    }
    return {f"{FILTERBANK}.{name}": each for name, each in tensors.items()}


def band_edges(filters: Array, times: Array, window: Array) -> tuple[Array, Array]:
    """The lower and upper edges, Hz, of SincNet's filters: even ones, then the odd ones.

    Ravanelli and Bengio, SLT 2018. Before `times` 0 a filter and its odd partner, freed of the
    window, are the imaginary and the negative real part of
    (exp(i high t) - exp(i low t)) / (2 (high - low)). The two edges are fitted to all of it, which
    finds float32 parameters to a fraction of their last digit; the published ones are exact.
    """
    t = times.astype(np.float64)
    even, odd = np.split(filters[:, : len(t)] * (t / 2 / window), 2)
    found = (1j * even - odd).astype(np.complex128)
    # Between two samples the phase turns by the middle of the band; between four and eight the
    # size falls by the cosine of half its width.
    step = float(t[-1] - t[-2])
    middle = np.angle(found[:, -1] / found[:, -2]) / step
    size = np.abs(found)
    width = 2 * np.arccos(np.clip(size[:, -8] / size[:, -4] / 2, 0, 1)) / (4 * step)
    edges = np.stack([middle - width / 2, middle + width / 2], axis=1)
    for _ in range(STEPS):
        edges += _correction(edges, found, t)
    low, high = edges.T.astype(np.float32)
    return low, high


def _correction(
    edges: NDArray[np.float64], found: NDArray[np.complex128], t: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One step of Gauss-Newton for each filter: (filters, 2)."""
    waves = np.exp(1j * edges[:, :, None] * t)  # (filters, 2, samples)
    width = (edges[:, 1] - edges[:, 0])[:, None]
    modelled = (waves[:, 1] - waves[:, 0]) / (2 * width)
    slopes = 1j * t * waves / (2 * width[:, None])
    slopes[:, 0] = modelled / width - slopes[:, 0]
    slopes[:, 1] -= modelled / width
    products = np.einsum("fat,fbt->fab", slopes.conj(), slopes).real
    errors = np.einsum("fat,ft->fa", slopes.conj(), found - modelled).real
    return np.linalg.solve(products, errors[:, :, None])[:, :, 0]


def _contiguous(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    return {name: np.array(each, order="C") for name, each in tensors.items()}
