"""Gradients in a net: what `autograd.grad` gives of layers, in the `forward` of a Module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format

from singa_dask.errors import ConfigError, Problem
from singa_dask.functions import detach, ones_like, zeros_like
from singa_dask.job.formulas import function_of
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.layers.base import Layer
from singa_dask.layers.formula import Lambda
from singa_dask.layers.node import Node
from singa_dask.layers.param import Shape
from singa_dask.layers.registry import layer_class
from singa_dask.tensors.state import called_by
from singa_dask.tensors.tape import gradients_in_functions
from singa_dask.tensors.tensor import Tensor


class Gradient(Lambda):
    """The gradient for one source of a layer, from that of its output.   (dy, x_1, ..., x_n) -> dx_i, as x_i

    The layer consists of functions, so that this has gradients again. It has the parameters of the layer.
    user_conf: layer, its message; source: i, from 0.
    """

    def __init__(self, of: Layer, source: int) -> None:
        proto = LayerProto()
        proto.CopyFrom(of.proto)
        for field in ("name", "srclayers", "param"):
            proto.ClearField(field)
        layer = text_format.MessageToString(proto, as_one_line=True)
        Layer.__init__(self, param=list(of.proto.param), layer=layer, source=source)
        self.template = of.template or of

    def setup(self, *src: Shape) -> Shape:
        proto = text_format.Parse(self.given["layer"], LayerProto())
        proto.name, proto.share_params = self.proto.name, self.proto.share_params
        proto.param.extend(self.proto.param)
        proto.srclayers.extend(self.proto.srclayers[1:])
        self.layer = layer_class(proto).from_proto(proto)
        self.layer.setup(*self.sources(src)[1:])
        self.params = self.layer.params
        return super().setup(*src)

    def formula(self, *tensors: Any) -> Any:
        dy, *x = tensors
        i = self.given["source"]
        with called_by("function", remembers=True):
            if not x[i].requires_grad:
                x[i] = Tensor.made(x[i].array, x[i].device, None, requires_grad=True)
            assert self.layer.formula is not None
            y = self.layer.formula(*x)
            if y.shape != dy.shape:
                raise self.problem(f"a training loop gives {y.shape} where the net gives", dy.shape)
            (found,) = gradients_in_functions(y, dy, [x[i]])
        return zeros_like(x[i]) if found is None else found


def gradients(
    self: Node, outputs: Sequence[Any], inputs: Sequence[Any], factors: Sequence[Any], *, create_graph: bool
) -> list[Any]:
    """See autograd.grad. Raises ConfigError for an input on which the outputs do not depend, and where a layer between
    them does not consist of functions."""
    order = _between(inputs, outputs)
    known = {id(node) for node in order}
    found: dict[int, Any] = {}

    def add(node: Any, gradient: Any) -> None:
        found[id(node)] = found[id(node)] + gradient if id(node) in found else gradient

    for output, factor in zip(outputs, factors, strict=True):
        if id(output) in known:
            add(output, ones_like(output) if factor is None else ones_like(output) * factor)
    for node in reversed(order):
        for i, source in enumerate(node.inputs if id(node) in found else ()):
            if id(source) in known:
                if node.formula is None or node.is_loss:
                    hint = "InnerProduct, activations and the functions of singa_dask.autograd do."
                    raise node.problem(
                        "does not consist of functions, so that a net has no gradients of it", hint=hint
                    )
                add(source, Gradient(node, i)(found[id(node)], *node.inputs))
    for i, each in enumerate(inputs):
        if id(each) not in found:
            raise ConfigError(Problem("grad", "the outputs do not depend on an input", f"inputs[{i}], {each!r}"))
    return [found[id(each)] if create_graph else detach(found[id(each)]) for each in inputs]


Node._grad_nodes = gradients  # type: ignore[method-assign]


def _between(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """The layers over which gradients go back to the inputs, and these, sources first."""
    every: dict[int, Any] = {}
    left = [*outputs, *inputs]
    while left:
        node = left.pop()
        if isinstance(node, Node) and id(node) not in every:
            every[id(node)] = node
            left += node.inputs
    leads, order = {id(each) for each in inputs}, []
    for node in sorted(every.values(), key=lambda node: node.number):
        if id(node) in leads or (_differentiable(node) and any(id(source) in leads for source in node.inputs)):
            leads.add(id(node))
            order.append(node)
    return order


def _differentiable(node: Node) -> bool:
    name = node.user_conf.get("function") if isinstance(node, Lambda) else None
    return name is None or getattr(function_of(name), "differentiable", True)
