"""Reads the weights of an ONNX file, and which operator takes which, as bytes and arrays.

No library of ONNX is needed, and nothing in a file can run. The file is one protobuf message; the
numbers of its fields are those of `onnx.proto` (ModelProto, GraphProto, NodeProto, TensorProto).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

GRAPH = 7
NODES, INITIALIZERS = 1, 5
INPUTS, OPERATOR = 1, 4
SHAPE, KIND, NAME, VALUES = 1, 2, 8, 9
FLOAT32 = 1  # of the kinds of tensors
VARINT, DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}  # by wire type


@dataclass(frozen=True, slots=True)
class Graph:
    """What is computed, an operator after the other, and the float32 weights by their names.

    `nodes` are pairs of an operator's name and the names of its inputs, in the order of the file.
    """

    nodes: tuple[tuple[str, tuple[str, ...]], ...]
    weights: Mapping[str, Array]

    def inputs(self, operator: str) -> list[tuple[str, ...]]:
        """The inputs of each node of that operator, in order."""
        return [inputs for name, inputs in self.nodes if name == operator]


def read_graph(data: bytes) -> Graph:
    """The graph of an ONNX file. Raises ValueError where it is none, or cut short."""
    try:
        graph = _fields(_bytes(_fields(memoryview(data))[GRAPH][-1]))
        nodes = tuple(_node(_bytes(each)) for each in graph[NODES])
        tensors = [_fields(_bytes(each)) for each in graph[INITIALIZERS]]
        floats = [tensor for tensor in tensors if tensor[KIND][-1:] == [FLOAT32]]
        return Graph(nodes, dict(_weight(tensor) for tensor in floats))
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise ValueError("this is no ONNX file, or it is cut short") from error


Value = int | memoryview


def _node(data: memoryview) -> tuple[str, tuple[str, ...]]:
    fields = _fields(data)
    return _text(fields[OPERATOR][-1]), tuple(map(_text, fields[INPUTS]))


def _weight(tensor: Mapping[int, list[Value]]) -> tuple[str, Array]:
    values = np.frombuffer(_bytes(tensor[VALUES][-1]), np.dtype("<f4"))
    shape = [each for each in tensor[SHAPE] if isinstance(each, int)]
    return _text(tensor[NAME][-1]), values.reshape(shape)


def _text(value: Value) -> str:
    return bytes(_bytes(value)).decode()


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise struct.error("a number where bytes should be")
    return value


def _fields(data: memoryview) -> defaultdict[int, list[Value]]:
    """The values of a message by the number of their field."""
    found: defaultdict[int, list[Value]] = defaultdict(list)
    for number, value in _read(data):
        found[number].append(value)
    return found


def _read(data: memoryview) -> Iterator[tuple[int, Value]]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire != DELIMITED and wire not in FIXED_BYTES:
            raise struct.error(f"wire type {wire}")
        size, place = _varint(data, place) if wire == DELIMITED else (FIXED_BYTES[wire], place)
        if place + size > len(data):
            raise struct.error(f"{size} bytes wanted")
        yield number, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
