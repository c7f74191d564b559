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
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask import layers as kinds
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.export import onnx_attention, onnx_time
from singa_dask.export.onnx_graph import Graph, as_onnx
from singa_dask.job.job_pb2 import UpsamplingProto
from singa_dask.job.unroll import origin
from singa_dask.layers import Layer
from singa_dask.layers.batch_norm import EPSILON
from singa_dask.layers.connection import piece_bounds
from singa_dask.layers.param import Shape
from singa_dask.net import Net, layers_of, units
from singa_dask.ops.activation import ROOT_HALF, STANH_INNER, STANH_OUTER

if TYPE_CHECKING:
    import onnx

OPSET = 17
TIMED = ("batch", "time")


def export(net: Net, outputs: Sequence[str], name: str = "singa_dask") -> onnx.ModelProto:
    """The ONNX model of a net of an evaluation phase. outputs: names of the output layers.

    Raises ConfigError for unknown layers, layers without an ONNX counterpart, and unrolled nets.
    """
    from onnx import checker, helper

    graph = Graph(net)
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
        if isinstance(layer, kinds.Frame) or (first in timed and not isinstance(layer, kinds.LastStep)):
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
        else:
            graph.give(output, rows, ["batch", *shape])
    for carried in graph.carried:
        graph.give(carried.name, carried.tensor, ["batch", *carried.shape])
    made = helper.make_graph(graph.nodes, name, graph.inputs, graph.outputs, list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="singa_dask")
    model.ir_version = 8  # the IR version of opset 17, for older runtimes
    checker.check_model(model, full_check=True)
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


def _taken(graph: Graph, layer: Layer, wanted: Sequence[Layer], outputs: Sequence[str]) -> str:
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
    volume = len(sample) == 4 and record == shape
    given = (sample[-1], *sample[:-1]) if volume else as_onnx(sample)
    name = graph.take(layer.name, [*(TIMED if any(stepwise) else ("batch",)), *given], symbols=symbols)
    if volume:  # inside, as images at several depths
        name = graph.add("Transpose", [name], perm=[0, 2, 1, 3, 4])
    return _applied(graph, layer.name, name, operations)


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


def _applied(graph: Graph, layer: str, tensor: str, operations: Sequence[tuple[str, np.ndarray]]) -> str:
    for op, array in operations:
        tensor = graph.add(op, [tensor, graph.constant(f"{layer}_{op}", array)])
    return tensor


# One function per layer: (graph, layer, names of the sources) -> name or names of its outputs.


def _same(graph: Graph, layer: Layer, x: str) -> str:
    return x


def _inner_product(graph: Graph, layer: Any, x: str) -> str:
    flat = graph.flat(x, _shape(graph, layer))
    weight, bias = graph.parameter(layer.weight), graph.parameter(layer.bias)
    return graph.add("Gemm", [flat, *weight, *bias], transB=int(layer.conf.transpose))


def _convolution(graph: Graph, layer: Any, x: str) -> str:
    return _moving(graph, layer, x, "Conv")


def _transposed_convolution(graph: Graph, layer: Any, x: str) -> str:
    axes = len(_shape(graph, layer)) - 1
    return _moving(graph, layer, x, "ConvTranspose", output_padding=[layer.conf.output_pad] * axes)


def _moving(graph: Graph, layer: Any, x: str, op: str, **options: Any) -> str:
    """A convolution along the axes of sequences, images or volumes, which ONNX wants behind the channels."""
    shape = _shape(graph, layer)
    axes = len(shape) - 1
    turn, back = (0, axes + 1, *range(1, axes + 1)), (0, *range(2, axes + 2), 1)
    weight = graph.parameter(layer.weight, (axes + 1, axes, *range(axes)))
    window = {name: sizes[-2 * axes :] if name == "pads" else sizes[-axes:] for name, sizes in _window(layer).items()}
    if axes == 1:  # computed as an image of height 1
        window["pads"] = [layer.window.pad[1]] * 2
    options |= {**window, "dilations": layer.window.dilation[-axes:], "group": layer.conf.groups}
    if axes != 2:
        x = graph.add("Transpose", [graph.channels_last(x, shape)], perm=turn)
    y = graph.add(op, [x, *weight, *graph.parameter(layer.bias)], **options)
    if axes == 2:
        return y
    return graph.channels_first(graph.add("Transpose", [y], perm=back), graph.net.shapes[layer.name])


def _upsampling(graph: Graph, layer: Any, x: str) -> str:
    factor = float(layer.conf.factor)
    scales = graph.constant(f"by_{factor:g}", np.array([1, 1, factor, factor], np.float32))
    if layer.conf.method == UpsamplingProto.NEAREST:
        how = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    else:
        how = {"coordinate_transformation_mode": "half_pixel", "mode": "linear"}
    return graph.add("Resize", [x, "", scales], **how)


def _pooling(graph: Graph, layer: Any, x: str) -> str:
    if layer.is_max:
        return graph.add("MaxPool", [x], **_window(layer))
    return graph.add("AveragePool", [x], count_include_pad=1, **_window(layer))


def _global_pooling(graph: Graph, layer: Any, x: str) -> str:
    return graph.add("GlobalMaxPool" if layer.is_max else "GlobalAveragePool", [x])


def _window(layer: Any) -> dict[str, Any]:
    window = layer.window
    return {"kernel_shape": window.kernel, "strides": window.stride, "pads": [*window.pad, *window.pad]}


def _relu(graph: Graph, layer: Any, x: str) -> str:
    slope = layer.conf.negative_slope
    return graph.add("LeakyRelu", [x], alpha=slope) if slope else graph.add("Relu", [x])


def _elu(graph: Graph, layer: Any, x: str) -> str:
    return graph.add("Elu", [x], alpha=layer.conf.alpha)


def _silu(graph: Graph, layer: Layer, x: str) -> str:
    return graph.add("Mul", [x, graph.add("Sigmoid", [x])])


def _gelu(graph: Graph, layer: Layer, x: str) -> str:
    root, one, half = (graph.constant(f"gelu_{i}", np.float32(v)) for i, v in enumerate((ROOT_HALF, 1, 0.5)))
    area = graph.add("Mul", [graph.add("Add", [graph.add("Erf", [graph.add("Mul", [x, root])]), one]), half])
    return graph.add("Mul", [x, area])


def _stanh(graph: Graph, layer: Layer, x: str) -> str:
    inner, outer = (graph.constant(f"stanh_{i}", np.float32(v)) for i, v in enumerate((STANH_INNER, STANH_OUTER)))
    return graph.add("Mul", [graph.add("Tanh", [graph.add("Mul", [x, inner])]), outer])


def _activation(graph: Graph, layer: Any, x: str) -> str:
    return _converter(layer.rule)(graph, layer.rule, x)


def _softmax(graph: Graph, layer: Any, x: str) -> str:
    shape = _shape(graph, layer)
    flat, size = graph.flat(x, shape), prod(shape)
    parts = layer.conf.num_softmax_per_instance
    y = graph.add("Softmax", [graph.reshape(flat, (size // parts,)) if parts > 1 else flat], axis=-1)
    return graph.unflat(graph.reshape(y, (size,)) if parts > 1 else y, shape)


def _softmax_loss(graph: Graph, layer: Layer, x: str) -> str:
    return graph.add("Softmax", [graph.flat(x, _shape(graph, layer))], axis=-1)


def _lrn(graph: Graph, layer: Any, x: str) -> str:
    conf = layer.conf
    return graph.add("LRN", [x], size=conf.local_size, alpha=conf.alpha, beta=conf.beta, bias=conf.knorm)


def _batch_norm(graph: Graph, layer: Any, x: str) -> str:
    params = [name for p in (layer.scale, layer.bias, layer.mean, layer.var) for name in graph.parameter(p)]
    return graph.add("BatchNormalization", [x, *params], epsilon=EPSILON)


def _layer_norm(graph: Graph, layer: Any, x: str) -> str:
    shape, epsilon = _shape(graph, layer), layer.conf.epsilon
    params = [*graph.parameter(layer.scale), *graph.parameter(layer.bias)]
    y = graph.add("LayerNormalization", [graph.channels_last(x, shape), *params], axis=-1, epsilon=epsilon)
    return graph.channels_first(y, shape)


def _group_norm(graph: Graph, layer: Any, x: str) -> str:
    shape, groups = _shape(graph, layer), layer.conf.num_groups
    positions, size = prod(shape[:-1]), shape[-1] // groups
    blocks = graph.reshape(graph.channels_last(x, shape), (positions, groups, size))
    rows = graph.reshape(graph.add("Transpose", [blocks], perm=[0, 2, 1, 3]), (groups, positions * size))
    plain = [
        graph.constant(f"{name}_{groups}", np.full(groups, v, np.float32)) for name, v in (("one", 1), ("zero", 0))
    ]
    rows = graph.add("InstanceNormalization", [rows, *plain], epsilon=layer.conf.epsilon)
    blocks = graph.add("Transpose", [graph.reshape(rows, (groups, positions, size))], perm=[0, 2, 1, 3])
    y = graph.add("Mul", [graph.reshape(blocks, shape), *graph.parameter(layer.scale)])
    return graph.channels_first(graph.add("Add", [y, *graph.parameter(layer.bias)]), shape)


def _preprocess(graph: Graph, layer: Any, x: str) -> str:
    height, width, _ = _shape(graph, layer)
    rows, columns, _ = graph.net.shapes[layer.name]
    top, left = (height - rows) // 2, (width - columns) // 2
    if layer.conf.meanfile:
        mean = graph.constant(f"{layer.name}_mean", layer.mean_image.transpose(2, 0, 1).astype(np.float32))
        x = graph.add("Sub", [x, mean])
    if (rows, columns) != (height, width):
        bounds = {"from": [top, left], "to": [top + rows, left + columns], "axes": [2, 3]}
        cut = [graph.constant(f"{layer.name}_{key}", np.array(v, np.int64)) for key, v in bounds.items()]
        x = graph.add("Slice", [x, *cut])
    return graph.add("Mul", [x, graph.constant(f"{layer.name}_scale", np.float32(layer.conf.scale))])


def _rbm_visible(graph: Graph, layer: Layer, x: str) -> str:
    return graph.flat(x, _shape(graph, layer))


def _rbm_hidden(graph: Graph, layer: Any, x: str) -> str:
    y = graph.add("Gemm", [x, *graph.parameter(layer.weight), *graph.parameter(layer.bias)])
    return y if layer.conf.gaussian else graph.add("Sigmoid", [y])


def _split(graph: Graph, layer: Any, x: str) -> list[str]:
    return [x] * layer.conf.num_splits


def _slice(graph: Graph, layer: Any, x: str) -> list[str]:
    dim, shape = layer.conf.slice_dim, ["batch", *as_onnx(_shape(graph, layer))]
    if dim == 0:
        raise layer.problem("slices the batch, and a model must take any batch size", "slice_dim: 0")
    sizes = [stop - start for start, stop in piece_bounds(shape[dim], layer.conf.num_slices)]
    parts = graph.constant(f"{layer.name}_sizes", np.array(sizes, np.int64))
    return graph.add_several("Split", [x, parts], len(sizes), axis=dim)


def _concate(graph: Graph, layer: Any, *x: str) -> str:
    return graph.add("Concat", x, axis=layer.conf.concate_dim)


def _combination(op: str) -> Callable[..., str]:
    """Sources one after the other, those with fewer axes with further ones of size 1."""

    def convert(graph: Graph, layer: Layer, *x: str) -> str:
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
    kinds.Add: _combination("Add"),
    kinds.Attention: onnx_attention.attention,
    kinds.BatchNorm: _batch_norm,
    kinds.Concate: _concate,
    kinds.Convolution: _convolution,
    kinds.Dropout: _same,
    kinds.ELU: _elu,
    kinds.Embedding: onnx_time.embedding,
    kinds.EuclideanLoss: _same,
    kinds.Frame: onnx_time.frame,
    kinds.GELU: _gelu,
    kinds.GRU: onnx_time.recurrent,
    kinds.GlobalPooling: _global_pooling,
    kinds.GroupNorm: _group_norm,
    kinds.ImagePreprocess: _preprocess,
    kinds.InnerProduct: _inner_product,
    kinds.LRN: _lrn,
    kinds.LSTM: onnx_time.recurrent,
    kinds.LastStep: onnx_time.last_step,
    kinds.LayerNorm: _layer_norm,
    kinds.LeakyReLU: _relu,
    kinds.Max: _combination("Max"),
    kinds.Mul: _combination("Mul"),
    kinds.OneHot: onnx_time.one_hot,
    kinds.Pooling: _pooling,
    kinds.PositionalEmbedding: onnx_attention.positional_embedding,
    kinds.RBMHid: _rbm_hidden,
    kinds.RBMVis: _rbm_visible,
    kinds.RNN: onnx_time.recurrent,
    kinds.RNNLabel: onnx_time.frame,
    kinds.ReLU: _relu,
    kinds.Reverse: onnx_time.reverse,
    kinds.STanh: _stanh,
    kinds.SiLU: _silu,
    kinds.Sigmoid: _plain("Sigmoid"),
    kinds.Slice: _slice,
    kinds.Softmax: _softmax,
    kinds.SoftmaxLoss: _softmax_loss,
    kinds.Split: _split,
    kinds.Tanh: _plain("Tanh"),
    kinds.TransposedConvolution: _transposed_convolution,
    kinds.Upsampling: _upsampling,
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


def _shape(graph: Graph, layer: Layer) -> Shape:
    """The sample shape of a layer's first source."""
    shape: Shape = graph.net.source_shape(layer.name, 0)
    return shape
