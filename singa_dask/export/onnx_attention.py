"""Layers that relate positions, as ONNX operators.   As in layers/attention.py, whose names of sizes they have.

(graph, layer, names of the sources) -> name of the output, as in export/onnx.py.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

from singa_dask.export.onnx_graph import Graph


def attention(graph: Graph, layer: Any, x: str) -> str:
    """Rows (T B, C), for any T, or images."""
    shape, heads = graph.net.source_shape(layer.name, 0), layer.conf.num_heads
    channels, name = shape[-1], layer.name
    size = channels // heads
    rows = graph.channels_last(x, shape)
    if len(shape) > 1:  # (B, T, C)
        rows, order, back = graph.reshape(rows, (prod(shape[:-1]), channels)), (0, 2, 1, 3), (0, 2, 1, 3)
    else:  # (T, B, C)
        rows, order, back = graph.by_step(rows, (channels,)), (1, 2, 0, 3), (2, 0, 1, 3)

    def product(rows: str, role: str, array: np.ndarray, bias: np.ndarray | None) -> str:
        y = graph.add("MatMul", [rows, graph.constant(f"{name}.{role}", array)])
        return y if bias is None else graph.add("Add", [y, graph.constant(f"{name}.{role}_bias", bias)])

    def host(param: Any) -> np.ndarray | None:
        return None if param is None else np.asarray(graph.net.ops.to_host(param.value), np.float32)

    weight, bias = host(layer.weight), host(layer.bias)
    assert weight is not None
    parts = []
    for i, role in enumerate("qkv"):
        own = None if bias is None else bias[i].reshape(-1)
        part = product(rows, role, weight[:, i].reshape(channels, -1), own)
        halves = graph.constant(f"by_head_{heads}x{size}", np.array([0, 0, heads, size], np.int64))
        part = graph.add("Reshape", [part, halves])
        parts.append(graph.add("Transpose", [part], perm=order))
    queries, keys, values = parts
    scores = graph.add("MatMul", [queries, graph.add("Transpose", [keys], perm=(0, 1, 3, 2))])
    scores = graph.add("Div", [scores, graph.constant(f"root_{size}", np.float32(sqrt(size)))])
    if layer.conf.causal:
        scores = graph.add("Add", [scores, _later(graph, scores)])
    mixed = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), values])
    mixed = graph.reshape(graph.add("Transpose", [mixed], perm=back), (channels,))
    output_weight = host(layer.output_weight)
    assert output_weight is not None
    y = product(mixed, "output", output_weight.reshape(channels, -1), host(layer.output_bias))
    return y if len(shape) == 1 else graph.channels_first(graph.reshape(y, shape), shape)


def _later(graph: Graph, scores: str) -> str:
    """(T, T): -inf above the diagonal, else 0."""
    sizes = graph.add("Shape", [scores], start=2)
    every = graph.add("ConstantOfShape", [sizes], value=_tensor(-np.inf))
    return graph.add("Trilu", [every, graph.constant("above_diagonal", np.int64(1))], upper=1)


def _tensor(value: float) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array([value], np.float32))


def positional_embedding(graph: Graph, layer: Any, x: str) -> str:
    """The first T rows of the table, for T up to its length, or all of them for images."""
    ops, shape = graph.net.ops, graph.net.source_shape(layer.name, 0)
    embedding = np.asarray(ops.to_host(layer.embedding(ops)), np.float32)
    if len(shape) > 1:
        image = embedding.reshape(shape)
        image = np.moveaxis(image, -1, -3) if len(shape) >= 3 else image
        return graph.add("Add", [x, graph.constant(f"{layer.name}.table", image)])
    table = graph.constant(f"{layer.name}.table", embedding[:, None])
    steps = graph.by_step(x, shape)
    bounds = [graph.constant("first_row", np.array([0], np.int64)), graph.add("Shape", [steps], start=0, end=1)]
    own = graph.add("Slice", [table, *bounds, bounds[0]])
    return graph.reshape(graph.add("Add", [steps, own]), shape)
