"""The operators of ONNX: each as layers and functions.

(reader, node, its attributes) -> the value of its output, or a list of those of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from singa_dask import functions as F
from singa_dask import layers as kinds
from singa_dask.convert.onnx_file import ROWS, OnnxFile
from singa_dask.convert.onnx_net import ImportedNet, ProductWithTable, ResultIndex, TableOfSymbols, whole
from singa_dask.convert.onnx_reader import Reader, Value, grouped
from singa_dask.convert.onnx_time import recurrent
from singa_dask.convert.torch_state import from_torch
from singa_dask.layers import Layer
from singa_dask.tensors.state import no_grad
from singa_dask.tensors.tensor import Tensor

Attributes = dict[str, Any]
Converter = Callable[[Reader, Any, Attributes], Any]


def _window(reader: Reader, node: Any, a: Attributes, kernel: Sequence[int]) -> tuple[Value, dict[str, Any]]:
    """What a sliding window reads, padded where its sides differ, and the settings of the window."""
    x, axes = reader.value(node), len(kernel)
    pads = [*a.get("pads", [0] * 2 * axes)]
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        reader.refuse(node, "auto_pad", a["auto_pad"].decode())
    if pads[:axes] != pads[axes:]:
        if node.op_type not in _EDGES:
            reader.refuse(node, "pads", pads)
        widths = ((0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True))
        place = reader.call(F.pad, ResultIndex(reader.plain(x).place), widths=widths, value=_EDGES[node.op_type])
        x = grouped(place, [[n + low + high] for n, (low, high) in zip(x.shape, widths, strict=True)])
        pads = [0] * 2 * axes
    sizes = {"kernel": kernel, "stride": a.get("strides", [1] * axes), "pad": pads[:axes]}
    sizes |= {"dilation": a.get("dilations", [1] * axes)} if node.op_type in ("Conv", "ConvTranspose") else {}
    ends = ("_z", "_y", "_x")[-axes:]
    return x, {f"{key}{end}": size for key, of in sizes.items() for end, size in zip(ends, of, strict=True)}


def _conv(reader: Reader, node: Any, a: Attributes) -> Value:
    weight, bias, groups = reader.weight(node, 1), reader.constant(node, 2), a.get("group", 1)
    x, settings = _window(reader, node, a, weight.shape[2:])
    settings |= {"groups": groups, "bias_term": bias is not None}
    if node.op_type == "ConvTranspose":
        extra = {*a.get("output_padding", [0])}
        if len(extra) > 1 or "output_shape" in a:
            reader.refuse(node, "output_padding", "of several sizes")
        made = kinds.TransposedConvolution(num_filters=weight.shape[1] * groups, output_pad=extra.pop(), **settings)
        return reader.layer_of(node, made, x, weight=weight, bias=bias)
    return reader.layer_of(node, kinds.Convolution(num_filters=len(weight), **settings), x, weight=weight, bias=bias)


def _pool(reader: Reader, node: Any, a: Attributes) -> Value:
    if {*a.get("dilations", [1])} != {1}:
        reader.refuse(node, "dilations", a["dilations"])
    if node.op_type == "AveragePool" and any(a.get("pads", ())) and not a.get("count_include_pad"):
        reader.refuse(node, "count_include_pad", 0)
    x, settings = _window(reader, node, a, a["kernel_shape"])
    settings |= {"pool": _POOLS[node.op_type], "ceil_mode": bool(a.get("ceil_mode"))}
    return reader.layer_of(node, kinds.Pooling(**settings), x)


def _global_pool(reader: Reader, node: Any, a: Attributes) -> Value:
    return reader.layer_of(node, kinds.GlobalPooling(pool=_POOLS[node.op_type[6:]]), reader.value(node))


def _batch_norm(reader: Reader, node: Any, a: Attributes) -> Value:
    weight, bias, mean, var = (reader.weight(node, i) for i in (1, 2, 3, 4))
    layer, x = kinds.BatchNorm(factor=a.get("momentum", 0.9), epsilon=a.get("epsilon", 1e-5)), reader.value(node)
    return reader.layer_of(node, layer, x, weight=weight, bias=bias, running_mean=mean, running_var=var)


def _gemm(reader: Reader, node: Any, a: Attributes) -> Value:
    weight, bias = reader.weight(node, 1), reader.constant(node, 2)
    weight = weight if a.get("alpha", 1) == 1 else weight * np.float32(a["alpha"])
    if a.get("transA"):
        reader.refuse(node, "transA", 1)
    weight = weight if a.get("transB") else weight.T
    if bias is not None:
        scaled = bias if a.get("beta", 1) == 1 else bias * np.float32(a["beta"])
        bias = np.broadcast_to(scaled, (1, len(weight)))[0]
    return _linear(reader, node, weight, bias)


def _linear(reader: Reader, node: Any, weight: np.ndarray, bias: np.ndarray | None) -> Value:
    """x W + b along the last axis of x. weight: (O, I)."""
    x, settings = reader.value(node), dict[str, Any](num_output=len(weight), bias_term=bias is not None)
    if table := reader.tables.get(reader.file.origins.get(node.input[1], "")):
        layer: Layer = ProductWithTable(**settings, transpose=True, param={"share_from": table})
        return _by_position(reader, reader.unique("head"), layer, x, len(weight), bias=bias)
    if len(x.axes) != 2 or x.axes[0] != (0,):
        layer = kinds.Convolution(num_filters=len(weight), kernel=1, bias_term=bias is not None)
        name = reader.name(node, 1)
        return _by_position(reader, name, layer, x, len(weight), weight=weight[:, :, None], bias=bias)
    if len(x.sizes) != 4 or [*x.axes[1]] != [i for i in (1, 2, 3) if x.sizes[i] > 1]:
        x = reader.plain(x)  # the layer flattens images itself
    name = reader.layer(reader.name(node, 1), kinds.InnerProduct(**settings), weight=weight, bias=bias)
    return grouped(reader.call(name, ResultIndex(x.place)), [[ROWS], [len(weight)]])


def _by_position(reader: Any, name: str, layer: Layer, x: Value, units: int, **weights: Any) -> Value:
    """A layer of the last axis, for every position: of an array (rows, positions, channels), or (rows, channels)."""
    x = reader.tidy(x)
    last = len(x.sizes) - 1
    positions = [range(1, last)] if last > 1 else []
    y = reader.call(reader.layer(name, layer, **weights), reader.arranged(x, [*positions, [last]]))
    y = reader.call(F.reshape, y, shape=(-1, *x.sizes[1:-1], units)) if last > 2 else y
    return Value(y, (*x.sizes[:-1], units), x.axes)


def _matmul(reader: Reader, node: Any, a: Attributes) -> Value:
    weight = reader.constant(node, 1)
    if weight is not None and weight.ndim == 2:
        return _linear(reader, node, weight.T, reader.bias_after(node, weight.shape[1]))
    operands = [reader.value(node), reader.value(node, 1)]
    arrays, made = reader.aligned("", operands, matrices=2)
    ends, size = (operands[0].shape[-2], operands[1].shape[-1]), len(made.sizes)
    return Value(reader.call(F.matmul, *arrays), (*made.sizes, *ends), (*made.axes, (size,), (size + 1,)))


def _layer_norm(reader: Reader, node: Any, a: Attributes) -> Value:
    weight, bias, x = reader.weight(node, 1), reader.constant(node, 2), reader.value(node)
    if a.get("axis", -1) not in (-1, len(x.axes) - 1):
        reader.refuse(node, "axis", a["axis"])
    layer, bias = kinds.LayerNorm(epsilon=a.get("epsilon", 1e-5)), np.zeros_like(weight) if bias is None else bias
    return _by_position(reader, reader.name(node, 1), layer, x, len(weight), weight=weight, bias=bias)


def _instance_norm(reader: Reader, node: Any, a: Attributes) -> Value:
    weight, bias, x = reader.weight(node, 1), reader.weight(node, 2), reader.value(node)
    layer = kinds.GroupNorm(num_groups=len(weight), epsilon=a.get("epsilon", 1e-5))
    image = reader.reshaped(x, (*x.shape, *[1] * (4 - len(x.shape))))
    name = reader.layer(reader.name(node, 1), layer, weight=weight, bias=bias)
    return reader.reshaped(reader.same(name, reader.plain(image)), x.shape)


def _lrn(reader: Reader, node: Any, a: Attributes) -> Value:
    more = {"alpha": a.get("alpha", 1e-4), "beta": a.get("beta", 0.75), "knorm": a.get("bias", 1.0)}
    return reader.layer_of(node, kinds.LRN(local_size=a["size"], **more), reader.value(node))


def _resize(reader: Reader, node: Any, a: Attributes) -> Value:
    x, shape = reader.value(node), reader.shape(node)
    how = (a.get("mode", b"nearest").decode(), a.get("coordinate_transformation_mode", b"half_pixel").decode())
    factors = {after / before for before, after in zip(x.shape[2:], shape[2:], strict=True)}
    if how not in _RESIZING or len(factors) > 1 or a.get("nearest_mode", b"floor") != b"floor":
        reader.refuse(node, "mode", how)
    return reader.layer_of(node, kinds.Upsampling(factor=int(factors.pop()), method=_RESIZING[how]), x)


def _gather(reader: Reader, node: Any, a: Attributes) -> Value:
    table, index = reader.constant(node, 0), reader.constant(node, 1)
    if table is not None and table.ndim == 2 and not a.get("axis"):
        x, name = reader.tidy(reader.value(node, 1)), reader.name(node, 0)
        shared = reader.tables[reader.file.origins.get(node.input[0], "")] = f"{name}_table"
        layer = TableOfSymbols(vocab_size=len(table), feature_dim=table.shape[1], param={"name": shared})
        place = reader.call(reader.layer(name, layer, weight=table), ResultIndex(x.place))
        return Value(place, (*x.sizes, table.shape[1]), (*x.axes, (len(x.sizes),)))
    if index is None or index.ndim > 1:
        reader.refuse(node, "indices", "what the model computes")
    return reader.taken(node, reader.value(node), a.get("axis", 0), index.tolist())


def _slice(reader: Reader, node: Any, a: Attributes) -> Value:
    starts, ends, axes, steps = (reader.numbers(node, a, key, i) for i, key in enumerate(_SLICE, 1))
    x = reader.value(node)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[i] if axes else i
        every = range(x.shape[axis])
        chosen = every[start : end if abs(end) < ROWS * ROWS or end > 0 else None : steps[i] if steps else 1]
        x = x if chosen == every else reader.taken(node, x, axis, chosen)
    return x


def _split(reader: Reader, node: Any, a: Attributes) -> list[Value]:
    x, axis = reader.value(node), a.get("axis", 0)
    ends = np.cumsum([reader.file.shapes[name][axis] for name in node.output]).tolist()
    return [reader.taken(node, x, axis, range(low, high)) for low, high in zip([0, *ends], ends, strict=False)]


def _concat(reader: Reader, node: Any, a: Attributes) -> Value:
    every = [reader.axis_of(node, reader.value(node, i), a["axis"]) for i in range(len(node.input))]
    (x, at), *rest = every
    if any(other.axes != x.axes for other, _ in rest):
        reader.refuse(node, "inputs", "tensors whose rows lie along different axes")
    place = reader.call(F.cat, [ResultIndex(each.place) for each, _ in every], axis=at)
    sizes = (*x.sizes[:at], sum(each.sizes[at] for each, _ in every), *x.sizes[at + 1 :])
    return Value(place, sizes, x.axes)


def _transpose(reader: Reader, node: Any, a: Attributes) -> Value:
    x = reader.value(node)
    return x._replace(axes=tuple(x.axes[i] for i in a.get("perm", reversed(range(len(x.axes))))))


def _reshape(reader: Reader, node: Any, a: Attributes) -> Value:
    return reader.reshaped(reader.value(node), reader.shape(node))


def _expand(reader: Reader, node: Any, a: Attributes) -> Value:
    shape, given = reader.shape(node), reader.constant(node, 0)
    ones = [1 if size == ROWS else size for size in shape]
    if given is None:
        x = reader.value(node)
        return x if x.shape == shape else _aligned(F.add, reader, node, [x, np.zeros(ones, np.float32)])
    place = reader.repeated(reader.name(node, 0), np.broadcast_to(given, ones)[0], reader.first)
    return grouped(place, [[size] for size in shape])


def _reduce(of: Callable[..., Any]) -> Converter:
    def convert(reader: Reader, node: Any, a: Attributes) -> Value:
        x = reader.value(node)
        rank, kept = len(x.axes), a.get("keepdims", 1)
        axes = sorted((i % rank for i in reader.numbers(node, a, "axes", 1) or range(rank)), reverse=True)
        for axis in axes:
            x, at = reader.axis_of(node, x, axis)
            x = reader.without(x, axis, reader.call(of, ResultIndex(x.place), axis=at))
            x = x._replace(axes=(*x.axes[:axis], (), *x.axes[axis:])) if kept else x
        return x

    return convert


def _along(of: Callable[..., Any]) -> Converter:
    """A function along an axis."""

    def convert(reader: Reader, node: Any, a: Attributes) -> Value:
        x, at = reader.axis_of(node, reader.value(node), a.get("axis", -1))
        return reader.same(of, x, axis=at)

    return convert


def _elementwise(of: Callable[..., Any]) -> Converter:
    return lambda reader, node, a: _aligned(of, reader, node, reader.operands(node))


def _aligned(of: Callable[..., Any], reader: Any, node: Any, operands: list[Any]) -> Value:
    if len(operands) == 1:
        return reader.same(of, operands[0])
    constant = next((i for i in range(len(operands)) if reader.constant(node, i) is not None), None)
    arrays, made = reader.aligned("" if constant is None else reader.name(node, constant), operands)
    return made._replace(place=reader.call(of, *arrays))


def _clip(reader: Reader, node: Any, a: Attributes) -> Value:
    given = [reader.constant(node, i) if len(node.input) > 1 else a.get(key) for i, key in ((1, "min"), (2, "max"))]
    bounds = [edge if bound is None else float(bound) for bound, edge in zip(given, (-np.inf, np.inf), strict=True)]
    if bounds[0] == 0:
        return reader.same(reader.layer(reader.unique("relu"), kinds.ReLU(max_value=bounds[1])), reader.value(node))
    return reader.same(F.clip, reader.value(node), *bounds)


def _activation(kind: type[Layer], **names: tuple[str, float]) -> Converter:
    """names: of settings, and for each its attribute and default."""

    def convert(reader: Reader, node: Any, a: Attributes) -> Value:
        layer = kind(**{key: a.get(*of) for key, of in names.items()})
        return reader.same(reader.layer(reader.unique(node.op_type.lower()), layer), reader.value(node))

    return convert


def _gelu(reader: Reader, node: Any, a: Attributes) -> Value:
    layer = kinds.GELU(approximate=a.get("approximate", b"none").decode().upper())
    return reader.same(reader.layer(reader.unique("gelu"), layer), reader.value(node))


def _cast(reader: Reader, node: Any, a: Attributes) -> Value:
    x, types = reader.value(node), (reader.file.kinds[node.input[0]], a["to"])
    before, after = (tensor_dtype_to_np_dtype(of).kind for of in types)
    if after == "b":
        return reader.same(F.not_equal, x, 0)
    return reader.same(whole, x) if before == "f" and after in "iu" else x


def _identity(reader: Reader, node: Any, a: Attributes) -> Value:
    return reader.value(node)


def _one_hot(reader: Reader, node: Any, a: Attributes) -> Value:
    depth, values, x = reader.weight(node, 1), reader.weight(node, 2).tolist(), reader.tidy(reader.value(node))
    if a.get("axis", -1) not in (-1, len(x.axes)) or values != [0, 1]:
        reader.refuse(node, "axis and values", f"{a.get('axis', -1)} and {values}")
    place = reader.call(F.one_hot, ResultIndex(x.place), depth=int(depth))
    return Value(place, (*x.sizes, int(depth)), (*x.axes, (len(x.sizes),)))


def _pad(reader: Reader, node: Any, a: Attributes) -> Value:
    x, pads, value = reader.tidy(reader.value(node)), reader.weight(node, 1).tolist(), reader.constant(node, 2)
    pairs, mode = [*zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)], a.get("mode", b"constant")
    if mode != b"constant" or len(pairs) != len(x.axes) or any(pairs[x.rows_axis]):
        reader.refuse(node, "mode and pads", f"{mode.decode()} and {pads}")
    widths = [(0, 0)] * len(x.sizes)
    for axis, pair in enumerate(pairs):
        if any(pair):
            widths[x.axes[axis][0]] = pair
    place = reader.call(F.pad, ResultIndex(x.place), widths=widths, value=0.0 if value is None else float(value))
    return Value(place, tuple(n + sum(pair) for n, pair in zip(x.sizes, widths, strict=True)), x.axes)


def _einsum(reader: Reader, node: Any, a: Attributes) -> Value:
    sources, _, out = a["equation"].decode().replace(" ", "").partition("->")
    operands = [reader.tidy(x) if isinstance(x, Value) else x for x in reader.operands(node)]
    named = [*zip(sources.split(","), operands, strict=True)]
    found = {name[x.rows_axis] for name, x in named if isinstance(x, Value) and len(x.parts[x.rows_axis]) == 1}
    if "." in sources or len(found) != 1 or not found <= {*out}:
        reader.refuse(node, "equation", f"{a['equation'].decode()}, which mixes the rows of the mini-batch")
    (rows,) = found

    def first(letters: str) -> str:
        return rows + letters.replace(rows, "")

    arrays = [
        ResultIndex(x.place) if isinstance(x, Value) else reader.repeated(reader.name(node, i), x, reader.first)
        for i, x in enumerate(operands)
    ]
    spec = f"{','.join(first(name) for name, _ in named)}->{first(out)}"
    return grouped(reader.call(F.einsum, spec, *arrays), [[size] for size in reader.shape(node)])


_EDGES = {"Conv": 0.0, "MaxPool": -np.inf}
_POOLS = {"AveragePool": "AVG", "MaxPool": "MAX"}
_RESIZING = {("nearest", "asymmetric"): "NEAREST", ("linear", "half_pixel"): "BILINEAR"}
_SLICE = ("starts", "ends", "axes", "steps")
_SAME_NAME = "Abs Add Cos Div Equal Exp Greater Less Log Mul Sign Sin Softplus Sqrt Sub Where"
_ELEMENTWISE = {op: op.lower() for op in _SAME_NAME.split()}
_ELEMENTWISE |= {"Max": "maximum", "Min": "minimum", "Neg": "negative", "Pow": "power"}
_ELEMENTWISE |= {"GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal"}
CONVERTERS: dict[str, Converter] = {
    **{op: _elementwise(getattr(F, name)) for op, name in _ELEMENTWISE.items()},
    **dict.fromkeys(("Dropout", "Identity"), _identity),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Einsum": _einsum,
    "Elu": _activation(kinds.ELU, alpha=("alpha", 1.0)),
    "Expand": _expand,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _activation(kinds.LeakyReLU, negative_slope=("alpha", 0.01)),
    "LogSoftmax": _along(F.log_softmax),
    "MatMul": _matmul,
    "Not": lambda reader, node, a: reader.same(F.equal, reader.value(node), 0),
    "OneHot": _one_hot,
    "Pad": _pad,
    "ReduceLogSumExp": _reduce(F.logsumexp),
    "ReduceMax": _reduce(F.max),
    "ReduceMean": _reduce(F.mean),
    "ReduceMin": _reduce(F.min),
    "ReduceSum": _reduce(F.sum),
    "Relu": _activation(kinds.ReLU),
    "Resize": _resize,
    "Sigmoid": _activation(kinds.Sigmoid),
    "Slice": _slice,
    "Softmax": _along(F.softmax),
    "Split": _split,
    "Tanh": _activation(kinds.Tanh),
    "Transpose": _transpose,
}


def net_of(model: Any, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str] | None) -> ImportedNet:
    """See `convert.from_onnx`."""
    file = OnnxFile(model, shapes, outputs)
    reader = Reader(file, CONVERTERS)
    places = [reader.plain(reader.values[name]).place for name in file.outputs]
    net = ImportedNet(reader.steps, places, reader.layers)
    with no_grad(), np.errstate(all="ignore"):
        net(*(Tensor.of(np.zeros((1, *file.shapes[name][1:]), file.dtypes[name])) for name in file.inputs))
    if reader.weights:
        from_torch(net, reader.weights)
    return net
