"""Builder of an ONNX graph.

As in a Net, the first axis of a tensor counts rows: samples, or in a folded net (net/fold.py) the samples of T time
steps, ordered by step. B: the batch size, known only at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singa_dask.layers import Layer
from singa_dask.layers.param import Param, Shape
from singa_dask.net import Net


class Carried(NamedTuple):
    """A state array of a recurrent layer after the last time step. shape: without the batch."""

    name: str
    tensor: str
    shape: Shape


class OnnxGraph:
    """Collects ONNX nodes and constants. Tensors are identified by name."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.carried: list[Carried] = []
        self._dims: dict[tuple[int, ...], str] = {}

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node with one output; returns the output's name."""
        return self.add_several(op, inputs, 1, **attributes)[0]

    def add_several(self, op: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Append a node with `count` outputs; returns their names."""
        from onnx import helper

        outputs = [f"{op}_{len(self.nodes)}" + (f"_{i}" if count > 1 else "") for i in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), outputs, **attributes))
        return outputs

    def constant(self, name: str, array: Any) -> str:
        """The constant of this name, created at its first use."""
        from onnx import numpy_helper

        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def parameter(self, param: Param | None, turn: tuple[int, ...] | None = None) -> list[str]:
        """A parameter as a list with its name, empty for None. turn: order of its axes in ONNX."""
        if param is None:
            return []
        value = np.asarray(self.net.ops.to_host(param.value), np.float32)
        name = param.owner.name if turn is None else f"{param.owner.name}_{''.join(map(str, turn))}"
        return [self.constant(name, value if turn is None else value.transpose(turn))]

    def flat(self, name: str, shape: Shape) -> str:
        """Samples as vectors, in singa_dask's order: height, width, channels."""
        name = self.channels_last(name, shape)
        return name if len(shape) == 1 else self.reshape(name, (prod(shape),))

    def unflat(self, name: str, shape: Shape) -> str:
        """The inverse of `flat`."""
        return self.channels_first(name if len(shape) == 1 else self.reshape(name, shape), shape)

    def channels_last(self, name: str, shape: Shape) -> str:
        """Samples of `shape`, as singa_dask has them, from tensors of ONNX (see as_onnx)."""
        last = len(shape)
        return self.add("Transpose", [name], perm=[*range(last - 2), last - 1, last, last - 2]) if last >= 3 else name

    def channels_first(self, name: str, shape: Shape) -> str:
        """The inverse of `channels_last`."""
        last = len(shape)
        return self.add("Transpose", [name], perm=[*range(last - 2), last, last - 2, last - 1]) if last >= 3 else name

    def reshape(self, name: str, shape: Shape) -> str:
        """Samples in another shape."""
        wanted = self.constant("shape_" + "x".join(map(str, shape)), np.array([-1, *shape], np.int64))
        return self.add("Reshape", [name, wanted])

    def take(self, name: str, shape: Sequence[Any], *, symbols: bool = False, value: Any = None) -> str:
        """Declare an input of the model. shape: sizes, or names of free sizes. symbols: whether it holds int64.

        value: the default of an optional input.
        """
        from onnx import TensorProto, helper

        kind = TensorProto.INT64 if symbols else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name if value is None else self.constant(name, value)

    def give(self, name: str, tensor: str, shape: Sequence[Any]) -> None:
        """Declare this tensor as an output of the model."""
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node("Identity", [tensor], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def dims(self, first: int, shape: Shape) -> str:
        """The shape (first, B, *shape) as a tensor. first: -1 for the remaining size."""
        key = (first, *shape)
        if key not in self._dims:
            batch = self._dims.get(())
            if batch is None:
                batch = self._dims[()] = self.add("Shape", [self.inputs[0].name], start=0, end=1)
            parts = [[first], *([list(shape)] if shape else [])]
            names = [self.constant("dims_" + "x".join(map(str, part)), np.array(part, np.int64)) for part in parts]
            self._dims[key] = self.add("Concat", [names[0], batch, *names[1:]], axis=0)
        return self._dims[key]

    def by_step(self, rows: str, shape: Shape) -> str:
        """Rows (T B, *shape) as (T, B, *shape)."""
        return self.add("Reshape", [rows, self.dims(-1, shape)])


def as_onnx(shape: Shape) -> Shape:
    """A sample shape in ONNX: images, and windows of images, as channels, height, width."""
    return (*shape[:-3], shape[-1], *shape[-3:-1]) if len(shape) >= 3 else shape


def source_shape(graph: OnnxGraph, layer: Layer) -> Shape:
    """The sample shape of a layer's first source."""
    shape: Shape = graph.net.source_shape(layer.name, 0)
    return shape
