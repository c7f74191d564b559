"""Layers that are called on arrays: each call is remembered by its output, and `backward` goes back over them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from singa_dask.device import Device, get_default_device
from singa_dask.errors import ConfigError, DataError, Problem, TrainingError
from singa_dask.job.job_pb2 import LayerProto, Phase
from singa_dask.layers.base import Layer, LossLayer, check_attribute, node_name
from singa_dask.layers.context import Context, Step
from singa_dask.layers.input import InputLayer
from singa_dask.layers.param import Param, Shape
from singa_dask.net.flat import FlatParams
from singa_dask.net.init import initial_value
from singa_dask.net.passes import address_of
from singa_dask.tensor import Parameter, Tensor

_numbers = count()
_unnamed: Counter[str] = Counter()


@dataclass
class Call:
    """One call of a layer. number: grows from call to call. sources: the tensors that it read; made: the layer, set up
    for their shapes; rows: of the mini-batch. done: whether `backward` has gone over it."""

    number: int
    made: Layer
    ctx: Context
    sources: tuple[Tensor, ...]
    rows: int
    done: bool = False


@dataclass
class _Kept:
    """What is kept of a layer between calls: its parameters, their device, the layer as set up for each shape, and the
    number of its calls."""

    name: str
    device: Device
    params: list[Param] = field(default_factory=list)
    made: dict[Any, Layer] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    calls: int = 0


_kept: weakref.WeakKeyDictionary[Layer, _Kept] = weakref.WeakKeyDictionary()


def computed(layer: Layer, sources: Sequence[Any]) -> Any:
    """The output of a layer for arrays or tensors, batch first. Arrays give an array, tensors give a tensor.

    The first call sets the layer up for the shapes of a sample, and draws its parameters. While autograd.training is
    true, the call is remembered. A loss gives the mean loss of the rows, shape (1,).
    Raises ConfigError for a layer that cannot be called on arrays, and where the shapes do not fit.
    """
    if isinstance(layer, InputLayer) or layer.multiple_outputs or layer.recurrent:
        hint = "Use it in a net: call it on layers, or put it into a list."
        raise layer.problem(f"{type(layer).__name__} cannot be called on arrays", hint=hint)
    for source in sources:
        if not isinstance(source, Tensor) and not np.ndim(source):
            raise layer.problem("sources must be layers, names of layers, tensors or arrays of rows", repr(source))
    devices = list(dict.fromkeys(each.device for each in sources if isinstance(each, Tensor)))
    kept = _kept.get(layer)
    if kept is not None and kept.params:
        devices = list(dict.fromkeys([kept.device, *devices]))
    if len(devices) > 1:
        received = ", ".join(map(repr, devices))
        raise layer.problem("parameters and sources must be on one device", received, "Copy the tensors to it.")
    device = devices[0] if devices else get_default_device()
    if kept is None:
        kept = _kept[layer] = _Kept(_name(layer), device)
    y = _call(layer, kept, device, tuple(s if isinstance(s, Tensor) else Tensor.of(s, device) for s in sources))
    return y if any(isinstance(each, Tensor) for each in sources) else device.ops.to_host(y.array).copy()


def _call(layer: Layer, kept: _Kept, device: Device, sources: tuple[Tensor, ...]) -> Tensor:
    from singa_dask import autograd

    x = [source.array for source in sources]
    rows = len(x[0])
    if any(len(each) != rows for each in x):
        counts = ", ".join(str(len(each)) for each in x)
        raise DataError(f"the sources of {type(layer).__name__} must have equally many rows. Received: {counts}.")
    if isinstance(layer, LossLayer) and layer.compares == "classes" and x[1].ndim > 1 and x[1].size > rows:
        x[1] = x[1].reshape(rows, -1).argmax(axis=1)  # one-hot
    made = _made(layer, kept, [tuple(each.shape[1:]) for each in x])
    training = autograd.training
    step = Step(Phase.kTrain if training else Phase.kTest, kept.calls, autograd.seed(), 0, rows)
    kept.calls += training
    ctx = Context(device.ops, step=step)
    ctx.needs_input_grad = any(source.requires_grad for source in sources)
    y = made.forward(ctx, *x)
    call = Call(next(_numbers), made, ctx, sources, rows) if training else None
    learns = bool(made.params) or ctx.needs_input_grad
    if isinstance(layer, LossLayer):
        value = np.array([sum(m.mean for name, m in made.metrics(ctx).items() if name == "loss")])
        return Tensor.made(device.ops.asarray(value, device.ops.dtype), device, call, requires_grad=learns)
    return Tensor.made(y, device, call, requires_grad=learns and not made.stops_gradient)


def _name(layer: Layer) -> str:
    found = node_name(layer)
    if not found:
        kind = type(layer).__name__.lower()
        _unnamed[kind] += 1
        found = f"{kind}{_unnamed[kind]}"
    return found


def restart_names() -> None:
    """Number layers without a name from 1 again."""
    _unnamed.clear()


def _made(layer: Layer, kept: _Kept, shapes: list[Shape]) -> Layer:
    """The layer, set up for sources of these shapes, with the parameters of its first call."""
    key = tuple(shapes)
    if key in kept.made:
        return kept.made[key]
    proto = LayerProto()
    proto.CopyFrom(layer.proto)
    proto.name = kept.name
    proto.srclayers[:] = [f"source{i}" for i in range(len(shapes))]
    made = type(layer).from_proto(proto)
    classes = isinstance(layer, LossLayer) and layer.compares == "classes"
    made.targets = {} if classes else {i: shapes[i] for i in made.target_positions}
    made.setup(*made.sources(tuple(shapes)))
    if not kept.made:
        check_attribute(layer, made.params)
        kept.params = made.params
        FlatParams.of(made.params, kept.device.ops)
        for param in made.params:
            value = initial_value(param, _seed())
            param.value[...] = kept.device.ops.asarray(value, kept.device.ops.dtype)
        kept.parameters = [Parameter(param, kept.device) for param in made.params]
    for param, owner in zip(made.params, kept.params, strict=True):
        if param.shape != owner.shape:
            hint = "Make another layer for samples of this shape."
            raise layer.problem(f"parameter {param.name!r} has shape {owner.shape}", f"{param.shape} now", hint)
        param.owner = owner
    kept.made[key] = made
    return made


def _seed() -> int:
    from singa_dask import autograd

    return autograd.seed()


def parameters_of(layers: Iterable[Layer]) -> list[Parameter]:
    """The parameters of layers that have been called on arrays."""
    return [parameter for layer in layers if layer in _kept for parameter in _kept[layer].parameters]


class Tape:
    """The calls from which a loss was computed, in order. Raises TrainingError if it cannot go backward."""

    def __init__(self, loss: Tensor) -> None:
        if not isinstance(loss, Tensor) or loss.call is None or not isinstance(loss.call.made, LossLayer):
            hint = "Give it what a loss returns, with autograd.training = True before the forward pass."
            raise ConfigError(Problem("loss", "is not the output of a loss in training", repr(loss), hint))
        found: dict[int, Call] = {}
        stack = [loss.call]
        while stack:
            call = stack.pop()
            if call.number not in found:
                found[call.number] = call
                stack += [s.call for s in call.sources if s.call is not None and s.requires_grad]
        self.loss = loss
        self.calls = [found[number] for number in sorted(found)]
        self.params = list(dict.fromkeys(p.owner for call in self.calls for p in call.made.params))
        self.kept = {id(s): s for call in self.calls for s in call.sources if _asked(s)}
        if any(call.done for call in self.calls):
            raise TrainingError("this loss has gone backward already. Compute it again before the next backward pass.")

    @property
    def rows(self) -> int:
        """Of the mini-batch."""
        return self._call.rows

    @property
    def _call(self) -> Call:
        assert self.loss.call is not None
        return self.loss.call

    def backward(self, total_rows: int) -> Iterator[tuple[Param | Tensor, Any]]:
        """Fill the gradients of the loss, summed over its rows and divided by total_rows. Yields each parameter and
        each tensor with `stores_grad`, and its gradient, as soon as that is complete: the last layer's first.

        What running statistics change by is the share of these rows, so that the sum over ranks is their mean.
        """
        self._call.ctx.step = Step(self._call.ctx.step.phase, total_rows=total_rows)
        waiting = Counter(read for call in self.calls for read in self._read(call))
        gradients: dict[int, Any] = {}  # by the tensor that was given, or the call that made it
        for param in self.params:
            param.start_step()
        for call in reversed(self.calls):
            call.done = True
            dy = gradients.pop(id(call), None)
            if dy is not None or call is self._call:
                dx = call.made.backward(call.ctx, dy)
                self._collect(call, dx if isinstance(dx, tuple) else (dx,), gradients)
            for read in self._read(call):
                waiting[read] -= 1
                if waiting[read]:
                    continue
                if isinstance(read, Param):
                    if not read.start_step():
                        read.grad[...] = 0
                    elif read.statistic:
                        read.grad[...] *= self.rows / total_rows
                    yield read, read.grad
                else:
                    tensor = self.kept[read]
                    yield tensor, gradients.pop(read, call.ctx.ops.xp.zeros_like(tensor.array))

    def _read(self, call: Call) -> list[Param | int]:
        """What is to get a gradient: parameters, and tensors by their ids."""
        return [*(p.owner for p in call.made.params), *(id(s) for s in call.sources if _asked(s))]

    def _collect(self, call: Call, dx: tuple[Any, ...], gradients: dict[int, Any]) -> None:
        """Add what a layer's backward call returned to the gradients of the tensors that it read."""
        seen: set[int] = set()
        for source, gradient in zip(call.sources, dx, strict=False):
            if gradient is None or not source.requires_grad or (source.call is None and not _asked(source)):
                continue
            if address_of(gradient) in seen:  # a backward call may overwrite its dy
                gradient = gradient.copy()
            seen.add(address_of(gradient))
            gradient = call.ctx.ops.xp.ascontiguousarray(gradient)
            key = id(source if source.call is None else source.call)
            gradients[key] = gradients[key] + gradient if key in gradients else gradient


def _asked(source: Tensor) -> bool:
    """Whether it was given, not computed, and its gradient is wanted."""
    return source.stores_grad and source.call is None
