"""The number of outputs that a net has for classes, as its layers say it, before any data are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from singa_dask.job.job_pb2 import LayerProto, LayerType

_LOSSES = (LayerType.kSoftmaxLoss, LayerType.kCudnnSoftmaxLoss)
_NAMES = "Activation ReLU LeakyReLU ELU GELU SiLU Sigmoid Tanh STanh Dropout LayerNorm GroupNorm BM LastStep"
# They have as many outputs as their source.
_SAME = {LayerType.Value(f"k{name}") for name in _NAMES.split()}
_SHOWN = 8


def outputs_for_classes(layers: Iterable[LayerProto]) -> int | None:
    """The outputs that the softmax losses read; None if their sources do not say one number."""
    named = {layer.name: layer for layer in layers}
    losses = [layer for layer in named.values() if layer.type in _LOSSES and layer.srclayers]
    found = {_outputs(named, loss.srclayers[0]) for loss in losses}
    return found.pop() if len(found) == 1 else None


def _outputs(named: Mapping[str, LayerProto], name: str) -> int | None:
    layer = named.get(name)
    while layer and layer.type in _SAME and not layer.user_type and layer.srclayers:
        layer = named.get(layer.srclayers[0])
    if layer is None or layer.user_type:
        return None
    return layer.innerproduct_conf.num_output or layer.convolution_conf.num_filters or None


def keep_their_numbers(labels: Sequence[int], outputs: int) -> str:
    """What to say of labels that are numbers of outputs."""
    shown = ", ".join(map(str, labels[:_SHOWN])) + (", ..." if len(labels) > _SHOWN else "")
    return f"the labels {shown} keep their numbers: they are outputs of the net, which has {outputs}"


def are_other_outputs(classes: object, outputs: int) -> TypeGuard[tuple[str, ...]]:
    """Whether the classes are names of labels that all are numbers of outputs, but not of their own."""
    if not isinstance(classes, tuple) or not {*classes} <= {*map(str, range(outputs))}:
        return False
    return [int(name) for name in classes] != list(range(len(classes)))
