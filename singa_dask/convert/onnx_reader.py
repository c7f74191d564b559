"""What a tensor of an ONNX model is in a net: an array whose first axis counts the rows of the mini-batch.

In the model, rows may lie along any axis, alone or with others, as in (rows x heads, T, D). The array has them first,
and an axis for each part of an axis of the model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
from onnx.helper import get_attribute_value

from singa_dask import functions
from singa_dask.convert.onnx_file import ROWS, OnnxFile
from singa_dask.convert.onnx_net import Constant, ResultIndex, Step
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.layers import Layer

Group = Sequence[int]
_ENDS = re.compile(r"[._](weight|bias|gamma|value|table|scale|W)(_\d+)?$")  # of the names of a layer's weights


class Value(NamedTuple):
    """place: of the array among the results of a program. sizes: of its axes, ROWS first. axes: for each axis of the
    tensor in the model, the axes of the array that lie in it; one of size 1 needs none."""

    place: int
    sizes: tuple[int, ...]
    axes: tuple[Group, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor in the model."""
        return tuple(prod(self.sizes[i] for i in group) for group in self.axes)

    @property
    def rows_axis(self) -> int:
        """The axis of the tensor in which the rows lie."""
        return next(axis for axis, group in enumerate(self.axes) if 0 in group)

    @property
    def parts(self) -> list[list[int]]:
        """The sizes of what lies in the axis of the rows, and the size of each other axis."""
        return [[self.sizes[i] for i in g] if 0 in g else [prod(self.sizes[i] for i in g)] for g in self.axes]


def grouped(place: int, parts: Sequence[Sequence[int]]) -> Value:
    """A value whose array has the rows first, and then the other parts of all axes in their order."""
    places = count(1)
    axes = tuple(tuple(0 if size == ROWS else next(places) for size in own) for own in parts)
    return Value(place, (ROWS, *(size for own in parts for size in own if size != ROWS)), axes)


def split_as(parts: Sequence[int], shape: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """What the parts of a tensor are divided into where it gets another shape: all pieces in order, and how many lie
    in each axis. None if there is no common division.

    >>> split_as([5, 3, 8], [5, 6, 4])
    ([5, 3, 2, 4], [1, 2, 1])
    """
    left, pieces, counts = list(parts), list[int](), []
    for size in shape:
        before = len(pieces)
        while size > 1:
            step = left[0] if size % left[0] == 0 else size
            if left[0] % step:
                return None
            pieces.append(step)
            size, left[0] = size // step, left[0] // step
            left = left[left[0] == 1 :]
        counts.append(len(pieces) - before)
    return pieces, counts


def named(shape: Sequence[int]) -> str:
    """A shape in words of the model."""
    sizes = (str(size) if size % ROWS else f"rows x {size // ROWS}".removesuffix(" x 1") for size in shape)
    return f"({', '.join(sizes)})"


class Reader:
    """Makes the steps of a net from a model, node by node; the layers that they call, and the weights of these by
    PyTorch's names. converters: by operator."""

    def __init__(self, file: OnnxFile, converters: Mapping[str, Any]) -> None:
        self.steps, self.layers, self.weights = list[Step](), dict[str, Layer](), dict[str, np.ndarray]()
        self.file, self.tables = file, dict[str, str]()  # initialiser -> the parameter of an Embedding that has it
        self.values = {name: grouped(i, [[n] for n in file.shapes[name]]) for i, name in enumerate(file.inputs)}
        self.first = next(iter(self.values.values()))
        self._same, self._weights = dict[Any, str](), list[np.ndarray]()  # which keep their places in memory
        self._names, self._sums = Counter[str](), dict[str, str]()
        self._uses = Counter([name for node in file.nodes for name in node.input] + file.outputs)
        for node in (node for node in file.nodes if node.output[0] not in self._sums.values()):
            if node.op_type not in converters:
                raise self._problem(node, f"has no counterpart here. {nearest(node.op_type, converters)}")
            attributes = {each.name: get_attribute_value(each) for each in node.attribute}
            made = converters[node.op_type](self, node, attributes)
            outputs = [self._sums.get(name, name) for name in node.output]
            self.values |= zip(outputs, made if isinstance(made, list) else [made], strict=False)

    def call(self, of: Callable[..., Any] | str, *operands: Any, **settings: Any) -> ResultIndex:
        """Append a step. Returns the place of its result."""
        self.steps.append((of, operands, settings))
        return ResultIndex(len(self.file.inputs) + len(self.steps) - 1)

    def same(self, of: Callable[..., Any] | str, x: Value, *numbers: float, **settings: Any) -> Value:
        """A call whose result is laid out as its operand."""
        return x._replace(place=self.call(of, ResultIndex(x.place), *numbers, **settings))

    def layer(self, name: str, layer: Layer, **weights: np.ndarray | None) -> str:
        """Have a layer with these weights. Returns its name, or that of one that has them already."""
        given = {f"{name}.{key}": array for key, array in weights.items() if array is not None}
        places = tuple((array.ctypes.data, array.strides) for array in given.values())
        if given and (found := self._same.setdefault((layer.proto.SerializePartialToString(), *places), name)) != name:
            return found
        self.layers[name] = layer
        self._weights += given.values()
        self.weights |= {
            key: np.ascontiguousarray(array) for key, array in given.items()
        }  # as safetensors writes them
        return name

    def arranged(self, x: Value, groups: Sequence[Group]) -> ResultIndex:
        """An array that has the rows first, and then an axis for each group of the axes of x."""
        flat = [i for group in groups for i in group]
        order = [0, *flat, *(i for i in range(1, len(x.sizes)) if i not in flat)]  # those left out have size 1
        sizes, place = [prod(x.sizes[i] for i in group) for group in groups], ResultIndex(x.place)
        if order != [*range(len(order))]:
            place = self.call(functions.transpose, place, axes=tuple(order))
        if sizes != [x.sizes[i] for i in order[1:]]:
            place = self.call(functions.reshape, place, shape=(-1, *sizes))
        return place

    def plain(self, x: Value) -> Value:
        """The same, with the axes of the tensor. Raises ConfigError if the rows are not its first axis."""
        if tuple(x.axes[0]) != (0,):
            message = "the mini-batch must be the first axis of what a layer reads, and alone in it"
            raise ConfigError(Problem("model", message, f"axis {x.rows_axis} of a tensor {named(x.shape)}"))
        return self.tidy(x)

    def tidy(self, x: Value) -> Value:
        """The same, with one axis of the array for every axis of the tensor but that of the rows."""
        groups = [own for group in x.axes for own in (((i,) for i in group if i) if 0 in group else [group])]
        return grouped(self.arranged(x, groups), x.parts)

    def reshaped(self, x: Value, shape: Sequence[int]) -> Value:
        """The elements of x in another shape; often the same array, seen in another way."""
        flat = [i for group in x.axes for i in group if x.sizes[i] > 1]
        found = split_as([x.sizes[i] for i in flat], shape)
        if found is None:  # other sizes on either side of the rows
            at = flat.index(0)
            sides = [side for side in (flat[:at], [0], flat[at + 1 :]) if side]
            merged = self.arranged(x, [side for side in sides if side != [0]])
            x = grouped(merged, [[prod(x.sizes[i] for i in side)] for side in sides])
            flat = [group[0] for group in x.axes]
            found = split_as([x.sizes[i] for i in flat], shape)
        if found is None:
            message = f"mixes the rows of a mini-batch where it sees {named(x.shape)} as {named(shape)}"
            raise ConfigError(Problem("model", message))
        pieces, counts = found
        if len(pieces) > len(flat):
            sizes = [size for size in pieces if size != ROWS]
            ordered = self.arranged(x, [(i,) for i in flat if i])
            x = grouped(self.call(functions.reshape, ordered, shape=(-1, *sizes)), [[size] for size in pieces])
            flat = [group[0] for group in x.axes]
        rest = iter(flat)
        return Value(x.place, x.sizes, tuple(tuple(islice(rest, n)) for n in counts))

    def aligned(self, name: str, operands: Sequence[Value | np.ndarray], matrices: int = 0) -> tuple[list[Any], Value]:
        """Arrays of tensors, and numbers, that broadcast as the tensors do, and the value of the result, without its
        place. matrices: how many of the last axes are not broadcast. name: of a constant among them."""
        values, rank = [x for x in operands if isinstance(x, Value)], max(len(x.shape) for x in operands)
        found = {(rank - len(x.axes) + x.rows_axis, tuple(x.parts[x.rows_axis])) for x in values}
        if len(found) > 1 or max(found)[0] >= rank - matrices:
            shapes = " and ".join(named(x.shape) for x in operands)
            raise ConfigError(Problem("model", "mixes the rows of a mini-batch", shapes))
        ((at, own),) = found
        arrays = [self._operand(name, x, rank, at, len(own), values[0]) for x in operands]
        shape = np.broadcast_shapes(*(x.shape[: len(x.shape) - matrices] for x in operands))
        return arrays, grouped(-1, [own if axis == at else [size] for axis, size in enumerate(shape)])

    def _operand(self, name: str, x: Value | np.ndarray, rank: int, at: int, parts: int, rows: Value) -> Any:
        """Of tensors of `rank` axes whose rows are in axis `at`, in which so many parts lie."""
        missing = rank - len(x.shape)
        if isinstance(x, Value):
            groups: list[Group] = [()] * missing
            for axis, group in enumerate(x.axes, missing):
                groups += [(i,) for i in group if i] if axis == at else [group]
            return self.arranged(x, groups)
        if x.size == 1:
            return float(x.reshape(-1)[0])
        shape = [*[1] * missing, *x.shape]
        if shape[at] != 1:
            raise ConfigError(Problem("model", "has a constant that differs from row to row", f"{name} {x.shape}"))
        return self.repeated(name, x.reshape(*shape[:at], *[1] * (parts - 1), *shape[at + 1 :]), rows)

    def repeated(self, name: str, array: np.ndarray, rows: Value) -> ResultIndex:
        """An array for every row of another value; one that is not of finite real numbers does not learn."""
        learns = array.dtype.kind == "f" and bool(np.isfinite(array).all())
        param = {} if learns else {"lr_scale": 0, "wd_scale": 0}
        layer = Constant(param=param, shape=list(array.shape))
        return self.call(self.layer(name, layer, value=array.astype(np.float32)), ResultIndex(rows.place))

    # What converters ask for:

    def value(self, node: Any, i: int = 0) -> Value:
        """An input that depends on samples."""
        if node.input[i] not in self.values:
            raise self._problem(node, f"reads a constant where samples were expected: {node.input[i]}")
        return self.values[node.input[i]]

    def shape(self, node: Any) -> tuple[int, ...]:
        """Of its output. Raises ConfigError if it is not known."""
        if node.output[0] not in self.file.shapes:
            raise self._problem(node, "makes a tensor whose shape depends on what the model computes")
        return self.file.shapes[node.output[0]]

    def constant(self, node: Any, i: int) -> np.ndarray | None:
        """An input that is constant; None if it is missing or depends on samples."""
        return self.file.constants.get(node.input[i]) if i < len(node.input) else None

    def weight(self, node: Any, i: int) -> np.ndarray:
        """An input that must be constant."""
        found = self.constant(node, i)
        return self.refuse(node, f"input {i}", "what the model computes") if found is None else found

    def used(self, node: Any, i: int) -> bool:
        """Whether something reads an output."""
        return i < len(node.output) and self._uses[node.output[i]] > 0

    def operands(self, node: Any) -> list[Any]:
        """All inputs, of which one depends on samples."""
        return [self.values[name] if name in self.values else self.file.constants[name] for name in node.input]

    def numbers(self, node: Any, a: Mapping[str, Any], key: str, i: int) -> list[int]:
        """Numbers that are an attribute in some versions and an input in others."""
        given = a.get(key, ()) if key in a or i >= len(node.input) or not node.input[i] else self.weight(node, i)
        return [int(number) for number in given]

    def axis_of(self, node: Any, x: Value, axis: int) -> tuple[Value, int]:
        """The value with one axis of its array for this one of the tensor, and that axis."""
        axis %= len(x.axes)
        if axis == x.rows_axis:
            self.refuse(node, "axis", f"{axis}, along which the rows of the mini-batch lie")
        x = self.tidy(x)
        return x, x.axes[axis][0]

    def taken(self, node: Any, x: Value, axis: int, chosen: Any) -> Value:
        """The elements at an index, at several, or in a range, along an axis."""
        x, at = self.axis_of(node, x, axis)
        index = chosen
        if isinstance(chosen, range):
            index = slice(chosen.start, None if chosen.stop < 0 else chosen.stop, chosen.step)
        place = self.call(functions.getitem, ResultIndex(x.place), index=(*[slice(None)] * at, index))
        if isinstance(chosen, int):
            return self.without(x, axis, place)
        return Value(place, (*x.sizes[:at], len(chosen), *x.sizes[at + 1 :]), x.axes)

    def without(self, x: Value, axis: int, place: ResultIndex) -> Value:
        """The result of what leaves out an axis."""
        axis %= len(x.axes)
        return grouped(place, [own for i, own in enumerate(x.parts) if i != axis])

    def layer_of(self, node: Any, layer: Any, x: Value, **weights: np.ndarray | None) -> Value:
        """The result of a layer of images."""
        name = self.layer(self.name(node, 1) if weights else self.unique(node.op_type.lower()), layer, **weights)
        place = self.call(name, ResultIndex(self.plain(x).place))
        return grouped(place, [[size] for size in self.shape(node)])

    def name(self, node: Any, i: int) -> str:
        """Of a layer: what stands before the name of its weight."""
        given = self.file.origins.get(node.input[i]) or node.output[0]
        return self.unique(_ENDS.sub("", given).strip("/").replace("/", "."))

    def unique(self, name: str) -> str:
        """A name that no other layer has."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"

    def bias_after(self, node: Any, size: int) -> np.ndarray | None:
        """The bias that is added to a product next, if that is all that reads it; the product then makes the sum."""
        output = node.output[0]
        users = [other for other in self.file.nodes if output in other.input and other.op_type == "Add"]
        names = [name for other in users for name in other.input if name != output]
        bias = self.file.constants.get(names[0]) if names and self._uses[output] == 1 else None
        if bias is None or bias.shape != (size,):
            return None
        self._sums[output] = users[0].output[0]
        if "::" in node.input[1]:  # the exporter has turned the weight
            self.file.origins[node.input[1]] = names[0]
        return bias

    def refuse(self, node: Any, key: str, value: Any) -> NoReturn:
        """Raise ConfigError for a setting without a counterpart."""
        raise self._problem(node, f"{key} must not be {value}")

    def _problem(self, node: Any, message: str) -> ConfigError:
        return ConfigError(Problem(f"node {node.name or node.output[0]!r} ({node.op_type})", message))
