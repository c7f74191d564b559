"""Layers that relate positions, as ONNX operators.   As in layers/attention.py, whose names of sizes they have.

(graph, layer, names of the sources) -> name of the output, as in export/onnx.py.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

from singa_dask.export.onnx_graph import OnnxGraph


def attention(graph: OnnxGraph, layer: Any, x: str, *others: str) -> str:
    """Rows (T B, C), for any T, or images; to itself or a memory, of which some positions count."""
    net, (heads, size, _) = graph.net, layer.output_weight.shape
    shape, name = net.source_shape(layer.name, 0), layer.name
    in_sample, channels = len(shape) > 1, shape[-1]
    order, back = ((0, 2, 1, 3),) * 2 if in_sample else ((1, 2, 0, 3), (2, 0, 1, 3))

    def host(param: Any, *shape: int) -> np.ndarray | None:
        return None if param is None else np.asarray(net.ops.to_host(param.value), np.float32).reshape(shape)

    def rows_of(tensor: str, shape: Any) -> str:
        rows = graph.channels_last(tensor, shape)
        return graph.reshape(rows, (prod(shape[:-1]), channels)) if in_sample else graph.by_step(rows, (channels,))

    def product(rows: str, role: str, array: np.ndarray | None, bias: np.ndarray | None) -> str:
        y = graph.add("MatMul", [rows, graph.constant(f"{name}.{role}", array)])
        return y if bias is None else graph.add("Add", [y, graph.constant(f"{name}.{role}_bias", bias)])

    rows = read = rows_of(x, shape)
    if layer.has_memory:
        read = rows_of(others[0], net.source_shape(layer.name, 1))
    weight, bias = host(layer.weight, channels, -1, size), host(layer.bias, -1, size)
    assert weight is not None
    share, parts = (weight.shape[1] - heads) // 2, []
    for role, source, first, count in (
        ("q", rows, 0, heads),
        ("k", read, heads, share),
        ("v", read, heads + share, share),
    ):
        own = slice(first, first + count)
        flat = None if bias is None else bias[own].reshape(-1)
        part = product(source, role, weight[:, own].reshape(channels, -1), flat)
        by_head = graph.constant(f"by_head_{count}x{size}", np.array([0, 0, count, size], np.int64))
        part = graph.add("Transpose", [graph.add("Reshape", [part, by_head])], perm=order)
        if layer.conf.rotary and role != "v":
            part = _turned(graph, layer, part, size)
        if count < heads:
            places = np.arange(count).repeat(heads // count)
            part = graph.add("Gather", [part, graph.constant(f"shared_{count}_{heads}", places)], axis=1)
        parts.append(part)
    queries, keys, values = parts
    scores = graph.add("MatMul", [queries, graph.add("Transpose", [keys], perm=(0, 1, 3, 2))])
    scores = graph.add("Div", [scores, graph.constant(f"root_{size}", np.float32(sqrt(size)))])
    if layer.conf.causal:
        scores = graph.add("Add", [scores, _later(graph, scores)])
    if len(others) > layer.has_memory:
        scores = _counted(graph, layer, scores, others[-1])
    mixed = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), values])
    mixed = graph.reshape(graph.add("Transpose", [mixed], perm=back), (channels,))
    y = product(mixed, "output", host(layer.output_weight, channels, channels), host(layer.output_bias, channels))
    return y if not in_sample else graph.channels_first(graph.reshape(y, shape), shape)


def _positions(graph: OnnxGraph, tensor: str, axis: int) -> str:
    """0, 1, 2, ... along an axis of a tensor."""
    size = graph.add("Squeeze", [graph.add("Shape", [tensor], start=axis, end=axis + 1)])
    ends = [graph.constant(f"number_{i}", np.int64(i)) for i in (0, 1)]
    return graph.add("Range", [ends[0], size, ends[1]])


def _turned(graph: OnnxGraph, layer: Any, x: str, size: int) -> str:
    """q or k (B, N, T, D), turned by the angles of the positions."""
    rates = (layer.conf.rotary_base ** (-2 * np.arange(size // 2) / size)).astype(np.float32)[None]
    numbers = graph.add("Cast", [_positions(graph, x, 2)], to=1)
    column = graph.add("Unsqueeze", [numbers, graph.constant("last_axis", np.array([1], np.int64))])
    angles = graph.add("Mul", [column, graph.constant(f"{layer.name}.rates", rates)])
    cos, sin = graph.add("Cos", [angles]), graph.add("Sin", [angles])
    first, second = graph.add_several("Split", [x], 2, axis=-1)

    def sums(op: str, *pairs: tuple[str, str]) -> str:
        return graph.add(op, [graph.add("Mul", list(pair)) for pair in pairs])

    turned = sums("Sub", (first, cos), (second, sin)), sums("Add", (second, cos), (first, sin))
    return graph.add("Concat", turned, axis=-1)


def _counted(graph: OnnxGraph, layer: Any, scores: str, given: str) -> str:
    """The scores (B, N, T, S), -inf for the positions that do not count.   given: (B, 1) lengths, (B, S) or (S B, 1)
    marks."""
    net, position = graph.net, len(layer.proto.srclayers) - 1
    if net.layers[layer.proto.srclayers[position]].output_steps > 1:
        seen = graph.add("Transpose", [graph.add("Reshape", [given, graph.dims(-1, ())])], perm=(1, 0))
        seen = graph.add("Cast", [seen], to=9)
    elif prod(net.source_shape(layer.name, position)) > 1:
        seen = graph.add("Cast", [given], to=9)
    else:
        numbers = graph.add("Cast", [_positions(graph, scores, 3)], to=1)
        seen = graph.add("Less", [numbers, given])
    axes = graph.constant("heads_and_positions", np.array([1, 2], np.int64))
    hidden = graph.constant("hidden", np.float32(-np.inf))
    return graph.add("Where", [graph.add("Unsqueeze", [seen, axes]), scores, hidden])


def _later(graph: OnnxGraph, scores: str) -> str:
    """(T, T): -inf above the diagonal, else 0."""
    sizes = graph.add("Shape", [scores], start=2)
    every = graph.add("ConstantOfShape", [sizes], value=_tensor(-np.inf))
    return graph.add("Trilu", [every, graph.constant("above_diagonal", np.int64(1))], upper=1)


def _tensor(value: float) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array([value], np.float32))


def positional_embedding(graph: OnnxGraph, layer: Any, x: str) -> str:
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


def class_token(graph: OnnxGraph, layer: Any, x: str) -> str:
    """The token, then the positions (B, T, C)."""
    shape = graph.net.source_shape(layer.name, 0)
    rows = graph.reshape(graph.channels_last(x, shape), (prod(shape[:-1]), shape[-1]))
    sizes = graph.add(
        "Concat", [graph.add("Shape", [rows], start=0, end=1), graph.constant("one_one", np.array([1, 1]))], axis=0
    )
    tokens = graph.add("Expand", [*graph.parameter(layer.token), sizes])
    return graph.add("Concat", [tokens, rows], axis=1)


def select(graph: OnnxGraph, layer: Any, x: str, lengths: str | None = None) -> str:
    """One position of (B, T, C)."""
    if lengths is not None:
        raise layer.problem("selects by lengths, which is not exported", hint="Leave the lengths out.")
    shape = graph.net.source_shape(layer.name, 0)
    rows = graph.reshape(graph.channels_last(x, shape), (prod(shape[:-1]), shape[-1]))
    return graph.add("Gather", [rows, graph.constant(f"{layer.name}.index", np.int64(layer.conf.index))], axis=1)
