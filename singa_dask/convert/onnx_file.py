"""An ONNX model whose sizes are known, without what can be computed before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erf, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from singa_dask.errors import ConfigError, Problem, nearest

ROWS = 7919  # stands for the number of rows of a mini-batch: a prime, which no other size of a net has
_MOVING = ("Concat", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_OVER_TIME = ("GRU", "LSTM", "RNN")
_SMALL = 1 << 12  # elements of a constant that shapes may depend on
_POINTS = np.linspace(-3, 3, 25)
_IN_GELU: dict[str, Any] = {"Mul": np.multiply, "Add": np.add, "Div": np.divide, "Erf": np.vectorize(erf)}
_IN_GELU |= {"Pow": np.power, "Tanh": np.tanh}
_GELU = {
    "none": _POINTS * (1 + _IN_GELU["Erf"](_POINTS / sqrt(2))) / 2,
    "tanh": _POINTS * (1 + np.tanh(sqrt(2 / pi) * (_POINTS + 0.044715 * _POINTS**3))) / 2,
}


class OnnxFile:
    """The graph of a model: nodes, the constants that they read, the shapes of tensors, and for each constant that was
    computed from a single initialiser the name of that;
    types of the inputs; those of tensors; names of those that are zero, which recurrent nodes begin with.

    shapes: of samples, by input; by default as the model has them. outputs: names of tensors, by default those that
    the model gives. Nodes that they do not depend on are left out.
    Raises ConfigError if the model cannot be read, or the shape of a sample is not known.
    """

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str] | None) -> None:
        try:
            self.model = onnx.load(model) if isinstance(model, str | Path) else model
        except Exception as error:  # the file may hold anything
            raise ConfigError(Problem(str(model), "is not a readable ONNX model", str(error))) from error
        graph = self.model.graph
        self.constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.origins = {name: name for name in self.constants}
        self.inputs = {each.name: each for each in graph.input if each.name not in self.constants}
        self.inputs = {name: _with_rows(info, shapes.get(name)) for name, info in self.inputs.items()}
        types = {name: info.type.tensor_type.elem_type for name, info in self.inputs.items()}
        self.dtypes = {name: helper.tensor_dtype_to_np_dtype(of) for name, of in types.items()}
        self.outputs = [each.name for each in graph.output] if outputs is None else list(outputs)
        known = [name for node in graph.node for name in node.output]
        for name in [name for name in self.outputs if name not in known]:
            raise ConfigError(Problem("outputs", "must be tensors of the model", repr(name), nearest(name, known)))
        self.zeros = {name for name, array in self.constants.items() if not array.any()}
        self.nodes, before = self._needed(graph.node), -1
        while before != len(self.nodes):
            before, self.shapes = len(self.nodes), self._inferred()
            self.nodes = [node for node in self.nodes if not self._folded(node)]
        for node in [node for node in self.nodes if node.op_type in ("Erf", "Tanh")]:
            self._join_gelu(node)

    def _needed(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Those that the outputs depend on."""
        for node in nodes:
            if node.op_type == "ConstantOfShape":
                zero = not any(numpy_helper.to_array(each.t).any() for each in node.attribute)
            else:
                zero = node.op_type in _MOVING and node.input[0] in self.zeros
            self.zeros |= {*node.output} if zero else set()
        needed, found = {*self.outputs}, list[onnx.NodeProto]()
        for node in reversed(nodes):
            if needed & {*node.output}:
                read = (
                    {name for name in node.input[5:7] if name in self.zeros} if node.op_type in _OVER_TIME else set()
                )
                needed |= {*node.input} - read
                found.insert(0, node)
        return found

    def _folded(self, node: onnx.NodeProto) -> bool:
        """Whether the outputs of a node are constants; they are computed then."""
        known = self.shapes.get(node.input[0]) if node.op_type == "Shape" else None
        given = {name: self.constants[name] for name in node.input if name in self.constants}
        if known is not None:
            given = {node.input[0]: np.broadcast_to(np.float32(0), known)}
        elif len(given) < len({*node.input} - {""}) or any(ROWS in self.shapes.get(o, ()) for o in node.output):
            return False
        infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in [*given, *node.output]]
        graph = helper.make_graph([node], "constant", infos[: len(given)], infos[len(given) :])
        run: Any = ReferenceEvaluator(helper.make_model(graph, opset_imports=self.model.opset_import)).run
        made = dict(zip(node.output, run(None, given), strict=True))
        if any(ROWS in array.shape for array in made.values()):
            return False
        self.constants |= made
        roots = {self.origins.get(name, "") for name in given if given[name].dtype.kind == "f"}
        self.origins |= dict.fromkeys(node.output, roots.pop()) if len(roots) == 1 else {}
        return True

    def _inferred(self) -> dict[str, tuple[int, ...]]:
        """The shapes of tensors, as far as they are known."""
        large = {name: array for name, array in self.constants.items() if array.size > _SMALL}
        made = (helper.np_dtype_to_tensor_dtype(array.dtype) for array in large.values())
        infos = [helper.make_tensor_value_info(n, kind, large[n].shape) for n, kind in zip(large, made, strict=True)]
        small = [numpy_helper.from_array(a, name) for name, a in self.constants.items() if name not in large]
        outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "shapes", [*self.inputs.values(), *infos], outputs, small)
        model = helper.make_model(graph, opset_imports=self.model.opset_import)
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
        types = {each.name: each.type.tensor_type for each in (*graph.input, *graph.value_info, *graph.output)}
        self.kinds = {name: of.elem_type for name, of in types.items()}
        found = {name: [dim.dim_value for dim in of.shape.dim] for name, of in types.items() if of.HasField("shape")}
        constant = {name: array.shape for name, array in self.constants.items()}
        return {name: tuple(sizes) for name, sizes in found.items() if all(sizes)} | constant

    def _join_gelu(self, node: onnx.NodeProto) -> None:
        """Replace a GELU around an Erf or a Tanh, however it is written, by one node."""
        before = [name for name in node.input if name not in self.constants]
        for source in before:
            values, inside = {source: _POINTS}, list[Any]()
            for other in self.nodes:
                numbers = {name: self.constants[name] for name in other.input if name in self.constants}
                read = values | {name: array.reshape(()) for name, array in numbers.items() if array.size == 1}
                if other.op_type in _IN_GELU and {*other.input} <= read.keys() and {*other.input} & values.keys():
                    y = values[other.output[0]] = _IN_GELU[other.op_type](*(read[name] for name in other.input))
                    inside.append(other)
                    kind = next((kind for kind, wanted in _GELU.items() if np.allclose(y, wanted, atol=1e-6)), None)
                    others = [n for n in self.nodes if n not in inside]
                    used = {*self.outputs, *(name for n in others for name in n.input)}
                    if kind is not None and not used & {n.output[0] for n in inside[:-1]}:
                        made = helper.make_node("Gelu", [source], other.output, approximate=kind)
                        self.nodes = [made if n is other else n for n in self.nodes if n not in inside[:-1]]
                        return
            maker = next((other for other in self.nodes if source in other.output), None)
            if maker is not None and maker.op_type in _IN_GELU:
                before += [name for name in maker.input if name not in self.constants and name not in before]


def _with_rows(info: Any, sample: Sequence[int] | None) -> Any:
    """An input with ROWS rows of samples of this shape."""
    dims = info.type.tensor_type.shape.dim
    wanted = [dim.dim_value for dim in dims[1:]] if sample is None else list(sample)
    if len(wanted) != len(dims) - 1 or not all(wanted):
        hint = f"Give the shape of a sample, without rows: shapes={{{info.name!r}: (3, 224, 224)}}."
        received = ", ".join(dim.dim_param or str(dim.dim_value or "?") for dim in dims)
        raise ConfigError(Problem(f"input {info.name!r}", "must have samples of a known shape", received, hint))
    return helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, [ROWS, *wanted])
