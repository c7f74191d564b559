"""Layers of images, volumes and sequences as ONNX operators: windows, normalisation, pieces.

(graph, layer, names of the sources) -> name or names of the outputs, as in export/onnx.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from singa_dask.export.onnx_graph import OnnxGraph, as_onnx, source_shape
from singa_dask.job.job_pb2 import UpsamplingProto
from singa_dask.layers import Layer
from singa_dask.layers.connection import array_axis, channels_first
from singa_dask.layers.param import Shape


def convolution(graph: OnnxGraph, layer: Any, x: str) -> str:
    return _moving(graph, layer, x, "Conv")


def transposed_convolution(graph: OnnxGraph, layer: Any, x: str) -> str:
    axes = len(source_shape(graph, layer)) - 1
    return _moving(graph, layer, x, "ConvTranspose", output_padding=[layer.conf.output_pad] * axes)


def _moving(graph: OnnxGraph, layer: Any, x: str, op: str, **options: Any) -> str:
    """A convolution along the axes of sequences, images or volumes."""
    axes = len(source_shape(graph, layer)) - 1
    weight = graph.parameter(layer.weight, (axes + 1, axes, *range(axes)))
    options |= {**_window(graph, layer), "dilations": layer.window.dilation[-axes:], "group": layer.conf.groups}
    return _by_channels(graph, layer, x, op, [*weight, *graph.parameter(layer.bias)], **options)


def _by_channels(graph: OnnxGraph, layer: Any, x: str, op: str, more: Sequence[str] = (), **options: Any) -> str:
    """An operator that wants the channels right after the rows, on sequences, images, volumes or vectors."""
    shape = source_shape(graph, layer)
    axes = len(shape) - 1
    if axes in (0, 2):
        return graph.add(op, [x, *more], **options)
    turn, back = (0, axes + 1, *range(1, axes + 1)), (0, *range(2, axes + 2), 1)
    x = graph.add("Transpose", [graph.channels_last(x, shape)], perm=turn)
    y = graph.add("Transpose", [graph.add(op, [x, *more], **options)], perm=back)
    return graph.channels_first(y, graph.net.shapes[layer.name])


def upsampling(graph: OnnxGraph, layer: Any, x: str) -> str:
    factor, axes = float(layer.conf.factor), len(source_shape(graph, layer)) - 1
    scales = graph.constant(f"by_{factor:g}_{axes}", np.array([1, 1, *(factor,) * axes], np.float32))
    if layer.conf.method == UpsamplingProto.NEAREST:
        how = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    else:
        how = {"coordinate_transformation_mode": "half_pixel", "mode": "linear"}
    return _by_channels(graph, layer, x, "Resize", ["", scales], **how)


def pooling(graph: OnnxGraph, layer: Any, x: str) -> str:
    window = _window(graph, layer) | {"ceil_mode": int(layer.conf.ceil_mode)}
    if layer.is_max:
        return _by_channels(graph, layer, x, "MaxPool", **window)
    if layer.overhangs:
        hint = "Use padding in place of ceil_mode, or pool MAX."
        raise layer.problem("averages windows beyond the image, by which ONNX runtimes differ", "ceil_mode", hint)
    return _by_channels(graph, layer, x, "AveragePool", count_include_pad=1, **window)


def global_pooling(graph: OnnxGraph, layer: Any, x: str) -> str:
    return _by_channels(graph, layer, x, "GlobalMaxPool" if layer.is_max else "GlobalAveragePool")


def _window(graph: OnnxGraph, layer: Any) -> dict[str, Any]:
    axes, window = len(source_shape(graph, layer)) - 1, layer.window  # sequences are computed as images of height 1
    kernel, stride, pad = (sizes[-axes:] for sizes in window.sizes)
    return {"kernel_shape": kernel, "strides": stride, "pads": [*pad, *pad]}


def lrn(graph: OnnxGraph, layer: Any, x: str) -> str:
    conf = layer.conf
    return graph.add("LRN", [x], size=conf.local_size, alpha=conf.alpha, beta=conf.beta, bias=conf.knorm)


def batch_norm(graph: OnnxGraph, layer: Any, x: str) -> str:
    params = [name for p in (layer.scale, layer.bias, layer.mean, layer.var) for name in graph.parameter(p)]
    return _by_channels(graph, layer, x, "BatchNormalization", params, epsilon=layer.conf.epsilon)


def layer_norm(graph: OnnxGraph, layer: Any, x: str) -> str:
    shape, epsilon = source_shape(graph, layer), layer.conf.epsilon
    params = [*graph.parameter(layer.scale), *graph.parameter(layer.bias)]
    y = graph.add("LayerNormalization", [graph.channels_last(x, shape), *params], axis=-1, epsilon=epsilon)
    return graph.channels_first(y, shape)


def group_norm(graph: OnnxGraph, layer: Any, x: str) -> str:
    shape, groups = source_shape(graph, layer), layer.conf.num_groups
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


def preprocess(graph: OnnxGraph, layer: Any, x: str) -> str:
    height, width, _ = source_shape(graph, layer)
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


def slice_(graph: OnnxGraph, layer: Any, x: str) -> str | list[str]:
    dim, shape = layer.conf.slice_dim, source_shape(graph, layer)
    if dim == 0:
        raise layer.problem("slices the batch, and a model must take any batch size", "slice_dim: 0")
    size = shape[array_axis(dim, shape) - 1]
    sizes = [stop - start for start, stop in layer.bounds(size)]
    parts = graph.constant(f"{layer.name}_sizes", np.array(sizes, np.int64))
    pieces = graph.add_several("Split", [x, parts], len(sizes), axis=_onnx_axis(dim, shape))
    return pieces if layer.multiple_outputs else pieces[layer.conf.piece]


def concate(graph: OnnxGraph, layer: Layer, *x: str) -> str:
    dim = layer.conf.concate_dim
    return graph.add("Concat", x, axis=_onnx_axis(dim, source_shape(graph, layer)) if dim else 0)


def reshape(graph: OnnxGraph, layer: Any, x: str) -> str:
    before, after = source_shape(graph, layer), graph.net.shapes[layer.name]
    y = graph.add("Transpose", [graph.channels_last(x, before)], perm=(0, len(before), *range(1, len(before))))
    y = graph.reshape(y, channels_first(after))
    return graph.channels_first(graph.add("Transpose", [y], perm=(0, *range(2, len(after) + 1), 1)), after)


def _onnx_axis(dim: int, shape: Shape) -> int:
    """The axis of SINGA's dimension `dim` of samples of `shape` (see as_onnx)."""
    places = as_onnx(tuple(range(1, len(shape) + 1)))
    return 1 + places.index(array_axis(dim, shape))
