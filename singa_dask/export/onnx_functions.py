"""Functions as ONNX nodes: a function is called on traced tensors, and each primitive that it calls becomes a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singa_dask.export.onnx_graph import OnnxGraph, as_onnx
from singa_dask.functions import equal, not_equal
from singa_dask.functions.operators import Operators
from singa_dask.functions.primitive import Primitive
from singa_dask.layers.formula import Lambda

ROWS = 61  # of the arrays that shapes are taken from: a size that nothing else has
_FLOAT = 1  # TensorProto.FLOAT
_NODES = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "power": "Pow",
    "negative": "Neg",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sign": "Sign",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "maximum": "Max",
    "minimum": "Min",
    "where": "Where",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "equal": "Equal",
    "matmul": "MatMul",
    "detach": "Identity",
}


class Traced(Operators):
    """A tensor of the graph. value: an array like it, of ROWS rows."""

    def __init__(self, layer: Lambda, graph: OnnxGraph, name: str, value: Any) -> None:
        self.layer, self.graph, self.name, self.value = layer, graph, name, np.asarray(value)
        self.shape, self.ndim = self.value.shape, self.value.ndim

    def __len__(self) -> int:
        return len(self.value)

    def __eq__(self, other: object) -> Any:
        return equal(self, other)

    def __ne__(self, other: object) -> Any:
        return not_equal(self, other)

    __hash__ = object.__hash__

    def _recorded(self, primitive: Primitive, operands: Sequence[Any], settings: dict[str, Any]) -> Traced:
        values = [each.value if isinstance(each, Traced) else each for each in operands]
        with np.errstate(all="ignore"):
            y = np.asarray(primitive.computed(np, values, operands, settings))
        name = str(primitive)
        graph = self.graph
        inputs = [self._named(each, real=primitive.real) for each in operands]
        if name in _NODES:
            found = graph.add(_NODES[name], inputs)
        elif name in _MORE:
            found = _MORE[name](graph, inputs, {**settings, "axes_of_source": np.ndim(values[0])}, y)
        else:
            found = ""
        if not found:
            hint = "Leave it out of the outputs, or write it by other functions."
            raise self.layer.problem(f"has no counterpart in ONNX, since it calls {name}", hint=hint)
        return Traced(self.layer, graph, found, y)

    def _named(self, operand: Any, *, real: bool) -> str:
        """The name of an operand in the graph."""
        if isinstance(operand, Traced):
            cast = real and operand.value.dtype.kind in "biu"
            return self.graph.add("Cast", [operand.name], to=_FLOAT) if cast else operand.name
        if operand is None:
            return ""
        array = np.asarray(operand)
        as_real = real or array.dtype.kind == "f" or not array.ndim
        return _constant(self.graph, array.astype(np.float32) if as_real else array)


def function_node(graph: OnnxGraph, layer: Lambda, *names: str) -> str:
    """What the function of a layer gives. Raises ConfigError for a function that ONNX has not."""
    shapes = list(layer.shapes)
    if layer.steps > 1 or any(len(shape) > 3 for shape in shapes):
        raise layer.problem("has no counterpart in ONNX, in a net over time or of volumes")
    draw = np.random.default_rng(0)
    sources = [
        Traced(layer, graph, name, draw.uniform(0.25, 0.75, (ROWS, *as_onnx(shape))).astype(np.float32))
        for name, shape in zip(names, shapes, strict=True)
    ]
    own = [Traced(layer, graph, graph.parameter(param)[0], param.value) for param in layer.params]
    return layer.formula(*sources, *own).name


def _constant(graph: OnnxGraph, array: Any) -> str:
    array = np.asarray(array)
    return graph.constant(f"constant{len(graph.constants)}", array)


def _sizes(graph: OnnxGraph, shape: Sequence[int], rows: int) -> str:
    """A shape, in which what depends on the number of rows is `rows`."""
    return _constant(graph, np.array([rows if size % ROWS == 0 else size for size in shape], np.int64))


def _reduced(op: str) -> Callable[..., str]:
    def node(graph: OnnxGraph, inputs: Sequence[str], settings: dict[str, Any], y: Any) -> str:
        axis, keep = settings.get("axis"), int(settings.get("keepdims", False))
        axes = None if axis is None else [*axis] if isinstance(axis, tuple | list) else [axis]
        if op == "ReduceSum":
            return graph.add(
                op, [*inputs, *([] if axes is None else [_constant(graph, np.array(axes))])], keepdims=keep
            )
        return graph.add(op, inputs, keepdims=keep, **({} if axes is None else {"axes": axes}))

    return node


def _normalised(op: str) -> Callable[..., str]:
    def node(graph: OnnxGraph, inputs: Sequence[str], settings: dict[str, Any], y: Any) -> str:
        axis = settings.get("axis", -1)
        return graph.add(op, inputs, axis=axis) if isinstance(axis, int) else ""

    return node


def _item(graph: OnnxGraph, inputs: Sequence[str], settings: dict[str, Any], y: Any) -> str:
    """Slices, integers, None and ...; or one array along the last axis of the index."""
    index, name, arrays = list(settings["index"]), inputs[0], list(inputs[1:])
    for place in [i for i, each in enumerate(index) if each is Ellipsis]:
        missing = settings["axes_of_source"] - len([each for each in index if each is not None]) + 1
        index[place : place + 1] = [slice(None)] * missing
    axis = 0
    gone: list[int] = []
    more: list[int] = []
    cuts: list[tuple[int, int, int, int]] = []
    for each in index:
        if each is None:
            more.append(axis - len(gone) + len(more))
            continue
        if isinstance(each, int):
            cuts.append((axis, each, each + 1 or np.iinfo(np.int64).max, 1))
            gone.append(axis)
        elif isinstance(each, slice) and each != slice(None):
            step = each.step or 1
            start = each.start if each.start is not None else 0 if step > 0 else np.iinfo(np.int64).max
            stop = each.stop if each.stop is not None else np.iinfo(np.int64).max * (1 if step > 0 else -1)
            cuts.append((axis, start, stop, step))
        elif not isinstance(each, slice):
            if len(arrays) != 1 or cuts or gone or more:
                return ""
            return graph.add("Gather", [name, arrays[0]], axis=axis) if axis == len(index) - 1 else ""
        axis += 1
    if cuts:
        axes, starts, stops, steps = (_constant(graph, np.array(each, np.int64)) for each in zip(*cuts, strict=True))
        name = graph.add("Slice", [name, starts, stops, axes, steps])
    for op, axes_of in (("Squeeze", gone), ("Unsqueeze", more)):
        if axes_of:
            name = graph.add(op, [name, _constant(graph, np.array(axes_of, np.int64))])
    return name


_MORE: dict[str, Callable[..., str]] = {
    "clip": lambda graph, inputs, settings, y: graph.add("Clip", inputs),
    "not_equal": lambda graph, inputs, settings, y: graph.add("Not", [graph.add("Equal", inputs)]),
    "sum": _reduced("ReduceSum"),
    "max": _reduced("ReduceMax"),
    "min": _reduced("ReduceMin"),
    "logsumexp": _reduced("ReduceLogSumExp"),
    "softmax": _normalised("Softmax"),
    "log_softmax": _normalised("LogSoftmax"),
    "reshape": lambda graph, inputs, settings, y: graph.add("Reshape", [*inputs, _sizes(graph, y.shape, -1)]),
    "broadcast_to": lambda graph, inputs, settings, y: graph.add("Expand", [*inputs, _sizes(graph, y.shape, 1)]),
    "transpose": lambda graph, inputs, settings, y: graph.add("Transpose", inputs, perm=settings["axes"]),
    "concatenate": lambda graph, inputs, settings, y: graph.add("Concat", inputs, axis=settings["axis"]),
    "einsum": lambda graph, inputs, settings, y: graph.add("Einsum", inputs, equation=settings["spec"]),
    "getitem": _item,
    "pad": lambda graph, inputs, settings, y: graph.add(
        "Pad",
        [
            *inputs,
            _constant(graph, np.array([*zip(*settings["widths"], strict=True)], np.int64).reshape(-1)),
            _constant(graph, np.float32(settings["value"])),
        ],
    ),
}
