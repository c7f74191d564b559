"""A net with its parameters as an ONNX model (opset 17).

The model takes samples in the units of the data, in the shape that the job declares: channels first. It includes the
normalisation, of samples and back from that of targets, and the evaluation behaviour of the layers. Its inputs are
those on which the outputs depend. A user layer is exported by a method

    def to_onnx(self, graph, *inputs):            # names of ONNX tensors, images as (batch, channels, height, width)
        return graph.add("Relu", inputs)          # the name of its output

A folded net over time (net/fold.py) has inputs and outputs (batch, time, ...), both dimensions free. Inside, as in
to_onnx, rows are ordered by time step. Symbols are int64. A recurrent layer without an initial state in the net
has an optional input "<layer>.h" (batch, units), zero by default, and an output "<layer>.h_out", the final state. A
kLSTM also has "<layer>.cell" and "<layer>.cell_out".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask import layers as kinds
from singa_dask.errors import ConfigError, DataError, Problem, disk_full, nearest, no_room
from singa_dask.export import onnx_attention, onnx_images, onnx_time
from singa_dask.export.onnx_functions import function_node
from singa_dask.export.onnx_graph import OnnxGraph, as_onnx, source_shape
from singa_dask.files import replacing
from singa_dask.job.job_pb2 import GELUProto
from singa_dask.job.unroll import origin
from singa_dask.layers import Layer
from singa_dask.layers.param import Shape
from singa_dask.net import Net, layers_of, units
from singa_dask.ops.activation import ROOT_HALF, STANH_INNER, STANH_OUTER, TANH_CUBE, TANH_SLOPE

if TYPE_CHECKING:
    import onnx

OPSET = 17
TIMED = ("batch", "time")
_DEPTH_AND_CHANNELS = [0, 2, 1, 3, 4]  # volumes in the model are images at several depths


def export(net: Net, outputs: Sequence[str], name: str = "singa_dask") -> onnx.ModelProto:
    """The ONNX model of a net of an evaluation phase. outputs: names of the output layers.

    Raises ConfigError for unknown layers, layers without an ONNX counterpart, and unrolled nets.
    """
    from onnx import checker, helper

    graph = OnnxGraph(net)
    tensors: dict[str, str | list[str]] = {}
    wanted = _needed(net, outputs)
    timed: set[str] = set()  # layers with rows for every time step
    for layer_name, layer in net.layers.items():
        if layer_name not in wanted:
            continue
        if layer_name in net.input_layers:
            tensors[layer_name] = _taken(graph, layer, [net.layers[w] for w in wanted], outputs)
            continue
        tensors[layer_name] = _converter(layer)(graph, layer, *_sources(net, tensors, layer))
        first = next(iter(_features(layer).values()), None)
        if isinstance(layer, kinds.Frame) or (first in timed and layer.output_steps == layer.steps):
            timed.add(layer_name)
    for output in outputs:
        tensor, shape = tensors[output], as_onnx(net.shapes[output])
        rows = tensor if isinstance(tensor, str) else tensor[0]
        if (found := units(net, output)) is not None:
            rule, applied = found
            operations = _operations(("Mul", "Add"), (rule.std, rule.mean), applied, net.shapes[output])
            rows = _applied(graph, output, rows, operations)
        if output in timed:
            turn = [1, 0, *range(2, len(shape) + 2)]
            graph.give(output, graph.add("Transpose", [graph.by_step(rows, shape)], perm=turn), [*TIMED, *shape])
        elif len(shape) == 4 and any(_has_volumes(net.layers[name]) for name in wanted.intersection(net.input_layers)):
            depth, channels, *image = shape
            rows = graph.add("Transpose", [rows], perm=_DEPTH_AND_CHANNELS)
            graph.give(output, rows, ["batch", channels, depth, *image])
        else:
            graph.give(output, rows, ["batch", *shape])
    for carried in graph.carried:
        graph.give(carried.name, carried.tensor, ["batch", *carried.shape])
    made = helper.make_graph(graph.nodes, name, graph.inputs, graph.outputs, list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="singa_dask")
    model.ir_version = 8  # the IR version of opset 17, for older runtimes
    checker.check_model(model, full_check=True)
    return model


def save(
    net: Net, path: Path, outputs: Sequence[str] = (), name: str = "singa_dask", key: str = "path"
) -> onnx.ModelProto:
    """Write the ONNX model of a net of an evaluation phase, and return it. outputs: names of the output layers, by
    default the one of the predictions.

    Raises ConfigError as `export`, and where the package onnx is missing or the file cannot be written; key: names
    what the user gave.
    """
    try:
        import onnx
    except ImportError as error:
        hint = "Run `pip install '.[onnx]'` in a clone of singa_dask."
        raise ConfigError(Problem(key, str(error), hint=hint)) from error
    model = export(net, list(dict.fromkeys(outputs)) or [net.scores()[0]], name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            onnx.save(model, temporary, format="protobuf")
    except OSError as error:
        if no_room(error):
            path.unlink(missing_ok=True)
            raise DataError(disk_full(path, error)) from error
        raise ConfigError(Problem(key, f"cannot be written ({error.strerror})", str(path))) from error
    return model


def _needed(net: Net, outputs: Sequence[str]) -> set[str]:
    """The layers whose features the outputs depend on."""
    _refuse_unrolled([layer for layer in net.layers.values() if {layer.name, origin(layer.proto)} & set(outputs)])
    for output in outputs:
        if output not in net.layers or output in net.input_layers:
            raise ConfigError(Problem("output", "unknown layer", output, nearest(output, net.layers.keys())))
    needed = {layer for output in outputs for layer in layers_of(net, output)}
    _refuse_unrolled([layer for name, layer in net.layers.items() if name in needed])
    return needed


def _refuse_unrolled(layers: Sequence[Layer]) -> None:
    unrolled = [layer for layer in layers if layer.proto.num_instances > 1]
    if unrolled:
        message = "is unrolled into one layer per time step, but a model must take any number of steps"
        received = ", ".join(layer.name for layer in unrolled[:3]) + (", ..." if len(unrolled) > 3 else "")
        hint = (
            "Time steps can be folded if all unrolled layers have the same unroll_len, are rowwise and read the same "
            "step of each other."
        )
        raise ConfigError(Problem(f"layer {origin(unrolled[0].proto)!r}", message, received, hint))


def _features(layer: Layer) -> dict[int, str]:
    """The sources whose features the layer's output depends on, by position."""
    return {i: layer.proto.srclayers[i] for i in sorted(layer.output_positions)}


def _sources(net: Net, tensors: dict[str, Any], layer: Layer) -> list[str]:
    """The tensors that a layer reads: its own piece of a source with several outputs."""
    names = []
    for position, source in _features(layer).items():
        tensor = tensors[source]
        names.append(tensor if isinstance(tensor, str) else tensor[net.piece(layer.name, position)])
    return names


def _taken(graph: OnnxGraph, layer: Layer, wanted: Sequence[Layer], outputs: Sequence[str]) -> str:
    """An input of the model: raw samples, or sequences of them, followed by normalisation."""
    shape = graph.net.shapes[layer.name]
    readers = [reader for reader in wanted if layer.name in _features(reader).values()]
    stepwise = [isinstance(reader, kinds.Frame) for reader in readers]
    if any(stepwise) and not all(stepwise):
        names = ", ".join(sorted(reader.name for reader in readers))
        raise layer.problem(
            "is read both as whole rows and step by step, so the number of steps cannot be free", names
        )
    sample = shape[1:] if any(stepwise) else shape
    record = (shape[1:] or (1,)) if layer.proto.store_conf.sequence else shape
    rule = graph.net.input_layer(layer.name).normalisation
    operations = _operations(("Sub", "Div"), (rule.mean, rule.std), record, record)
    symbols = not operations and _are_symbols(layer, wanted, outputs)
    volume = _has_volumes(layer)
    given = (sample[-1], *sample[:-1]) if volume else as_onnx(sample)
    name = graph.take(layer.name, [*(TIMED if any(stepwise) else ("batch",)), *given], symbols=symbols)
    if volume:
        name = graph.add("Transpose", [name], perm=_DEPTH_AND_CHANNELS)
    return _applied(graph, layer.name, name, operations)


def _has_volumes(layer: Any) -> bool:
    """Whether the samples of an input layer are volumes, and not images in sequence."""
    return len(layer.sample_shape) == 4 and not layer.proto.store_conf.sequence


def _are_symbols(layer: Layer, wanted: Sequence[Layer], outputs: Sequence[str]) -> bool:
    """Whether all consumers of the layer read its output as symbols."""
    readers = [reader for reader in wanted if layer.name in _features(reader).values()]
    return bool(readers and layer.name not in outputs) and all(
        isinstance(reader, kinds.OneHot | kinds.Embedding)
        or (isinstance(reader, kinds.Frame) and _are_symbols(reader, wanted, outputs))
        for reader in readers
    )


def _operations(
    ops: Sequence[str], values: Sequence[np.ndarray | None], applied: Shape, shape: Shape
) -> list[tuple[str, np.ndarray]]:
    """Operators and their second operands. values: in the net's order, for samples of shape `applied`, as which those
    of `shape` are seen."""
    operations = []
    for op, value in zip(ops, values, strict=True):
        if value is None or np.all(value == (0 if op in ("Sub", "Add") else 1)):
            continue
        array = np.asarray(value, np.float32)
        if array.size > 1:
            array = np.broadcast_to(array, applied).reshape(shape)
            array = np.moveaxis(array, -1, -3) if array.ndim >= 3 else array
        operations.append((op, array if array.size > 1 else array.reshape(())))
    return operations


def _applied(graph: OnnxGraph, layer: str, tensor: str, operations: Sequence[tuple[str, np.ndarray]]) -> str:
    for op, array in operations:
        tensor = graph.add(op, [tensor, graph.constant(f"{layer}_{op}", array)])
    return tensor


# One function per layer: (graph, layer, names of the sources) -> name or names of its outputs.


def _same(graph: OnnxGraph, layer: Layer, x: str) -> str:
    return x


def _inner_product(graph: OnnxGraph, layer: Any, x: str) -> str:
    shape = source_shape(graph, layer)
    weight, bias = graph.parameter(layer.weight), graph.parameter(layer.bias)
    if layer.lead(shape):
        if layer.conf.transpose:
            weight = [graph.add("Transpose", weight, perm=[1, 0])]
        y = graph.add("MatMul", [x, *weight])
        return graph.add("Add", [y, *bias]) if bias else y
    flat = graph.flat(x, shape)
    return graph.add("Gemm", [flat, *weight, *bias], transB=int(layer.conf.transpose))


def _relu(graph: OnnxGraph, layer: Any, x: str) -> str:
    slope = layer.conf.negative_slope
    y = graph.add("LeakyRelu", [x], alpha=slope) if slope else graph.add("Relu", [x])
    if layer.limit == inf:
        return y
    return graph.add("Min", [y, graph.constant(f"limit_{layer.limit}", np.float32(layer.limit))])


def _elu(graph: OnnxGraph, layer: Any, x: str) -> str:
    return graph.add("Elu", [x], alpha=layer.conf.alpha)


def _silu(graph: OnnxGraph, layer: Layer, x: str) -> str:
    return graph.add("Mul", [x, graph.add("Sigmoid", [x])])


def _gelu(graph: OnnxGraph, layer: Any, x: str) -> str:
    if layer.conf.approximate == GELUProto.TANH:
        slope, cube = (
            graph.constant(f"gelu_tanh_{i}", np.float32(v)) for i, v in enumerate((2 * TANH_SLOPE, TANH_CUBE))
        )
        cubes = graph.add("Mul", [graph.add("Mul", [x, graph.add("Mul", [x, x])]), cube])
        inner = graph.add("Mul", [graph.add("Add", [x, cubes]), slope])
        return graph.add("Mul", [x, graph.add("Sigmoid", [inner])])
    root, one, half = (graph.constant(f"gelu_{i}", np.float32(v)) for i, v in enumerate((ROOT_HALF, 1, 0.5)))
    area = graph.add("Mul", [graph.add("Add", [graph.add("Erf", [graph.add("Mul", [x, root])]), one]), half])
    return graph.add("Mul", [x, area])


def _stanh(graph: OnnxGraph, layer: Layer, x: str) -> str:
    inner, outer = (graph.constant(f"stanh_{i}", np.float32(v)) for i, v in enumerate((STANH_INNER, STANH_OUTER)))
    return graph.add("Mul", [graph.add("Tanh", [graph.add("Mul", [x, inner])]), outer])


def _activation(graph: OnnxGraph, layer: Any, x: str) -> str:
    return _converter(layer.rule)(graph, layer.rule, x)


def _softmax(graph: OnnxGraph, layer: Any, x: str) -> str:
    shape = source_shape(graph, layer)
    if layer.lead(shape):
        return graph.add("Softmax", [x], axis=-1)
    flat, size = graph.flat(x, shape), prod(shape)
    parts = layer.conf.num_softmax_per_instance
    y = graph.add("Softmax", [graph.reshape(flat, (size // parts,)) if parts > 1 else flat], axis=-1)
    return graph.unflat(graph.reshape(y, (size,)) if parts > 1 else y, shape)


def _softmax_loss(graph: OnnxGraph, layer: Layer, x: str) -> str:
    shape = source_shape(graph, layer)
    if len(graph.net.shapes[layer.name]) == 1:
        return graph.add("Softmax", [graph.flat(x, shape)], axis=-1)
    return graph.channels_first(graph.add("Softmax", [graph.channels_last(x, shape)], axis=-1), shape)


def _rbm_visible(graph: OnnxGraph, layer: Layer, x: str) -> str:
    return graph.flat(x, source_shape(graph, layer))


def _rbm_hidden(graph: OnnxGraph, layer: Any, x: str) -> str:
    y = graph.add("Gemm", [x, *graph.parameter(layer.weight), *graph.parameter(layer.bias)])
    return y if layer.conf.gaussian else graph.add("Sigmoid", [y])


def _split(graph: OnnxGraph, layer: Any, x: str) -> list[str]:
    return [x] * layer.conf.num_splits


def _combination(op: str) -> Callable[..., str]:
    """Sources one after the other, those with fewer axes with further ones of size 1."""

    def convert(graph: OnnxGraph, layer: Layer, *x: str) -> str:
        shapes = [graph.net.source_shape(layer.name, i) for i in range(len(x))]
        axes = max(map(len, shapes))
        aligned = [
            name if len(shape) == axes else graph.reshape(name, as_onnx((*(1,) * (axes - len(shape)), *shape)))
            for name, shape in zip(x, shapes, strict=True)
        ]
        return reduce(lambda first, second: graph.add(op, [first, second]), aligned)

    return convert


def _plain(op: str) -> Callable[..., str]:
    return lambda graph, layer, *x: graph.add(op, x)


_CONVERTERS: dict[type[Layer], Callable[..., Any]] = {
    kinds.Activation: _activation,
    kinds.BCELoss: _plain("Sigmoid"),
    kinds.Add: _combination("Add"),
    kinds.Attention: onnx_attention.attention,
    kinds.BatchNorm: onnx_images.batch_norm,
    kinds.ClassToken: onnx_attention.class_token,
    kinds.Concate: onnx_images.concate,
    kinds.Convolution: onnx_images.convolution,
    kinds.Div: _combination("Div"),
    kinds.Dropout: _same,
    kinds.ELU: _elu,
    kinds.Embedding: onnx_time.embedding,
    kinds.EuclideanLoss: _same,
    kinds.Frame: onnx_time.frame,
    kinds.GELU: _gelu,
    kinds.GRU: onnx_time.recurrent,
    kinds.HuberLoss: _same,
    kinds.GlobalPooling: onnx_images.global_pooling,
    kinds.GroupNorm: onnx_images.group_norm,
    kinds.ImagePreprocess: onnx_images.preprocess,
    kinds.Lambda: function_node,
    kinds.Loss: _same,
    kinds.InnerProduct: _inner_product,
    kinds.LRN: onnx_images.lrn,
    kinds.LSTM: onnx_time.recurrent,
    kinds.AllSteps: onnx_time.all_steps,
    kinds.LastStep: onnx_time.last_step,
    kinds.MAELoss: _same,
    kinds.MSELoss: _same,
    kinds.LayerNorm: onnx_images.layer_norm,
    kinds.LeakyReLU: _relu,
    kinds.Max: _combination("Max"),
    kinds.Mul: _combination("Mul"),
    kinds.OneHot: onnx_time.one_hot,
    kinds.Pooling: onnx_images.pooling,
    kinds.PositionalEmbedding: onnx_attention.positional_embedding,
    kinds.RBMHid: _rbm_hidden,
    kinds.RBMVis: _rbm_visible,
    kinds.RNN: onnx_time.recurrent,
    kinds.RNNLabel: onnx_time.frame,
    kinds.ReLU: _relu,
    kinds.Reshape: onnx_images.reshape,
    kinds.Reverse: onnx_time.reverse,
    kinds.STanh: _stanh,
    kinds.SiLU: _silu,
    kinds.Select: onnx_attention.select,
    kinds.Sigmoid: _plain("Sigmoid"),
    kinds.Slice: onnx_images.slice_,
    kinds.Softmax: _softmax,
    kinds.SoftmaxLoss: _softmax_loss,
    kinds.Split: _split,
    kinds.Sub: _combination("Sub"),
    kinds.Tanh: _plain("Tanh"),
    kinds.TransposedConvolution: onnx_images.transposed_convolution,
    kinds.Upsampling: onnx_images.upsampling,
}


def _converter(layer: Layer) -> Callable[..., Any]:
    own = getattr(layer, "to_onnx", None)
    if own is not None:
        return lambda graph, _, *x: own(graph, *x)
    found = _CONVERTERS.get(type(layer))
    if found is None:
        hint = "Export a layer below it, or give your class a method to_onnx."
        raise layer.problem("has no counterpart in ONNX", type(layer).__name__, hint)
    return found
