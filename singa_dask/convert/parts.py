"""The layers of a net that have parameters, as modules of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from singa_dask.convert.table import Form, Transposition, WeightRow, forms_of
from singa_dask.errors import ConfigError, Problem, SingaError
from singa_dask.job.unroll import origin
from singa_dask.layers import (
    ELU,
    GELU,
    Activation,
    Attention,
    BatchNorm,
    ClassToken,
    Convolution,
    Dropout,
    Embedding,
    GroupNorm,
    Lambda,
    LayerNorm,
    LeakyReLU,
    Loss,
    Pooling,
    PositionalEmbedding,
    RecordInput,
    RecurrentLayer,
    ReLU,
    Reshape,
    Sigmoid,
    SiLU,
    STanh,
    Tanh,
    TransposedConvolution,
    Upsampling,
)
from singa_dask.layers.base import Layer
from singa_dask.layers.inner_product import InnerProduct
from singa_dask.layers.kept import Kept
from singa_dask.layers.module import Module
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.recurrent import Recurrent
from singa_dask.net import Net
from singa_dask.tensors.device import Device
from singa_dask.tensors.tensor import Parameter, Tensor

State = Mapping[str, np.ndarray]
Shapes = Mapping[str, Shape]
# What a recurrent module calls its layers and directions.
_LAYER_THERE = re.compile(r"(?:(.*)\.)?(l\d+(?:_reverse)?)")
_SHOWN = 4
_FUNCTIONS = ("abs", "clip", "cos", "exp", "log", "negative", "relu", "sigmoid", "sin", "softplus", "sqrt", "tanh")
# What has sequences as (B, C, T) in PyTorch, and what as (B, T, C).
_OF_CHANNELS = BatchNorm | Convolution | GroupNorm | Pooling | TransposedConvolution | Upsampling
_OF_TOKENS = Attention | ClassToken | Embedding | LayerNorm | PositionalEmbedding | RecurrentLayer | Recurrent
_ELEMENTWISE = (Activation, Dropout, ELU, GELU, LeakyReLU, ReLU, Sigmoid, SiLU, STanh, Tanh)


@dataclass
class ConvertedLayer:
    """A layer, which is set up, and the module of PyTorch that it is. shape: of the layer's first source. dtype: of
    its parameters. form: in which they are there."""

    name: str
    layer: Layer
    shape: Callable[[], Shape]
    dtype: Any
    module: str = ""
    form: Form = ()

    @property
    def params(self) -> dict[str, Param]:
        """By role."""
        return {param.role: param for param in self.layer.params}

    @property
    def forms(self) -> tuple[Form, ...]:
        """In which its parameters can be there. Raises ConfigError if there are others."""
        forms = forms_of(self.layer)
        if rest := self.params.keys() - {role for row in (forms[0] if forms else ()) for role in row.roles}:
            own = f"give its class torch_axes = {{{min(rest)!r}: 'O I -> I O'}}, the axes there and here"
            hint = f"Leave it out by names={{{self.name!r}: None}}, or {own}."
            message = f"{type(self.layer).__name__} has no counterpart in PyTorch"
            raise self.layer.problem(message, ", ".join(sorted(rest)), hint)
        return tuple(tuple(row for row in form if row.roles[0] in self.params) for form in forms)

    def at(self, module: str, shapes: Shapes) -> ConvertedLayer:
        """This part as a module, in the form of which most tensors are there. shapes: of those that there are."""
        every = [replace(self, module=module, form=form) for form in self.forms]
        return max(
            every, key=lambda part: sum((name in shapes) + (shapes.get(name) == of) for name, of in part.tensors)
        )

    @property
    def tensors(self) -> list[tuple[str, Shape]]:
        """Names and shapes of its tensors there."""
        return [(name, self._turn(row).shape_there) for row in self.form for name in self._names(row)]

    def missing(self, names: Collection[str], tensors: Collection[str]) -> Iterator[str]:
        """Of the tensors those that are not there, of parameters that no other layer gets. names: of what there is."""
        for row in self.form:
            if any(self.params[role].owner.name not in names for role in row.roles):
                yield from (name for name in self._names(row) if name not in tensors)

    def to_here(self, state: State) -> Iterator[tuple[str, np.ndarray]]:
        """The parameters by name, as far as there are tensors. Raises ConfigError for what the layer cannot have."""
        for row in self.form:
            names = self._names(row)
            if any(name not in state for name in names):
                continue
            array, *more = (self._turn(row).to_here(state[name]) for name in names)
            for added in more:
                if row.apart and np.any(added[row.roles.index(row.apart)]):
                    message = f"has no bias that is added before the reset gate is applied, and {names[1]!r} has one"
                    hint = "Train the net with zeros there, the last third of the tensor, or use LSTM."
                    raise self.layer.problem(message, "values other than 0", hint)
                array = array + added
            for role, each in zip(row.roles, array if row.gates else [array], strict=True):
                yield self.params[role].owner.name, each

    def to_there(self, arrays: State) -> Iterator[tuple[str, np.ndarray]]:
        """The tensors by name. arrays: the parameters by name."""
        for row in self.form:
            every = [arrays[self.params[role].owner.name] for role in row.roles]
            array = self._turn(row).to_there(np.stack(every) if row.gates else every[0])
            yield from zip(self._names(row), (np.ascontiguousarray(array), np.zeros_like(array)), strict=False)

    def _turn(self, row: WeightRow) -> Transposition:
        whole, shape, sizes = self.params[row.roles[0]].whole_shape, self.shape(), {"g": len(row.roles)}
        if _flattens(self.layer):
            sizes |= {"C": shape[-1], **{f"*{i}": size for i, size in enumerate(shape[:-1])}}
        if self.layer.units:  # heads
            sizes["N"] = self.layer.units
        return Transposition.of(row.axes, (len(row.roles), *whole) if row.gates else whole, sizes, len(shape) - 1)

    def _names(self, row: WeightRow) -> list[str]:
        """Of the tensors of a row; "rnn.l1" and "rnn.l0_reverse" are a layer and a direction of a recurrent module."""
        module, where = self.module, "l0"
        if "{l}" in row.tensor and (found := _LAYER_THERE.fullmatch(module)):
            module, where = found[1] or "", found[2]
        names = [name.replace("{l}", where) for name in (row.tensor, row.added)[: 1 + bool(row.added)]]
        return [".".join(filter(None, (module, name))) for name in names]


def _flattens(layer: Layer) -> bool:
    return isinstance(layer, InnerProduct) and not hasattr(layer, "torch_axes")


def parts_of(net: Net | Module) -> list[ConvertedLayer]:
    """The layers that have parameters, in order; an unrolled one once. Of a Module those called on arrays."""
    if isinstance(net, Module):
        every = {key: (name, layer.kept) for key, (name, layer) in net.named_layers().items()}
        called = {key: (name, kept) for key, (name, kept) in every.items() if kept is not None and kept.made}
        outputs = {key: next(iter(kept.made.values())).shape for key, (_, kept) in called.items()}
        parts = []
        for key, (name, kept) in called.items():
            layer = next(iter(kept.made.values())).layer
            parts += [ConvertedLayer(name, layer, partial(_read, net, key, kept, outputs), kept.device.ops.dtype)]
        return [part for part in parts if part.layer.params]
    own = {name: layer for name, layer in net.layers.items() if layer.params and not isinstance(layer, Lambda | Loss)}
    layers = {name: layer for name, layer in own.items() if not layer.proto.unroll_index}
    return [
        ConvertedLayer(origin(of.proto), of, partial(_source, net, name), net.ops.dtype) for name, of in layers.items()
    ]


def _source(net: Net, name: str) -> Shape:
    """The shape of the samples that a layer reads in PyTorch, with the channels last: sequences that are flattened are
    features there if they are (B, T, C), not (B, C, T); the nearest layer that knows says so. Raises ConfigError if
    there is none."""
    layer = below = net.layers[name]
    shape: Shape = layer.partition.sources[0] if layer.partition.sources else net.source_shape(name, 0)
    if _flattens(layer):
        at: Any = net.layers[layer.proto.srclayers[0]]
        while at.proto.srclayers and _passes(at):
            source = at.proto.srclayers[0]
            if _function(at) == "flatten":
                shape = net.shapes[source]
            at = net.layers[source]
    if not _flattens(layer) or len(shape) != 2 or min(shape) == 1:
        return shape
    if layer.lead(shape) and shape == net.source_shape(name, 0):
        return shape[-1:]
    while below.proto.srclayers:
        below = net.layers[below.proto.srclayers[0]]
        if isinstance(below, _OF_CHANNELS | _OF_TOKENS):
            return (prod(shape),) if isinstance(below, _OF_TOKENS) else shape
    hint = f"names={{{name!r}: None}} leaves the layer out."
    raise layer.problem("flattens sequences, and PyTorch may have their channels first or last", hint=hint)


def own_tensors(net: Net | Module) -> dict[str, Tensor]:
    """The tensors of a Module that are parameters themselves, by name; of a net, those that its functions read."""
    if isinstance(net, Module):
        return {name: part for name, part in net.named().values() if isinstance(part, Tensor)}
    params = {param for layer in net.layers.values() for param in layer.params if isinstance(layer, Lambda | Loss)}
    return {param.name: Parameter(param, Device(net.ops.device)) for param in params if param.given is not None}


def _read(module: Module, key: int, kept: Kept, outputs: Mapping[int, Shape]) -> Shape:
    """The shape of the samples that a layer of a module reads; of an InnerProduct that reads images as features, that
    of the images, which the module as a net tells. Raises ConfigError if it does not."""
    (_, shape, *_), (layer, _) = next(iter(kept.made.items()))
    like = [o for o in outputs.values() if prod(o) == prod(shape) and prod(o[:-1]) > 1 and o[-1] > 1]
    known = not _flattens(layer) or getattr(module, "channels_first", False)
    if known or len(shape) > 1 or not like:
        return shape[-1:] if isinstance(layer, InnerProduct) and layer.lead(shape) else shape
    hint = f"Let it read the images, without flatten or reshape, or leave it out: names={{{layer.name!r}: None}}."
    problem = layer.problem("reads features that may be images, whose order cannot be seen", hint=hint)
    try:
        made = module(*(RecordInput(f"x{i}") for i in range(len(signature(module.forward).parameters))))
    except SingaError as error:
        raise problem from error
    nodes: list[Any] = [*made] if isinstance(made, tuple | list) else [made]
    for node in nodes:
        nodes += [source for source in node.inputs if all(source is not other for other in nodes)]
    source: Any = next((node.inputs[0] for node in nodes if id(node.template) == key), None)
    while _is_elementwise(source) and id(source.template) not in outputs:
        source = source.inputs[0]
    if isinstance(source, Reshape) or _function(source) == "reshape":
        return shape
    if source is None or len(outputs.get(id(source.template), ())) < 3:
        raise problem
    return outputs[id(source.template)]


def _is_elementwise(layer: Any) -> bool:
    return _passes(layer) and len(layer.inputs) == 1


def _passes(layer: Any) -> bool:
    """Whether a layer keeps the order of the elements."""
    return isinstance(layer, _ELEMENTWISE) or _function(layer) in {*_FUNCTIONS, "flatten"}


def _function(layer: Any) -> str:
    """The name of the function that a layer computes."""
    return str(layer.user_conf.get("function", "")).rpartition(":")[2] if isinstance(layer, Lambda) else ""


def matched(parts: Sequence[ConvertedLayer], shapes: Shapes, *, in_order: bool) -> list[ConvertedLayer]:
    """The parts; those without tensors, at modules whose tensors fit. in_order: whether several that fit several
    modules are in the order of these. Raises ConfigError where they are not said to be."""
    used = {name for part in parts for name, _ in part.tensors}
    free = {name: shape for name, shape in shapes.items() if name not in used}
    lost = [p for p in parts if p.module == p.name and not any(name in shapes for name, _ in p.tensors)]
    fitting = {part.name: _fitting(part, free) for part in lost}
    found = {part.name: part for part in parts}
    for part in lost:
        modules = fitting[part.name]
        rivals = [name for name in fitting if {*fitting[name]} & {*modules}]
        if not (in_order and len(rivals) == len(modules)) and max(len(modules), len(rivals)) > 1:
            message = f"layers {some(rivals)} and modules {some(modules)} of PyTorch have the same shapes"
            hint = 'Give names={"layer": "module"}, or names="order" if such layers are in the order of the modules.'
            raise ConfigError(Problem("state", f"does not tell which layer is which: {message}", hint=hint))
        if modules:
            found[part.name] = part.at(modules[rivals.index(part.name)], shapes)
    return list(found.values())


def _fitting(part: ConvertedLayer, free: Shapes) -> list[str]:
    """The modules of which all tensors that the layer needs are free and have its shapes."""
    found = []
    for form in part.forms:
        (first, _), *_ = replace(part, module="", form=form).tensors
        for name in free:
            module = name.removesuffix(first).removesuffix(".") if first else name
            own = replace(part, module=module, form=form).tensors
            if own[0][0] == name and all(free.get(each) == shape for each, shape in own):
                found.append(module)
    return list(dict.fromkeys(found))


def some(names: Iterable[Any]) -> str:
    """The first of these, and how many more there are."""
    every = [*map(str, names)]
    more = [f"and {len(every) - _SHOWN} more"] if len(every) > _SHOWN else []
    return ", ".join([*islice(every, _SHOWN), *more])
