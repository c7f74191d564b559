"""Layers over time as ONNX operators.   T time steps, B rows, H hidden units; rows (T B, ...) as in net/fold.py.

(graph, layer, names of the sources) -> name of the output, as in export/onnx.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from singa_dask import layers as kinds
from singa_dask.export.onnx_graph import Carried, OnnxGraph, as_onnx
from singa_dask.job.job_pb2 import EmbeddingProto
from singa_dask.layers import Layer

# The ONNX operator and its order of gates.
_CELLS: dict[type[Layer], tuple[str, tuple[str, ...]]] = {
    kinds.RNN: ("RNN", ("",)),
    kinds.GRU: ("GRU", ("z", "r", "c")),
    kinds.LSTM: ("LSTM", ("i", "o", "f", "g")),
}


def frame(graph: OnnxGraph, layer: Layer, x: str) -> str:
    """(B, T, ...) -> (T B, ...)."""
    if type(layer) is not kinds.Frame:
        hint = "Export a layer that does not depend on it. Labels of a loss are not exported."
        raise layer.problem("reads the next symbols, which are not an input of a model", type(layer).__name__, hint)
    sample = as_onnx(graph.net.shapes[layer.name])
    turned = graph.add("Transpose", [x], perm=[1, 0, *range(2, len(graph.net.source_shape(layer.name, 0)) + 1)])
    return graph.reshape(turned, sample)


def last_step(graph: OnnxGraph, layer: Layer, x: str, lengths: str | None = None) -> str:
    """(T B, ...) -> (B, ...)."""
    _refuse_lengths(layer, lengths)
    steps = graph.by_step(x, as_onnx(graph.net.shapes[layer.name]))
    return graph.add("Gather", [steps, graph.constant("last", np.int64(-1))], axis=0)


def all_steps(graph: OnnxGraph, layer: Layer, x: str) -> str:
    """(T B, ...) -> (B, T, ...)."""
    shape = as_onnx(graph.net.shapes[layer.name][1:])
    return graph.add("Transpose", [graph.by_step(x, shape)], perm=[1, 0, *range(2, len(shape) + 2)])


def _refuse_lengths(layer: Layer, lengths: str | None) -> None:
    if lengths is not None:
        hint = "Build the net without store_conf.lengths, for sequences of one length."
        raise layer.problem("reads the last steps of sequences of different lengths, which is not exported", hint=hint)


def reverse(graph: OnnxGraph, layer: Layer, x: str, lengths: str | None = None) -> str:
    """(T B, ...), the last step first."""
    _refuse_lengths(layer, lengths)
    shape = as_onnx(graph.net.shapes[layer.name])
    bounds = {"from_last": -1, "to_first": np.iinfo(np.int64).min, "along_steps": 0, "backwards": -1}
    names = [graph.constant(name, np.array([value], np.int64)) for name, value in bounds.items()]
    return graph.reshape(graph.add("Slice", [graph.by_step(x, shape), *names]), shape)


def one_hot(graph: OnnxGraph, layer: Any, x: str) -> str:
    """(T B, 1) symbols -> (T B, V)."""
    size = graph.constant(f"{layer.name}.depth", np.int64(layer.conf.vocab_size))
    values = graph.constant("off_on", np.array([0, 1], np.float32))
    return graph.add("OneHot", [_symbols(graph, x), size, values], axis=-1)


def embedding(graph: OnnxGraph, layer: Any, x: str) -> str:
    """(T B, 1) symbols -> (T B, D); of several symbols of a sample a sequence, or its sum or mean."""
    count, conf, kept = prod(graph.net.source_shape(layer.name, 0)), layer.conf, None
    symbols, (table,) = _symbols(graph, x, (count,) * (count > 1)), graph.parameter(layer.table)
    if conf.HasField("padding_idx"):
        kept = np.arange(conf.vocab_size)[:, None] != conf.padding_idx
        table = graph.constant(
            f"{layer.name}.table", graph.net.ops.to_host(layer.table.value) * kept.astype("float32")
        )
    y = graph.add("Gather", [table, symbols], axis=0)
    if not conf.pool or count == 1:
        return y
    total = graph.add("ReduceSum", [y, graph.constant("symbols_axis", np.array([1], np.int64))], keepdims=0)
    if conf.pool == EmbeddingProto.SUM:
        return total
    number = graph.constant(f"of_{count}", np.float32(count))
    if kept is not None:
        marks = graph.add("Gather", [graph.constant(f"{layer.name}.kept", kept.astype(np.float32)), symbols], axis=0)
        number = graph.add("ReduceSum", [marks, graph.constant("symbols_axis", np.array([1], np.int64))], keepdims=0)
        number = graph.add("Max", [number, graph.constant("of_1", np.float32(1))])
    return graph.add("Div", [total, number])


def _symbols(graph: OnnxGraph, x: str, shape: tuple[int, ...] = ()) -> str:
    from onnx import TensorProto

    return graph.add("Cast", [graph.reshape(x, shape)], to=TensorProto.INT64)


def recurrent(graph: OnnxGraph, layer: Any, x: str, given: str | None = None) -> str:
    """(T B, ...) -> (T B, H). given: the initial state (B, H); otherwise it is an input and output of the model."""
    op, order = _CELLS[type(layer)]
    if layer.returned > 1:
        raise layer.problem("gives its cell at every time step, which ONNX has no operator for", "return_cell: true")
    shape, name, units = graph.net.source_shape(layer.name, 0), layer.name, layer.conf.dim_hidden
    places = [layer.gates.index(gate) for gate in order]

    def stacked(params: list[Any]) -> np.ndarray:
        return np.concatenate([graph.net.ops.to_host(params[k].value) for k in places]).astype(np.float32)[None]

    weights = [stacked(layer.input_weights), stacked(layer.state_weights)]
    if layer.biases:
        bias = stacked(layer.biases)
        weights.append(np.concatenate([bias, np.zeros_like(bias)], axis=1))
    inputs = [graph.by_step(graph.flat(x, shape), (prod(shape),))]
    inputs += [graph.constant(f"{name}.{key}", array) for key, array in zip("WRB", weights, strict=False)]
    inputs += [""] * (5 - len(inputs))  # no biases; sequences of one length
    carried = layer.carried if given is None else ()
    before = [_before(graph, f"{name}.{array}", units) for array in carried]
    if given is not None:
        parts = graph.net.source_shape(layer.name, 1)[0] // units
        arrays = graph.add_several("Split", [given], parts, axis=1) if parts > 1 else [given]
        before = [graph.add("Unsqueeze", [array, _first_axis(graph)]) for array in arrays]
    options = {"linear_before_reset": 1} if op == "GRU" else {}
    y, *after = graph.add_several(op, [*inputs, *before], 1 + len(layer.carried), hidden_size=units, **options)
    for array, tensor in zip(carried, after, strict=False):
        last = graph.add("Squeeze", [tensor, _first_axis(graph)])
        graph.carried.append(Carried(f"{name}.{array}_out", last, (units,)))
    return graph.reshape(y, (units,))


def _before(graph: OnnxGraph, name: str, units: int) -> str:
    """The initial state (1, B, H): an optional input (B, H), zero by default."""
    zero = np.zeros((1, units), np.float32)
    return graph.add("Expand", [graph.take(name, ["batch_or_1", units], value=zero), graph.dims(1, (units,))])


def _first_axis(graph: OnnxGraph) -> str:
    return graph.constant("first_axis", np.array([0], np.int64))
