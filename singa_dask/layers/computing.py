"""Layers that are called on arrays and tensors: what is kept of them between calls, and their calls.

A tensor is a mini-batch: (B, features), or images (B, C, H, W), which a layer reads with their channels last, as in a
net. Where a layer reads single steps, a tensor (B, T, features) is a mini-batch of sequences of T steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singa_dask.errors import DataError, SingaError, TrainingError
from singa_dask.functions import concatenate, split
from singa_dask.functions.shapes import as_images, channels_last
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.checks import by_source, checked_gradient, checked_output, contiguous, failure
from singa_dask.layers.context import Context, Scratch, Step
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.kept import Kept, Made, devices_of, set_up
from singa_dask.layers.naming import node_name
from singa_dask.layers.param import Shape
from singa_dask.tensors.device import Device, get_default_device
from singa_dask.tensors.memory import keep_memory
from singa_dask.tensors.state import caller, group_of, name_by_number, rank, remembers, state
from singa_dask.tensors.tape import Call, gradients_in_functions
from singa_dask.tensors.tensor import Parameter, Tensor

_TENSORS = frozenset({Tensor, Parameter})
_TRAINING, _TEST = Phase.kTrain, Phase.kTest


@cache
def _scratch(device: Device) -> Scratch:
    """Of all calls on a device."""
    return Scratch()


class _AxisRoles(NamedTuple):
    """How a layer reads a tensor. lead: the shape (B, T) of the axes that become rows. timed: whether those of one
    time step follow each other."""

    lead: Shape = ()
    timed: bool = False

    def rows(self, array: Any, xp: Any) -> Any:
        """What the layer reads: (rows, ...)."""
        if not self.lead:
            return contiguous(channels_last(array), xp)
        array = array.swapaxes(0, 1) if self.timed else array
        return contiguous(array, xp).reshape(prod(self.lead), *(array.shape[2:] or (1,)))

    def back(self, rows: Any) -> Any:
        """The inverse."""
        if not self.lead:
            return as_images(rows)
        if not self.timed:
            return rows.reshape(*self.lead, *rows.shape[1:])
        return rows.reshape(*self.lead[::-1], *rows.shape[1:]).swapaxes(0, 1)


def computed(layer: Any, sources: Sequence[Any]) -> Any:
    """The output of a layer for arrays or tensors, batch first. Arrays give an array, tensors give a tensor; a layer
    with several outputs gives a tuple of them.

    Recurrent layers compute all steps of a tensor (B, T, features), or of a list of T steps (B, features), of which
    they make a list; a second source is the initial state. Of (B, features) they compute one step.

    The first call sets the layer up for the shapes of a sample, and draws its parameters. While autograd.training is
    true, the call is remembered. A loss gives the mean loss of the rows, shape (1,).
    Raises ConfigError for a layer that cannot be called on arrays, and where the shapes do not fit.
    """
    if _TENSORS.issuperset(map(type, sources)):  # the quickest test
        return _called(layer, _tensors(layer, sources)[1], list(sources), 0)
    if any(hasattr(each, "_recorded") and not isinstance(each, Tensor) for each in sources):  # one that is traced
        if layer.formula is None:
            raise layer.problem(f"{type(layer).__name__} is no function, and cannot be called in one that is exported")
        return layer.formula(*sources)
    steps = sources[0] if isinstance(sources[0], list | tuple) else []
    if any(isinstance(each, list | tuple) for each in sources):
        _check_list(layer, sources)
    tensors, device = _tensors(layer, [*steps, *sources[bool(steps) :]])
    if steps:
        tensors = [concatenate(tensors[: len(steps)]), *tensors[len(steps) :]]
    y = _called(layer, device, tensors, len(steps))
    if steps:
        y = list(split(y, 0, len(steps)))
    if any(isinstance(each, Tensor) for each in [*steps, *sources]):
        return y
    return on_host(y)


def on_host(y: Any) -> Any:
    """Tensors as the arrays of layers, images with their channels last; so are those of a list or tuple."""
    if isinstance(y, list | tuple):
        return type(y)(map(on_host, y))
    return _host(y) if isinstance(y, Tensor) else y


def _host(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.device.ops.to_host(channels_last(tensor.array)), order="C")


def _check_list(layer: Any, sources: Sequence[Any]) -> None:
    if not layer.recurrent:
        hint = "Make them one tensor (B, T, ...): autograd.stack(steps, axis=1)."
        raise layer.problem(f"{type(layer).__name__} reads no lists of time steps", hint=hint)
    if any(isinstance(each, list | tuple) for each in sources[1:]) or not sources[0]:
        received = ", ".join("a list" if isinstance(each, list | tuple) else "an array" for each in sources)
        raise layer.problem("the time steps must be a list of some, and the initial state an array", received)
    shapes = dict.fromkeys(tuple(each.shape) for each in sources[0])
    if len(shapes) > 1:
        raise layer.problem("the time steps of a list must have one shape", " and ".join(map(str, shapes)))


def _tensors(layer: Any, sources: Sequence[Any]) -> tuple[list[Tensor], Device]:
    """The sources as tensors, and the device that they and the layer's parameters share."""
    for source in sources:
        if not isinstance(source, Tensor) and not np.ndim(source):
            raise layer.problem("sources must be layers, names of layers, tensors or arrays of rows", repr(source))
    devices = [*devices_of(layer), *(each.device for each in sources if isinstance(each, Tensor))]
    if any(each is not devices[0] for each in devices) and len(devices := list(dict.fromkeys(devices))) > 1:
        received = ", ".join(map(repr, devices))
        raise layer.problem("parameters and sources must be on one device", received, "Copy the tensors to it.")
    device = devices[0] if devices else get_default_device()
    return [each if isinstance(each, Tensor) else _of_array(each, device) for each in sources], device


def as_tensors(sources: Sequence[Any], layers: Iterable[Any]) -> list[Any]:
    """Arrays as tensors on the device of these layers, all else as it is."""
    device = next((device for layer in layers for device in devices_of(layer)), get_default_device())
    return [_of_array(each, device) if isinstance(each, np.ndarray) and each.ndim else each for each in sources]


def _of_array(array: Any, device: Device) -> Tensor:
    """A tensor of an array that is laid out as layers compute with it."""
    tensor = Tensor.of(array, device)
    return Tensor.made(as_images(tensor.array), device, None, requires_grad=False)


def _called(layer: Any, device: Device, sources: list[Tensor], listed: int) -> Any:
    """listed: the number of steps that the first source has, one after the other; 0 if it is no list."""
    if layer.kept is None:
        layer.kept = Kept(node_name(layer) or name_by_number(type(layer)), device)
    layouts = [_layout(layer, source) for source in sources]
    if (
        layer.recurrent
        and len(getattr(layer, "carried", ())) > getattr(layer, "returned", 1)
        and len(sources) > 1
        and not (listed or layouts[0].lead)
    ):
        hint = "Call it on all time steps, a tensor (B, T, features) or a list, or set return_cell=True."
        raise layer.problem(f"{type(layer).__name__} forgets its cell between calls for one time step each", hint=hint)
    steps, xp = listed or (layouts[0].lead[1] if layouts[0].timed else 1), device.ops.xp
    x = [layout.rows(source.array, xp) for layout, source in zip(layouts, sources, strict=True)]
    rows = len(sources[0]) // max(1, listed)
    counts = [rows, *(len(source) for source in sources[1:])]
    if layer.same_rows and len(set(counts)) > 1:
        received = ", ".join(map(str, counts))
        raise DataError(f"the sources of {type(layer).__name__} must have equally many rows. Received: {received}.")
    targets: dict[int, Shape] = {}
    if layer.is_loss and layer.compares == "classes":
        x[1], targets = _labels(layer, *x[:2])
    made = set_up(layer, device, [each.shape[1:] for each in x], steps, targets)
    if caller.get() and (made.layer.params or layer.type == "kDropout"):
        hint = "Call the layer in `forward`, on layers, and the function on its output."
        raise layer.problem("is called on a tensor in a net, where its parameters would not be trained", hint=hint)
    return LayerCall(layer, made, device, sources, x, layouts, rows).outputs()


def _layout(layer: Any, source: Tensor) -> _AxisRoles:
    shape = source.shape
    axes = layer.step_axes if layer.recurrent or layer.across_steps or layer.step_axes == 1 else 0
    if axes and len(shape) == axes + 1 and (axes > 1 or shape[1] > 1):  # (B, 1) is a symbol in each row
        return _AxisRoles(shape[:2], timed=layer.recurrent or layer.across_steps)
    return _AxisRoles()


def _labels(layer: Any, scores: Any, labels: Any) -> tuple[Any, dict[int, Shape]]:
    """The classes of rows, or of positions, and then the shape of the positions. Of one-hot rows the class; 0 of rows
    of zeros, with which SINGA's tutorial synchronises the parameters. Of others the shares of classes, and their
    shape."""
    if labels.shape == scores.shape[:-1] and labels.ndim > 1:
        return labels, {1: labels.shape[1:]}
    if labels.ndim == 1 or labels.size == len(labels):
        return labels, {}
    rows = labels.reshape(len(labels), -1)
    if layer.takes_shares and labels.shape == scores.shape and not _one_hot(rows):
        return labels, {1: labels.shape[1:]}
    if not _one_hot(rows):
        hint = "Give classes (B,), of each step (B, T), or one-hot rows. BCELoss takes several classes."
        raise layer.problem(
            "labels must be class numbers, one-hot or shares of the classes",
            f"scores of shape {tuple(scores.shape)}, and labels {tuple(labels.shape)} of other values",
            hint,
        )
    return rows.argmax(axis=1), {}


def _one_hot(rows: Any) -> bool:
    return bool(((rows != 0).sum(axis=1) <= 1).all() and ((rows == 0) | (rows == 1)).all())


class LayerCall(Call):
    """A call of a layer: its context, and how it reads its sources. Beside these it reads the layer's parameters."""

    def __init__(
        self,
        layer: Any,
        made: Made,
        device: Device,
        sources: Sequence[Tensor],
        x: Sequence[Any],
        layouts: Sequence[_AxisRoles],
        rows: int,
    ) -> None:
        self._made, self._layer, self._layouts, self._device = made, made.layer, layouts, device
        self._count, self._rows = len(sources), rows
        self._x_shapes = [each.shape for each in x]
        self.wanted = [i for i, source in enumerate(sources) if source.requires_grad]
        phase = _TRAINING if state.training else _TEST
        step = Step(phase, layer.kept.calls, state.seed, rank.get() * rows, rows)
        group, scratch = group_of.get()(device.ops) or LayerGroup(), _scratch(device)
        self.ctx: Any = Context(
            device.ops, step, needs_input_grad=bool(self.wanted), wanted=self.wanted, group=group, scratch=scratch
        )
        layer.kept.calls += state.training
        try:
            y = self._layer.forward(self.ctx, *x)
            self._y = self._checked(y)
        except SingaError:
            raise
        except Exception as error:
            raise failure(self._layer, phase, "forward", x, error) from error
        super().__init__([*sources, *layer.kept.parameters], [each.shape for each in self._y])

    def _checked(self, y: Any) -> list[Any]:
        """The outputs."""
        xp, layer = self._device.ops.xp, self._layer
        if layer.is_loss:
            metrics = layer.metrics(self.ctx).items()
            value = np.array([sum(metric.mean for name, metric in metrics if name == "loss")])
            return [self._device.ops.asarray(value, self._device.ops.dtype)]
        if layer.multiple_outputs:
            return [self._layouts[0].back(contiguous(each, xp)) for each in y]
        return [self._layouts[0].back(checked_output(y, self._made.shape, xp))]

    def outputs(self) -> Any:
        """The tensors that it made."""
        layer, y = self._layer, self._y
        del self._y
        learns = (bool(layer.params) or bool(self.wanted)) and not layer.stops_gradient
        call = self if learns and remembers() else None
        if call is not None:
            keep_memory()
        tensors = [Tensor.made(each, self._device, call, requires_grad=learns, place=i) for i, each in enumerate(y)]
        return tuple(tensors) if layer.multiple_outputs else tensors[0]

    @property
    def rows(self) -> int | None:
        return self._rows

    def backward(self, dy: Sequence[Any]) -> Sequence[Any]:
        self.done, sources = True, self.sources
        ops, layer = self._device.ops, self._layer
        size, self.ctx.group = self.ctx.group.size, group_of.get()(ops) or LayerGroup()
        if size != self.ctx.group.size and any(param.statistic for param in layer.params):
            raise TrainingError(
                f"{self!r} has normalised the rows of {size} of {self.ctx.group.size} ranks. Make DistOpt before you "
                "compute the loss."
            )
        given: Any = [self._given(each, i) for i, each in enumerate(dy)]
        try:
            if layer.is_loss:
                # Its gradient is divided by the rows: what is given for the mean loss multiplies it.
                factor = float(ops.to_host(given[0]).reshape(-1)[0])
                if not factor:
                    return [None] * len(sources)
                self.ctx.step = Step(self.ctx.step.phase, total_rows=self._rows / factor)
            dx = layer.backward(
                self.ctx, None if layer.is_loss else tuple(given) if layer.multiple_outputs else given[0]
            )
            found = by_source(dx, self._count, self.wanted)
            arrays = [
                None if each is None or i not in self.wanted else checked_gradient(each, self._x_shapes[i], ops.xp)
                for i, each in enumerate(found)
            ]
        except SingaError:
            raise
        except Exception as error:
            raise failure(layer, self.ctx.step.phase, "backward", self._x_shapes, error) from error
        back = [
            None if each is None else layout.back(each).reshape(source.shape)
            for each, layout, source in zip(arrays, self._layouts, sources, strict=False)
        ]
        self.ctx, self.sources = None, ()  # their memory is that of the next step
        return [*back, *(None for _ in sources[self._count :])]

    def backward_in_functions(self, dy: Sequence[Any]) -> Sequence[Any]:
        return gradients_in_functions(self.by_formula(), dy[0], self.sources)

    def by_formula(self) -> Tensor:
        """The output as the formula of the layer gives it. Raises TrainingError for a layer without one."""
        if self._layer.formula is None:
            raise TrainingError(
                f"{self!r}, of {type(self._layer).__name__}, gives no second derivatives. InnerProduct, activations "
                "and the functions of singa_dask.autograd give them."
            )
        return self._layer.formula(*self.sources)

    def _given(self, dy: Any, place: int) -> Any:
        """The gradient of an output as the layer reads it; the layer may overwrite it."""
        ops = self._device.ops
        if dy is None:
            dy = ops.zeros(self.shapes[place])
        return dy if self._layer.is_loss else self._layouts[0].rows(dy, ops.xp)

    def __repr__(self) -> str:
        return f"layer {self._layer.name!r}"
