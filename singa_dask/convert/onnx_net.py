"""An ONNX model as a Module: built-in layers where there is one, and functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from onnx.helper import get_attribute_value

from singa_dask import functions
from singa_dask.convert.onnx_file import OnnxFile
from singa_dask.convert.onnx_ops import CONVERTERS
from singa_dask.convert.onnx_values import Place, Program, Value, grouped
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.layers.module import Module

_ENDS = re.compile(r"[._](weight|bias|gamma|value|table|scale)(_\d+)?$")  # of the names of a layer's weights


class ImportedNet(Module):
    """The net of an ONNX model. weights: of its layers, as `convert.from_torch` takes them.

    It reads the inputs of the model in their order: images (B, channels, height, width), as tensors are.
    channels_first: so are flattened images.
    """

    channels_first = True

    def __init__(self, program: Program, outputs: Sequence[int]) -> None:
        self.weights = program.weights
        self._program, self._outputs = tuple(program.steps), tuple(outputs)
        vars(self).update(program.layers)

    def forward(self, *x: Any) -> Any:
        given, results = iter(x), list[Any]()
        for step in self._program:
            if step is None:
                results.append(next(given))
                continue
            operands = [results[each] if isinstance(each, Place) else each for each in step.operands]
            of = vars(self)[step.of] if isinstance(step.of, str) else step.of
            results.append(of(operands, **step.settings) if step.listed else of(*operands, **step.settings))
        outputs = [results[place] for place in self._outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def net_of(model: Any, shapes: Mapping[str, Sequence[int]]) -> ImportedNet:
    """See `convert.from_onnx`."""
    reader = Reader(OnnxFile(model, shapes))
    return ImportedNet(reader, [reader.plain(reader.values[name]).place for name in reader.file.outputs])


class Reader(Program):
    """Makes the program of a model, node by node."""

    def __init__(self, file: OnnxFile) -> None:
        super().__init__()
        self.file, self.tables = file, dict[str, str]()  # initialiser -> the parameter of an Embedding that has it
        self.steps += [None] * len(file.inputs)
        self.values = {name: grouped(i, [[n] for n in file.shapes[name]]) for i, name in enumerate(file.inputs)}
        self.first = next(iter(self.values.values()))
        self._names, self._sums = Counter[str](), dict[str, str]()
        self._uses = Counter([name for node in file.nodes for name in node.input] + file.outputs)
        for node in (node for node in file.nodes if node.output[0] not in self._sums.values()):
            if node.op_type not in CONVERTERS:
                raise self._problem(node, f"has no counterpart here. {nearest(node.op_type, CONVERTERS)}")
            attributes = {each.name: get_attribute_value(each) for each in node.attribute}
            made = CONVERTERS[node.op_type](self, node, attributes)
            outputs = [self._sums.get(name, name) for name in node.output]
            self.values |= zip(outputs, made if isinstance(made, list) else [made], strict=False)

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
        place = self.call(functions.getitem, Place(x.place), index=(*[slice(None)] * at, index))
        if isinstance(chosen, int):
            return self.without(x, axis, place)
        return Value(place, (*x.sizes[:at], len(chosen), *x.sizes[at + 1 :]), x.axes)

    def without(self, x: Value, axis: int, place: Place) -> Value:
        """The result of what leaves out an axis."""
        axis %= len(x.axes)
        return grouped(place, [own for i, own in enumerate(x.parts) if i != axis])

    def layer_of(self, node: Any, layer: Any, x: Value, **weights: np.ndarray | None) -> Value:
        """The result of a layer of images."""
        name = self.layer(self.name(node, 1) if weights else self.unique(node.op_type.lower()), layer, **weights)
        place = self.call(name, Place(self.plain(x).place))
        return grouped(place, [[size] for size in self.shape(node)])

    def name(self, node: Any, i: int) -> str:
        """Of a layer: what stands before the name of its weight."""
        given = self.file.origins.get(node.input[i], node.output[0])
        return self.unique(_ENDS.sub("", given).strip("/").replace("/", "."))

    def unique(self, name: str) -> str:
        """A name that no other layer has."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"

    def bias_after(self, node: Any, size: int) -> np.ndarray | None:
        """The bias that is added to a product next, if that is all that reads it; the product then makes the sum."""
        output = node.output[0]
        users = [other for other in self.file.nodes if output in other.input and other.op_type == "Add"]
        added = [self.file.constants.get(name) for other in users for name in other.input if name != output]
        if self._uses[output] != 1 or not added or added[0] is None or added[0].shape != (size,):
            return None
        self._sums[output] = users[0].output[0]
        return added[0]

    def refuse(self, node: Any, key: str, value: Any) -> NoReturn:
        """Raise ConfigError for a setting without a counterpart."""
        raise self._problem(node, f"{key} must not be {value}")

    def _problem(self, node: Any, message: str) -> ConfigError:
        return ConfigError(Problem(f"node {node.name or node.output[0]!r} ({node.op_type})", message))
