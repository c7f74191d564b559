"""What is kept of a layer that is called on arrays between calls: its parameters, and the layer as set up."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from singa_dask.errors import SingaError
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.layers.init import initial_value
from singa_dask.layers.naming import check_attribute, layers_around
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.sharing import resolve_sharing
from singa_dask.tensors.device import Device, get_default_device
from singa_dask.tensors.state import state
from singa_dask.tensors.tensor import Parameter

AXES = "Tensors of images are (B, channels, height, width), arrays (B, height, width, channels)."


@dataclass
class Kept:
    """What is kept of a layer between calls: its parameters, their device, the number of its calls, and the layer as
    set up for each shape. model: a weak reference to the Model that has its parameters."""

    name: str
    device: Device
    parameters: list[Parameter] = field(default_factory=list)
    calls: int = 0
    made: dict[Any, Made] = field(default_factory=dict)
    model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"made": {}, "model": None}


class Made(NamedTuple):
    """A layer that is set up for sources of some shapes, and the shape of its output."""

    layer: Any
    shape: Any


def belong(layer: Any, model: Any) -> None:
    """Let a layer compute with the parameters of a Model, which calls `bind` when it has some."""
    if layer.kept is None or layer.kept.model is not None:
        layer.kept = Kept(layer.name, get_default_device(), list(layer.tensors))
    layer.kept.model = weakref.ref(model)


def bind(layer: Any, params: Sequence[Param], ops: Any) -> None:
    """Let a layer compute with the parameters of its Model, which get the values of those that it has already."""
    kept, device = layer.kept, Device(ops.device, ops.device_id, ops.dtype)
    device.ops = ops
    kept.device, kept.made = device, {}
    for own, param in zip(kept.parameters, params, strict=False):
        param.value[...] = ops.asarray(own.to_numpy(), ops.dtype)
        own.param, own.device = param.owner, device
    if not kept.parameters:
        kept.parameters = [Parameter(param.owner, device) for param in params]


def _take_part(layer: Any, model: Any) -> None:
    """Let the model of the layer bind it. Raises ConfigError if it is partitioned over ranks."""
    if model is None:
        return
    if model.partitioned:
        hint = "Call model.predict, on all ranks."
        raise layer.problem("is a part of a Model that is partitioned over ranks", hint=hint)
    model.net  # noqa: B018  allocates


def devices_of(layer: Any) -> list[Device]:
    """The device of the parameters of a layer, if it has some."""
    if layer.kept is not None and layer.kept.model is not None:
        _take_part(layer, layer.kept.model())
    return [layer.kept.device] if layer.kept is not None and layer.kept.parameters else []


def set_up(layer: Any, device: Device, shapes: list[Shape], steps: int, targets: dict[int, Shape]) -> Made:
    """The layer, set up for sources of these shapes, with the parameters of its first call."""
    kept, key = layer.kept, (steps, *targets.values(), *shapes)
    if key in kept.made:
        return kept.made[key]
    proto = LayerProto()
    proto.CopyFrom(layer.proto)
    proto.name, proto.unroll_len = kept.name, steps
    proto.srclayers[:] = [f"source{i}" for i in range(len(shapes))]
    made = type(layer).from_proto(proto)
    made._in_module()
    classes = layer.is_loss and layer.compares == "classes"
    made.targets = targets if classes else {i: shapes[i] for i in made.target_positions}
    _check_size(layer, shapes)
    shape = made.setup(*made.sources(tuple(shapes)))
    if made.params and not kept.parameters:
        check_attribute(layer, made.params)
        kept.parameters = _first_parameters(layer, made.params, device)
    for param, owner in zip(made.params, kept.parameters, strict=True):
        if param.shape != owner.param.shape:
            hint = "Make another layer for samples of this shape."
            hint += f" {AXES}" if len(shapes[0]) > 1 else ""
            raise layer.problem(f"parameter {param.name!r} has shape {owner.shape}", f"{param.shape} now", hint)
        param.owner = owner.param
    found = kept.made[key] = Made(made, shape)
    return found


def _first_parameters(layer: Any, params: Sequence[Param], device: Device) -> list[Parameter]:
    """Parameters with their initial values, or those of other layers of the module that they share."""
    others = [parameter.param for parameter in parameters_of(layers_around(layer))]
    if any(param.proto.share_from for param in params):
        try:
            resolve_sharing([*dict.fromkeys(others), *params])
        except SingaError as error:
            error.add_note("A layer can share the parameters of layers that the module has called before it.")
            raise
    ops = device.ops
    for param in params:
        if param.owner is param:
            param.bind(ops.zeros(param.shape), ops.zeros(param.shape))
            param.value[...] = ops.asarray(initial_value(param, state.seed), ops.dtype)
    return [Parameter(param.owner, device) for param in params]


def _check_size(layer: Any, shapes: Sequence[Shape]) -> None:
    """Raise ConfigError if the first source has other channels or features than those that the layer was made for."""
    if layer.source_size is None:
        return
    size, unit = layer.source_size
    shape = shapes[0]
    found = shape[-1] if unit == "channels" and shape else prod(shape)
    if found != size:
        raise layer.problem(f"was made for {size} {unit}", str(found), AXES if len(shape) > 1 else None)


def parameters_of(layers: Iterable[Any]) -> list[Parameter]:
    """The parameters of layers that have been called on arrays."""
    kept = [layer.kept for layer in layers if layer.kept is not None]
    return list({parameter.param: parameter for each in kept for parameter in each.parameters}.values())
