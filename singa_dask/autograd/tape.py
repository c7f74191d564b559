"""Layers that are called on arrays: each call is remembered by its output, and `backward` goes back over them."""

from __future__ import annotations

import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from math import prod
from typing import Any, cast

import numpy as np

from singa_dask.device import Device, get_default_device
from singa_dask.errors import ConfigError, DataError, Problem, TrainingError
from singa_dask.job.job_pb2 import LayerProto, Phase
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.connection import Concate
from singa_dask.layers.context import Context, Step
from singa_dask.layers.input import InputLayer
from singa_dask.layers.node import check_attribute, node_name
from singa_dask.layers.param import Param, Shape
from singa_dask.net.flat import FlatParams
from singa_dask.net.init import initial_value
from singa_dask.net.passes import address_of
from singa_dask.tensor import Parameter, Tensor

_LAYOUT = "Tensors of images are (B, channels, height, width), arrays (B, height, width, channels)."
_numbers = count()
_unnamed: Counter[str] = Counter()

# Which rows of the mini-batch are this process's: those of this rank, of ranks with equally many rows.
rank: ContextVar[int] = ContextVar("rank", default=0)


class Function(Layer):
    """A layer for arrays alone, whose sources may have different numbers of rows."""


class Steps(list[Any]):
    """The time steps of a sequence, as layers give them: arrays or tensors. +, -, * and / work step by step, with
    another list of time steps, a tensor or a number."""

    def _combined(self, function: Callable[[Any, Any], Any], other: Any) -> Steps:
        others = other if isinstance(other, list) else repeat(other)
        if isinstance(other, list) and len(other) != len(self):
            received = f"{len(self)} and {len(other)}"
            raise ConfigError(Problem("time steps", "must be equally many in both lists", received))
        return Steps(map(function, self, others))

    def __add__(self, other: Any) -> Steps:
        return self._combined(operator.add, other)

    def __radd__(self, other: Any) -> Steps:
        return self._combined(lambda own, given: given + own, other)

    def __sub__(self, other: Any) -> Steps:
        return self._combined(operator.sub, other)

    def __rsub__(self, other: Any) -> Steps:
        return self._combined(lambda own, given: given - own, other)

    def __mul__(self, other: Any) -> Steps:
        return self._combined(operator.mul, other)

    def __rmul__(self, other: Any) -> Steps:
        return self._combined(lambda own, given: given * own, other)

    def __truediv__(self, other: Any) -> Steps:
        return self._combined(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Steps:
        return self._combined(lambda own, given: given / own, other)

    def __neg__(self) -> Steps:
        return Steps(map(operator.neg, self))

    # Those of a list would make it longer.
    __iadd__, __imul__ = __add__, __mul__


@dataclass
class Call:
    """One call of a layer. number: grows from call to call. sources: the tensors that it read; made: the layer, set up
    for their shapes; rows: of the mini-batch; shapes: of its outputs. done: whether `backward` has gone over it."""

    number: int
    made: Layer
    ctx: Context
    sources: tuple[Tensor, ...]
    rows: int
    shapes: list[Shape]
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
    """The output of a layer for arrays or tensors, batch first. Arrays give an array, tensors give a tensor; a layer
    with several outputs gives a tuple of them.

    A list of arrays or tensors as a source is a sequence of time steps, which recurrent and rowwise layers compute in
    one call; the output is such a list. The loss of a list is the mean over all time steps. Of a single time step, a
    recurrent layer computes one.

    The first call sets the layer up for the shapes of a sample, and draws its parameters. While autograd.training is
    true, the call is remembered. A loss gives the mean loss of the rows, shape (1,).
    Raises ConfigError for a layer that cannot be called on arrays, and where the shapes do not fit.
    """
    timed = [isinstance(source, list | tuple) for source in sources]
    steps = _steps(layer, sources, timed)
    flat = [each for source, many in zip(sources, timed, strict=True) for each in (source if many else [source])]
    tensors, device = _tensors(layer, flat)
    y = _call(layer, device, tensors) if steps is None else _over_time(layer, device, tensors, timed, steps)
    if any(isinstance(each, Tensor) for each in flat):
        return y
    if isinstance(y, Tensor):
        return device.ops.to_host(y.array).copy()
    return type(y)(device.ops.to_host(each.array).copy() for each in y)


def _steps(layer: Layer, sources: Sequence[Any], timed: Sequence[bool]) -> int | None:
    """How many time steps the sources have of which `timed` is true; None if there is none. Raises ConfigError if the
    layer cannot be called on these."""
    kind = type(layer).__name__
    if isinstance(layer, InputLayer):
        hint = "Use it in a net: call it on layers, or put it into a list."
        raise layer.problem(f"{kind} cannot be called on arrays", hint=hint)
    if not any(timed):
        if len(sources) > 1 and len(getattr(layer, "carried", ())) > 1:
            hint = "Call it on the list of all time steps."
            raise layer.problem(f"{kind} forgets its cell between calls for one time step each", hint=hint)
        return None
    if not (layer.recurrent or layer.rowwise):
        raise layer.problem(f"{kind} reads no lists of time steps", hint="Call it on each of them.")
    if layer.recurrent and (not timed[0] or any(timed[1:])):
        received = ", ".join("a list" if many else "an array" for many in timed)
        raise layer.problem("the time steps must be a list, and the initial state an array", received)
    counts = {len(source) for source, many in zip(sources, timed, strict=True) if many}
    if 0 in counts:
        raise layer.problem("a list of time steps must not be empty", "[]")
    if len(counts) > 1 or not (layer.recurrent or all(timed)):
        hint = "Give lists of equally many time steps."
        received = ", ".join(
            f"a list of {len(x)}" if many else "an array" for x, many in zip(sources, timed, strict=True)
        )
        raise layer.problem("the sources have different time steps", received, hint)
    return counts.pop()


def _over_time(layer: Layer, device: Device, tensors: list[Tensor], timed: Sequence[bool], steps: int) -> Any:
    """The outputs of a layer that computes all time steps in one call. tensors: of the sources one after the other,
    `steps` of each that is timed."""
    from singa_dask import autograd

    rest = iter(tensors)
    x = [_joined(layer, device, [*islice(rest, steps)]) if many else next(rest) for many in timed]
    if isinstance(layer, LossLayer):
        return _call(layer, device, x)
    y = _call(layer, device, x, steps, timed)
    if isinstance(y, tuple):
        return tuple(Steps(autograd.split(each, 0, steps)) for each in y)
    return Steps(autograd.split(y, 0, steps))


def _joined(layer: Layer, device: Device, steps: list[Tensor]) -> Tensor:
    """The rows of all time steps, one step after the other. Raises ConfigError if their shapes differ."""
    from singa_dask import autograd

    shapes = dict.fromkeys(each.shape for each in steps)
    if len(shapes) > 1:
        raise layer.problem("the time steps of a list must have one shape", " and ".join(map(str, shapes)))

    if any(each.requires_grad for each in steps):
        return cast("Tensor", autograd.cat(steps, axis=0))
    return Tensor.of(device.ops.xp.concatenate([each.array for each in steps]), device)


def _tensors(layer: Layer, sources: Sequence[Any]) -> tuple[list[Tensor], Device]:
    """The sources as tensors, and the device that they and the layer's parameters share."""
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
    return [each if isinstance(each, Tensor) else Tensor.of(each, device) for each in sources], device


def _call(
    layer: Layer, device: Device, sources: list[Tensor], steps: int = 1, timed: Sequence[bool] | None = None
) -> Any:
    """steps: time steps, of which the sources that are `timed` have the rows one after the other."""
    from singa_dask import autograd

    kept = _kept.get(layer)
    if kept is None:
        kept = _kept[layer] = _Kept(_name(layer), device)
    x = [source.array for source in sources]
    rows = len(x[0]) // steps
    if not (isinstance(layer, Function) or (isinstance(layer, Concate) and layer.conf.concate_dim == 0)):
        counts = [len(each) // (steps if many else 1) for each, many in zip(x, timed or [False] * len(x), strict=True)]
        if len(set(counts)) > 1:
            received = ", ".join(map(str, counts))
            raise DataError(
                f"the sources of {type(layer).__name__} must have equally many rows. Received: {received}."
            )
    if isinstance(layer, LossLayer) and layer.compares == "classes" and x[1].ndim > 1 and x[1].size > rows:
        x[1] = _classes(layer, x[1].reshape(rows, -1))
    made = _made(layer, kept, [tuple(each.shape[1:]) for each in x], steps)
    training = autograd.training
    step = Step(Phase.kTrain if training else Phase.kTest, kept.calls, autograd.seed(), rank.get() * rows, rows)
    kept.calls += training
    ctx = Context(device.ops, step=step)
    ctx.needs_input_grad = any(source.requires_grad for source in sources)
    y = made.forward(ctx, *x)
    outputs = y if made.multiple_outputs else (y,)
    shapes = [each.shape for each in outputs]
    call = Call(next(_numbers), made, ctx, tuple(sources), rows, shapes) if training else None
    learns = bool(made.params) or ctx.needs_input_grad
    if isinstance(layer, LossLayer):
        value = np.array([sum(m.mean for name, m in made.metrics(ctx).items() if name == "loss")])
        return Tensor.made(device.ops.asarray(value, device.ops.dtype), device, call, requires_grad=learns)
    learns = learns and not made.stops_gradient
    tensors = [Tensor.made(each, device, call, requires_grad=learns, place=i) for i, each in enumerate(outputs)]
    return tuple(tensors) if made.multiple_outputs else tensors[0]


def _classes(layer: Layer, labels: Any) -> Any:
    """The class of each one-hot row; 0 of rows of zeros, with which SINGA's tutorial synchronises the parameters."""
    if not ((labels != 0).sum(axis=1) <= 1).all() or not ((labels == 0) | (labels == 1)).all():
        hint = "Give classes (B,), or rows of zeros with a single 1. BCELoss takes several classes and probabilities."
        raise layer.problem("labels must be class numbers or one-hot", f"other rows of {labels.shape[1]} values", hint)
    return labels.argmax(axis=1)


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


def _made(layer: Layer, kept: _Kept, shapes: list[Shape], steps: int) -> Layer:
    """The layer, set up for sources of these shapes, with the parameters of its first call."""
    from singa_dask import autograd

    key = steps, *shapes
    if key in kept.made:
        return kept.made[key]
    proto = LayerProto()
    proto.CopyFrom(layer.proto)
    proto.name, proto.unroll_len = kept.name, steps
    proto.srclayers[:] = [f"source{i}" for i in range(len(shapes))]
    made = type(layer).from_proto(proto)
    classes = isinstance(layer, LossLayer) and layer.compares == "classes"
    made.targets = {} if classes else {i: shapes[i] for i in made.target_positions}
    _check_size(layer, shapes)
    made.setup(*made.sources(tuple(shapes)))
    if not kept.made:
        check_attribute(layer, made.params)
        kept.params = made.params
        FlatParams.of(made.params, kept.device.ops)
        for param in made.params:
            value = initial_value(param, autograd.seed())
            param.value[...] = kept.device.ops.asarray(value, kept.device.ops.dtype)
        kept.parameters = [Parameter(param, kept.device) for param in made.params]
    for param, owner in zip(made.params, kept.params, strict=True):
        if param.shape != owner.shape:
            hint = "Make another layer for samples of this shape."
            hint += f" {_LAYOUT}" if len(shapes[0]) > 1 else ""
            raise layer.problem(f"parameter {param.name!r} has shape {owner.shape}", f"{param.shape} now", hint)
        param.owner = owner
    kept.made[key] = made
    return made


def _check_size(layer: Layer, shapes: Sequence[Shape]) -> None:
    """Raise ConfigError if the first source has other channels or features than those that the layer was made for."""
    if layer.source_size is None:
        return
    size, unit = layer.source_size
    shape = shapes[0]
    found = shape[-1] if unit == "channels" and shape else prod(shape)
    if found != size:
        raise layer.problem(f"was made for {size} {unit}", str(found), _LAYOUT if len(shape) > 1 else None)


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
        self.tensors = {s.param: s for call in self.calls for s in call.sources if s.param is not None}
        self.params = list(dict.fromkeys(param for call in self.calls for param in _read(call)))
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

    def backward(self, total_rows: int) -> Iterator[Param]:
        """Fill the gradients of the loss, summed over its rows and divided by total_rows. Yields each parameter as
        soon as its gradient is complete: the last layer's first.

        What running statistics change by is the share of these rows, so that the sum over ranks is their mean.
        """
        self._call.ctx.step = Step(self._call.ctx.step.phase, total_rows=total_rows)
        waiting = Counter(param for call in self.calls for param in _read(call))
        gradients: dict[tuple[int, int], Any] = {}  # of outputs: by call and place
        for param in self.params:
            param.start_step()
        for call in reversed(self.calls):
            call.done = True
            given = [gradients.pop((id(call), place), None) for place in range(len(call.shapes))]
            if call is self._call or any(dy is not None for dy in given):
                dx = call.made.backward(call.ctx, _whole(call, given))
                self._collect(call, dx if isinstance(dx, tuple) else (dx,), gradients)
            for param in _read(call):
                waiting[param] -= 1
                if waiting[param]:
                    continue
                if not param.start_step():
                    param.grad[...] = 0
                elif param.statistic:
                    param.grad[...] *= self.rows / total_rows
                yield param

    def _collect(self, call: Call, dx: tuple[Any, ...], gradients: dict[tuple[int, int], Any]) -> None:
        """Add what a layer's backward call returned to the gradients of the tensors that it read."""
        seen: set[int] = set()
        for source, gradient in zip(call.sources, dx, strict=False):
            if gradient is None or not source.requires_grad:
                continue
            if source.call is None:
                if source.param is not None:
                    _add(source.param, gradient)
                continue
            if address_of(gradient) in seen:  # a backward call may overwrite its dy
                gradient = gradient.copy()
            seen.add(address_of(gradient))
            gradient = call.ctx.ops.xp.ascontiguousarray(gradient)
            key = id(source.call), source.place
            gradients[key] = gradients[key] + gradient if key in gradients else gradient


def _read(call: Call) -> list[Param]:
    """The parameters that it read: the layer's, and tensors that are parameters themselves."""
    return [*(p.owner for p in call.made.params), *(s.param for s in call.sources if s.param is not None)]


def _add(param: Param, gradient: Any) -> None:
    if param.claim():
        param.grad += gradient
    else:
        param.grad[...] = gradient


def _whole(call: Call, given: list[Any]) -> Any:
    """What a layer's backward call takes: of several outputs a gradient each, zero where nothing was computed."""
    if not call.made.multiple_outputs:
        return given[0]
    zeros = call.ctx.ops.zeros
    return tuple(zeros(shape) if dy is None else dy for dy, shape in zip(given, call.shapes, strict=True))
