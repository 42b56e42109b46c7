"""ONNX files as exporters write them, made of the weights of pyannote's networks: what
`model_sources` reads them back from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

Node = tuple[str, tuple[str, ...]]


def varint(value: int) -> bytes:
    written = b""
    while value > 127:
        written += bytes([value & 127 | 128])
        value >>= 7
    return written + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message: a number, or bytes behind their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def onnx_file(nodes: Sequence[Node], weights: Mapping[str, np.ndarray]) -> bytes:
    """A model of float32 weights, with the producer before and the version after its graph."""
    graph = b""
    for operator, inputs in nodes:
        names = b"".join(field(1, name.encode()) for name in inputs)
        graph += field(1, names + field(2, b"out") + field(4, operator.encode()))
    for name, array in weights.items():
        shape = b"".join(field(1, size) for size in array.shape)
        values = array.astype("<f4").tobytes()
        graph += field(5, shape + field(2, 1) + field(8, name.encode()) + field(9, values))
    return field(1, 8) + field(2, b"pytorch") + field(7, graph) + field(8, field(2, 17))


def numpy_weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: each.detach().numpy() for name, each in model.state_dict().items()}


def in_onnx_order(rows: np.ndarray) -> np.ndarray:
    """Rows of an LSTM's gates, which torch has as input, forget, cell, output."""
    entry, forget, cell, out = np.split(rows, 4)
    return np.concatenate([entry, out, forget, cell])


def segmentation_file(model: torch.nn.Module, layers: int) -> bytes:
    """A PyanNet's, with SincNet's filters in place of their parameters."""
    given = numpy_weights(model)
    skipped = ("lstm.", "sincnet.conv1d.0.")
    written = {
        name: each
        for name, each in given.items()
        if not name.startswith(skipped)
        and not (name.endswith("weight") and name.startswith(("linear.", "classifier.")))
    }
    with torch.inference_mode():
        filters = model.sincnet.conv1d[0].filterbank.filters().numpy()
    written["/sincnet/conv1d.0/Concat_2_output_0"] = filters
    nodes: list[Node] = [("InstanceNormalization", ("input_values",))]
    for layer in range(layers):
        parts = []
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            ends = (f"l{layer}", f"l{layer}_reverse")
            parts.append(np.stack([in_onnx_order(given[f"lstm.{kind}_{end}"]) for end in ends]))
        names = [f"onnx::LSTM_{layer}{letter}" for letter in "WRB"]
        arrays = (*parts[:2], np.concatenate(parts[2:], axis=1))
        written |= dict(zip(names, arrays, strict=True))
        nodes.append(("LSTM", ("frames", *names, "", "state", "cell")))
    for name in ("linear.0", "linear.1", "classifier"):
        written[f"onnx::MatMul_{name}"] = given[f"{name}.weight"].T
        nodes += [("MatMul", ("frames", f"onnx::MatMul_{name}")), ("Add", (f"{name}.bias", "out"))]
    return onnx_file(nodes, written)


def embedding_file(model: torch.nn.Module, mean: np.ndarray) -> bytes:
    """A WeSpeakerResNet34's, its normalisations merged into the convolutions; it subtracts `mean`
    from what the model gives.
    """
    nodes: list[Node] = []
    written: dict[str, np.ndarray] = {}

    def merge(convolution: torch.nn.Conv2d, norm: torch.nn.BatchNorm2d) -> None:
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight, bias = f"onnx::Conv_{len(nodes)}", f"onnx::Conv_{len(nodes)}b"
        written[weight] = (convolution.weight * scale[:, None, None, None]).detach().numpy()
        written[bias] = (norm.bias - norm.running_mean * scale).detach().numpy()
        nodes.append(("Conv", ("input", weight, bias)))

    network = model.resnet
    merge(network.conv1, network.bn1)
    for layer in (network.layer1, network.layer2, network.layer3, network.layer4):
        for block in layer:
            merge(block.conv1, block.bn1)
            merge(block.conv2, block.bn2)
            if len(block.shortcut):
                merge(block.shortcut[0], block.shortcut[1])
    last = network.seg_1
    written |= {"model.seg_1.weight": last.weight.detach().numpy(), "mean_vec": mean}
    written["model.seg_1.bias"] = last.bias.detach().numpy()
    nodes += [
        ("Sub", ("frames", "their mean")),
        ("Gemm", ("pooled", "model.seg_1.weight", "model.seg_1.bias")),
        ("Sub", ("last", "mean_vec")),
    ]
    return onnx_file(nodes, written)
