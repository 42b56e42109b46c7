"""ONNX files read back as what was written into them, and what is none refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx_files import field, onnx_file

from model_sources.onnx_weights import read_graph

names = st.text(min_size=1, max_size=200)
operators = st.tuples(names, st.lists(names, max_size=4).map(tuple))
weights = st.dictionaries(
    names, arrays.arrays(np.float32, arrays.array_shapes(max_dims=4, max_side=5)), max_size=4
)


@given(st.lists(operators, max_size=5), weights)
def test_what_was_written_is_read(nodes, arrays):
    graph = read_graph(onnx_file(nodes, arrays))
    assert list(graph.nodes) == nodes
    assert graph.weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(graph.weights[name], array)
    assert graph.inputs("Conv") == [inputs for name, inputs in nodes if name == "Conv"]


def test_weights_of_other_types_are_left_out():
    shape = field(1, 1) + field(2, 7) + field(8, b"numbers") + field(9, bytes(8))
    assert read_graph(field(7, field(5, shape))).weights == {}


def test_a_file_that_is_cut_short_is_refused():
    data = onnx_file([("Conv", ("a", "b"))], {"b": np.ones((2, 3), np.float32)})
    end = data.rindex(field(8, field(2, 17)))  # after the graph, which is all that is read
    for length in range(end):
        with pytest.raises(ValueError, match="no ONNX file"):
            read_graph(data[:length])


@pytest.mark.parametrize("data", [b"", b"<html>", b"\xff" * 40, field(7, 5), field(7, field(1, 3))])
def test_what_is_none_is_refused(data):
    with pytest.raises(ValueError, match="no ONNX file"):
        read_graph(data)
