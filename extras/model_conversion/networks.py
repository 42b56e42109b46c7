"""Reads the weights of pyannote's two networks from ONNX exports, by pyannote.audio's names.

The networks are `pyannote.audio.models.segmentation.PyanNet` and
`pyannote.audio.models.embedding.WeSpeakerResNet34`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from whosaid.timebase import SAMPLE_RATE

Array = NDArray[np.float32]
Tensors = dict[str, NDArray[Any]]

FLOAT32 = 1  # TensorProto.DataType
FILTERS = "/sincnet/conv1d.0/Concat_2_output_0"  # SincNet's filters, computed by the exporter
FILTERBANK = "sincnet.conv1d.0.filterbank"
HALF, SAMPLES = 125, 251  # of a filter
LOWEST = np.float32(50)  # Hz; the least lower edge, and the least width
STEPS = 10  # of Gauss-Newton; four suffice
# Blocks in each layer of a ResNet34 (He et al., CVPR 2016).
BLOCKS = (3, 4, 6, 3)
NORM_EPSILON = 1e-5


class Graph:
    """The float32 weights of an ONNX graph by name, and the inputs of its operators in order."""

    def __init__(self, graph: Any) -> None:  # noqa: ANN401
        self._nodes = graph.node
        self.weights: dict[str, Array] = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in graph.initializer
            if tensor.data_type == FLOAT32
        }

    def inputs(self, operator: str) -> list[tuple[str, ...]]:
        return [tuple(node.input) for node in self._nodes if node.op_type == operator]


def segmentation_tensors(graph: Graph) -> Tensors:
    """Return the `state_dict` of the PyanNet."""
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
    """Return the `state_dict` of the WeSpeakerResNet34. The export merged each batch normalisation
    into the convolution before it, so it only adds the bias; the last has the subtracted mean, too.
    """
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


def _gates(rows: Array) -> Array:
    """Reorder an LSTM's gates from ONNX's order (input, output, forget, cell) to torch's."""
    entry, out, forget, cell = np.split(rows, 4)
    return np.concatenate([entry, forget, cell, out])


def _convolutions() -> list[tuple[str, str]]:
    """Return the names of each convolution and its batch normalisation, as computed."""
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
    """Return the parameters of SincNet's filters (80, 251)."""
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
    """Return the lower and upper edges, in Hz, of SincNet's filters: even ones, then odd ones.

    Ravanelli and Bengio, SLT 2018. Before `times` 0, a filter and its odd partner without the
    window are the imaginary and the negative real part of
    (exp(i high t) - exp(i low t)) / (2 (high - low)). Both edges are fitted to that by least
    squares.
    """
    t = times.astype(np.float64)
    even, odd = np.split(filters[:, : len(t)] * (t / 2 / window), 2)
    found = (1j * even - odd).astype(np.complex128)
    # First guess. Between two samples the phase turns by the middle of the band; between four and
    # eight the size falls by the cosine of half the width.
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
    """Return one step of Gauss-Newton for each filter: (filters, 2)."""
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
